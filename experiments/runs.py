"""From the journal of a session to records: one for each table, network and seed.

Journals that were brought back from another machine become records by

    python -m experiments.runs FOLDER/runs.jsonl ...

What the records held before stays, unless a journal has the same run.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from experiments import record
from experiments.earlier import OF_JOB, ORIGIN, records_of
from experiments.jobs import Journal

TABLES = ("recipe", "table2", "table1")


def write_records(journal: Journal, folder: Path) -> list[Path]:
    """Write what finished, with what the session of the last run said of itself."""
    families: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    for line in journal.done.values():
        job = line["job"]
        families.setdefault((job["table"], job["network"], job["seed"]), []).append(line)
    paths = []
    for (table, network, seed), lines in sorted(families.items()):
        lines.sort(key=lambda line: line["name"])
        layers = list(lines[0]["zeros"])
        results: dict[str, Any] = {
            "table of runs": table,
            "network": network,
            "layers": layers,
            "runs": [_run(line, layers) for line in lines],
        }
        numbers = sorted({line["of session"] for line in lines if "of session" in line})
        sessions = [journal.sessions[number] for number in numbers]
        last = sessions[-1] if sessions else {}
        if len(sessions) > 1:
            results["sessions"] = [{k: each.get(k) for k in ORIGIN} for each in sessions]
        path = record.save(
            f"{table}_{network}_seed{seed}",
            results,
            seconds=sum(line["seconds"] for line in lines),
            seed=seed,
            parameters={k: v for k, v in last.items() if k not in ORIGIN},
            folder=folder,
            origin={k: last[k] for k in ORIGIN} if last else None,
        )
        paths.append(path)
    return paths


def _run(line: dict[str, Any], layers: list[str]) -> dict[str, Any]:
    """What a record keeps of a run; zeros in the order of the layers."""
    job = line["job"]
    plain = {key: value for key, value in line.items() if key not in ("job", "zeros")}
    method = {k: v for k, v in job["method"].items() if v}
    kept = {key: job[key] for key in OF_JOB}
    return {**plain, **kept, "method": method, "zeros": [line["zeros"][name] for name in layers]}


def main() -> None:
    """Write records from journals."""
    parser = argparse.ArgumentParser(prog="python -m experiments.runs", description=__doc__)
    parser.add_argument("journals", type=Path, nargs="+", help="runs.jsonl, the oldest first")
    parser.add_argument("--out", type=Path, default=record.RECORDS)
    options = parser.parse_args()
    earlier = [*records_of(options.out, TABLES), *options.journals]
    with tempfile.TemporaryDirectory() as empty:
        journal = Journal(Path(empty), earlier)
    for path in write_records(journal, options.out):
        print(f"wrote {path.name}")


if __name__ == "__main__":
    main()
