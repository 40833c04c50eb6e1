"""From the journal of a session to records: one for each table, network and seed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from experiments import record
from experiments.jobs import Journal

_KEPT = ("label", "level", "epochs", "rate", "schedule", "cut", "parent", "split")


def write_records(
    journal: Journal, folder: Path, about: dict[str, Any], seconds: float
) -> list[Path]:
    """Write what finished; ``about`` says how the session was set up."""
    families: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    for line in journal.done.values():
        job = line["job"]
        families.setdefault((job["table"], job["network"], job["seed"]), []).append(line)
    paths = []
    for (table, network, seed), lines in sorted(families.items()):
        lines.sort(key=lambda line: line["name"])
        layers = list(lines[0]["zeros"])
        results = {
            "table of runs": table,
            "network": network,
            "layers": layers,
            "runs": [_run(line, layers) for line in lines],
        }
        path = record.save(
            f"{table}_{network}_seed{seed}",
            results,
            seconds=seconds,
            seed=seed,
            parameters=about,
            folder=folder,
        )
        paths.append(path)
    return paths


def _run(line: dict[str, Any], layers: list[str]) -> dict[str, Any]:
    """What a record keeps of a run; zeros in the order of the layers."""
    job = line["job"]
    plain = {key: value for key, value in line.items() if key not in ("job", "zeros")}
    method = {k: v for k, v in job["method"].items() if v}
    kept = {key: job[key] for key in _KEPT}
    return {**plain, **kept, "method": method, "zeros": [line["zeros"][name] for name in layers]}
