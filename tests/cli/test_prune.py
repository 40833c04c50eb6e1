"""``groupsparse prune``: the same as the library on the model, without the model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from groupsparse import prune
from tests.cli.examples import PROJECTED, Ran, tensors

Run = Callable[..., Ran]
CUT = (*PROJECTED, "narrow.weight")


@pytest.mark.parametrize("scope", ["model", "layer"])
@pytest.mark.parametrize("budget", ["model", "layer"])
def test_as_the_library_prunes_the_model(run: Run, tmp_path: Path, scope: str, budget: str) -> None:
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3), torch.nn.Linear(40, 30))
    path = tmp_path / "model.safetensors"
    save_file(dict(model.state_dict()), path)
    how = ("--scope", scope, "--budget", budget)
    ran = run("prune", path, path, "--hoyer", 0.7, "--sparsity", 0.8, *how)
    assert ran.code == 0, ran.err
    prune.project_(model, prune.Plan(hoyer=0.7, budget=budget))
    prune.cut(model, 0.8, scope=scope)
    found = load_file(path)
    for name, expected in model.state_dict().items():
        assert torch.equal(found[name] == 0, expected == 0), name
        assert torch.allclose(found[name], expected, atol=1e-5), name


@pytest.mark.parametrize("sparsity", [0.5, 0.8])
def test_survivors_may_keep_their_values(run: Run, tmp_path: Path, sparsity: float) -> None:
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3), torch.nn.Linear(40, 30))
    given = {name: value.clone() for name, value in model.state_dict().items()}
    path = tmp_path / "model.safetensors"
    save_file(given, path)
    how = ("--budget", "layer", "--values", "original")
    ran = run("prune", path, path, "--hoyer", 0.7, "--sparsity", sparsity, *how)
    assert ran.code == 0, ran.err
    prune.project_(model, prune.Plan(hoyer=0.7, budget="layer"))
    prune.cut(model, sparsity)  # below the zeros that the projection makes, and above them
    found = load_file(path)
    for name, projected in model.state_dict().items():
        kept = torch.ones_like(projected) if projected.ndim == 1 else projected
        assert torch.equal(found[name], torch.where(kept != 0, given[name], 0.0)), name


@pytest.mark.parametrize("sparsity", [0.0, 0.9, 1.0])
def test_exactly_as_many_zeros_as_asked_for(
    run: Run, checkpoint: Path, tmp_path: Path, sparsity: float
) -> None:
    out = tmp_path / "out.safetensors"
    arguments = ("--hoyer", 0.0, "--sparsity", sparsity)
    ran = run("prune", checkpoint, out, *arguments)
    assert ran.code == 0, ran.err
    found, given = load_file(out), tensors()
    entries = sum(given[name].numel() for name in CUT)
    zeros = sum(int((found[name] == 0).sum()) for name in CUT)
    assert zeros == round(sparsity * entries)
    assert ("nothing is left of head.weight, layer.0.weight" in ran.err) == (sparsity == 1.0)
    assert torch.equal(found["layer.0.bias"], given["layer.0.bias"])
    assert f"{zeros:,}" in ran.out.splitlines()[-2]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.safetensors", "out.safetensors"]


def test_ties_are_cut_in_order(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.ones(4, 5), "b": torch.ones(4, 5)}, path)
    assert run("prune", path, path, "--hoyer", 0, "--sparsity", 0.6).code == 0
    found = load_file(path)
    assert int((found["a"] == 0).sum()) == 20
    assert (found["b"] == 0).flatten().tolist() == [True] * 4 + [False] * 16


def test_packed_is_what_the_library_loads(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    dense, packed = tmp_path / "dense.safetensors", tmp_path / "packed.safetensors"
    arguments = ("--hoyer", 0.8, "--sparsity", 0.9)
    assert run("prune", checkpoint, dense, *arguments).code == 0
    ran = run("prune", checkpoint, packed, *arguments, "--packed")
    assert ran.code == 0, ran.err
    expected, found = load_file(dense), prune.to_dense(packed)
    assert set(found) == set(expected)
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name].double(), tensor.double()), name
    assert packed.stat().st_size < 0.8 * dense.stat().st_size


def test_sharded(run: Run, shards: Path, tmp_path: Path) -> None:
    arguments = ("--hoyer", 0.8, "--sparsity", 0.9)
    (shards / ".model.1.projected.safetensors").touch()  # of a command that was killed
    for out in (tmp_path / "new", shards):
        ran = run("prune", shards, out, *arguments, "--values", "original")
        assert ran.code == 0, ran.err
        files = sorted(out.glob("[!.]*.safetensors"))
        assert len(files) == 2
        size = sum(file.stat().st_size for file in files)
        assert ran.out.endswith(f"wrote {out} ({size / 1e3:,.1f} kB)\n")
        found = load_file(files[0]) | load_file(files[1])
        zeros = sum(int((found[name] == 0).sum()) for name in CUT)
        assert zeros == round(0.9 * sum(found[name].numel() for name in CUT))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["new", "sharded"]
    assert run("prune", shards, tmp_path / "x", *arguments, "--packed").code == 2
