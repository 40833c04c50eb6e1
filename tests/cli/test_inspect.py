"""``groupsparse inspect``: every tensor, measured as the library measures it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import groupsparse as gs
from groupsparse import prune
from tests.cli.examples import PROJECTED, Ran, tensors

Run = Callable[..., Ran]


def test_json_has_the_measures_of_every_tensor(run: Run, checkpoint: Path, shards: Path) -> None:
    for path in (checkpoint, shards, shards / "model.safetensors.index.json"):
        found = json.loads(run("inspect", path, "--json").out)
        rows = {row["name"]: row for row in found["tensors"]}
        assert set(rows) == set(tensors())
        for name, tensor in tensors().items():
            assert rows[name]["shape"] == list(tensor.shape)
            if name in PROJECTED:
                measure = gs.average_hoyer(tensor.double().flatten(1))
                assert rows[name]["hoyer"] == pytest.approx(measure, abs=1e-6)
        assert rows["steps"] == {
            "name": "steps",
            "dtype": "I64",
            "shape": [7],
            "parameters": 7,
            "zeros": 1,
            "sparsity": 1 / 7,
            "hoyer": None,
        }
        assert rows["f8"]["zeros"] is None
        assert found["total"]["parameters"] == sum(t.numel() for t in tensors().values())


def test_the_table_has_a_line_for_each_and_a_total(run: Run, checkpoint: Path) -> None:
    lines = run("inspect", checkpoint).out.splitlines()
    assert [line.split()[0] for line in lines[1:-1]] == [
        row["name"] for row in json.loads(run("inspect", checkpoint, "--json").out)["tensors"]
    ]
    assert lines[-1].startswith("total")
    [line] = [line for line in lines if line.startswith("layer.1.weight")]
    assert "16x8x3x3" in line
    assert "1,152" in line
    assert line.endswith(".")  # the bar


def test_what_cannot_be_measured_is_shown_all_the_same(run: Run, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", bad=np.array([[1.0, np.nan]]), zero=np.zeros((2, 3)))
    rows = json.loads(run("inspect", tmp_path / "x.npz", "--json").out)["tensors"]
    assert rows[0]["hoyer"] is None
    assert (rows[1]["hoyer"], rows[1]["zeros"]) == (1.0, 6)


def test_packed_files_show_what_they_stand_for(run: Run, tmp_path: Path) -> None:
    model = torch.nn.Linear(60, 20).bfloat16()
    prune.cut(model, 0.9)
    prune.save(model, tmp_path / "packed.safetensors")
    save_file(dict(model.state_dict()), tmp_path / "plain.safetensors")
    packed, plain = (
        json.loads(run("inspect", tmp_path / f"{name}.safetensors", "--json").out)["tensors"]
        for name in ("packed", "plain")
    )
    assert {row["name"]: row for row in packed} == {row["name"]: row for row in plain}
    ran = run("project", tmp_path / "packed.safetensors", tmp_path, "--hoyer", 0.99)
    assert ran.code == 1
    assert "to_dense" in ran.err


def test_a_folder_with_one_file(run: Run, checkpoint: Path) -> None:
    checkpoint.with_name(".model.1.projected.safetensors").touch()  # of a command that was killed
    assert run("inspect", checkpoint.parent).out == run("inspect", checkpoint).out
