"""Records say where numbers come from, and Table 3 holds on a few draws."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.timing import Contender, side_by_side
from experiments import record, table3
from experiments.tables import table


def test_a_record_names_its_origin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.orig_argv", ["/some/where/python", "-m", "x", "/data/a.npy", "--n=3"])
    results = {"array": np.arange(3), "scalar": np.float32(0.5), "plain": [1, "two"]}
    path = record.save("run", results, seconds=1.23456, seed=7, folder=tmp_path)
    found = json.loads(path.read_text(encoding="utf-8"))
    assert found["results"] == {"array": [0, 1, 2], "scalar": 0.5, "plain": [1, "two"]}
    assert found["command"] == "python -m x a.npy --n=3", "folders of the machine stay out"
    assert found["seed"] == 7
    assert found["seconds"] == 1.235
    assert {"python", "numpy", "numba"} <= set(found["versions"])
    assert {"processor", "cores", "memory_gib"} <= set(found["machine"])
    assert {"commit", "dirty", "utc"} <= set(found)
    assert record.load("run", folder=tmp_path) == found


def test_what_json_cannot_hold_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="object cannot be written"):
        record.save("run", object(), seconds=0.0, folder=tmp_path)


def test_table3_needs_no_more_work_than_the_paper() -> None:
    results = table3.run(draws=3)
    assert [entry["hoyer"] for entry in results["targets"]] == list(table3.PAPER)
    for entry in results["targets"]:
        assert entry["kernel"] == "numba"
        # One more than the paper's evaluations of g: our passes include the one that writes.
        assert entry["passes"]["average"] <= entry["paper iterations"]["average"] + 1
        assert entry["largest residual"] <= table3.PRECISION
    assert abs(results["initial"]["average"] - table3.PAPER_INITIAL["average"]) < 0.002
    assert table3.report(results).count("\n") == 8


def test_contenders_take_turns() -> None:
    calls: list[str] = []
    seconds = side_by_side(
        {
            "a": lambda: calls.append("a"),
            "b": Contender(lambda: calls.append("b"), lambda: calls.append("ready")),
        },
        budget=0.0,
        least=2,
    )
    assert calls == ["a", "ready", "b"] * 3, "a warm-up, then as many rounds as were asked for"
    assert set(seconds) == {"a", "b"}


def test_tables_are_aligned() -> None:
    lines = table(["name", "x"], [["a", 1], ["longer", 22.5]]).splitlines()
    assert lines[1] == "| ------ | ---: |"
    assert len({len(line) for line in lines}) == 1
