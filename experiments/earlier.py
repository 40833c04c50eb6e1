"""Records as the lines of a journal again, so that a session can go on from them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ORIGIN = ("command", "utc", "commit", "dirty", "machine", "versions")
OF_JOB = ("label", "level", "epochs", "rate", "schedule", "cut", "parent", "split")


def records_of(folder: Path, tables: Iterable[str]) -> list[Path]:
    """The records of these tables' runs in a folder."""
    return sorted(path for table in tables for path in folder.glob(f"{table}_*_seed*.json"))


def choice_in(path: Path) -> dict[str, Any]:
    """The recipe that a session chose: from its ``choice.json`` or from one of its records."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    about = found.get("parameters")
    return about["choice"] if about is not None else found


def lines_of(
    path: Path, sessions: Sequence[dict[str, Any]]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Sessions that are new with this record, and its runs as lines that name them by number.

    What a line does not get back is the network, which records never have.
    """
    record = json.loads(path.read_text(encoding="utf-8"))
    results = record["results"]
    last = {key: record[key] for key in ORIGIN} | record["parameters"]
    origins = [*results.get("sessions", [last])[:-1], last]
    known, places = list(sessions), []
    for origin in origins:
        same = [i for i, each in enumerate(known) if _stamp(each) == _stamp(origin)]
        if not same:
            known.append(origin)
        places.append(same[0] if same else len(known) - 1)
    numbers = sorted({run["of session"] for run in results["runs"] if "of session" in run})
    place_of = dict(zip(numbers, places, strict=False))
    lines = []
    for run in results["runs"]:
        job = {key: run[key] for key in OF_JOB} | {
            "name": run["name"],
            "method": run["method"],
            "table": results["table of runs"],
            "network": results["network"],
            "seed": record["seed"],
        }
        own = {key: value for key, value in run.items() if key not in (*OF_JOB, "method")}
        own["zeros"] = dict(zip(results["layers"], run["zeros"], strict=True))
        if "of session" in run:
            own["of session"] = place_of[run["of session"]]
        lines.append(own | {"job": job})
    return known[len(sessions) :], lines


def _stamp(session: dict[str, Any]) -> tuple[Any, ...]:
    return (session.get("utc"), session.get("command"))
