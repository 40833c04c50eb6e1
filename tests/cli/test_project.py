"""``groupsparse project``: targets, dtypes, metadata, and what must not be touched."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import groupsparse as gs
from groupsparse.storage.stored import narrowed
from tests.cli.examples import PROJECTED, Ran, tensors

Run = Callable[..., Ran]


def average(tensor: torch.Tensor) -> float:
    wide = tensor.double().flatten(1) if tensor.ndim > 1 else tensor.double()
    return gs.average_hoyer(wide)


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    raw = [tensor.contiguous().view(-1).view(torch.uint8) for tensor in (one, other)]
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(*raw)


def test_each_tensor_meets_the_target_and_nothing_else_changes(
    run: Run, checkpoint: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.safetensors"
    ran = run("project", checkpoint, out, "--hoyer", 0.8)
    assert ran.code == 0, ran.err
    found, given = load_file(out), tensors()
    assert list(found) == list(load_file(checkpoint))
    for name, tensor in given.items():
        assert found[name].dtype == tensor.dtype
        if name in PROJECTED:
            exact = tensor.dtype in (torch.float32, torch.float64)
            assert average(found[name]) == pytest.approx(0.8, abs=1e-6 if exact else 1e-3)
        elif tensor.numel() and tensor.ndim:
            assert same(found[name], tensor), name
    with safe_open(out, framework="pt") as file:
        assert file.metadata() == {"format": "pt", "who": "me"}


def test_the_values_are_those_of_the_library(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    run("project", checkpoint, tmp_path / "out.safetensors", "--hoyer", 0.7)
    expected = tensors()
    gs.project_each_([expected[name] for name in PROJECTED], 0.7)
    found = load_file(tmp_path / "out.safetensors")
    for name in PROJECTED:
        assert same(found[name], expected[name]), name  # bfloat16 is rounded as torch does


def test_one_multiplier_for_all(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    assert run("project", checkpoint, out, "--hoyer", 0.8, "--shared").code == 0
    found, expected = load_file(out), tensors()
    gs.project_each_([expected[name] for name in PROJECTED], 0.8, shared=True)
    for name in PROJECTED:
        assert torch.allclose(found[name].float(), expected[name].float(), atol=1e-5, rtol=1e-2), (
            name
        )
        assert torch.equal(found[name] == 0, expected[name] == 0), name
    rows = [row for name in PROJECTED for row in found[name].double().flatten(1)]
    assert gs.average_hoyer(rows) == pytest.approx(0.8, abs=1e-3)


def test_in_place_and_again_changes_nothing(run: Run, checkpoint: Path) -> None:
    names = ["--targets", "layer.0.weight", "--targets", "head"]
    assert run("project", checkpoint, checkpoint, "--hoyer", 0.8, *names).code == 0
    once = checkpoint.read_bytes()
    ran = run("project", checkpoint, checkpoint, "--hoyer", 0.8, *names)
    assert checkpoint.read_bytes() == once
    assert "already sparse enough" in ran.out


def test_sharded_into_a_new_folder(run: Run, shards: Path, tmp_path: Path) -> None:
    assert run("project", shards, tmp_path / "new", "--hoyer", 0.8).code == 0
    old, new = (folder / "model.safetensors.index.json" for folder in (shards, tmp_path / "new"))
    assert json.loads(new.read_text()) == json.loads(old.read_text())
    assert sorted(p.name for p in shards.iterdir()) == sorted(
        p.name for p in (tmp_path / "new").iterdir()
    )
    check_shards(new, 0.8)


def test_sharded_in_place_leaves_one_checkpoint(run: Run, shards: Path) -> None:
    (shards / "config.json").write_text("{}")
    index = shards / "model.safetensors.index.json"
    for hoyer in (0.7, 0.8):  # the second time the first names are free again
        assert run("project", index, shards, "--hoyer", hoyer).code == 0
        check_shards(index, hoyer)
        assert len(list(shards.iterdir())) == 4
    assert json.loads(index.read_text())["metadata"] == {"total_size": 1234}


def check_shards(index: Path, hoyer: float) -> None:
    where = json.loads(index.read_text())["weight_map"]
    assert set(where) == set(tensors())
    for name in PROJECTED:
        found = load_file(index.parent / where[name])[name]
        assert average(found) == pytest.approx(hoyer, abs=1e-3)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_an_array(run: Run, tmp_path: Path, dtype: str, order: Any) -> None:
    given = np.random.default_rng(0).normal(size=(20, 30)).astype(dtype, order=order)
    np.save(tmp_path / "x.npy", given)
    ran = run("project", tmp_path / "x.npy", tmp_path / "z.npy", "--hoyer", 0.8)
    assert ran.code == 0, ran.err
    found = np.load(tmp_path / "z.npy")
    assert found.dtype == given.dtype
    assert found.flags.fnc == given.flags.fnc
    np.testing.assert_array_equal(found, gs.project(given, 0.8))


@pytest.mark.parametrize(
    ("axis", "meaning"), [("0", 0), ("-1", -1), ("0,1", (0, 1)), ("all", None)]
)
def test_axis(run: Run, tmp_path: Path, axis: str, meaning: Any) -> None:
    given = np.random.default_rng(0).normal(size=(20, 30))
    np.save(tmp_path / "x.npy", given)
    assert run("project", tmp_path / "x.npy", tmp_path, "--hoyer", 0.6, "--axis", axis).code == 0
    expected = gs.project(given, 0.6, axis=meaning)
    np.testing.assert_allclose(np.load(tmp_path / "x.npy"), expected, atol=1e-12)


def test_an_archive_keeps_what_it_must_not_read(run: Run, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    np.savez_compressed(
        tmp_path / "x.npz",
        a=rng.normal(size=(20, 30)),
        vector=rng.normal(size=9),
        pickled=np.array([None, {}], dtype=object),
        words=np.array(["a", "b"]),
    )
    assert run("project", tmp_path / "x.npz", tmp_path / "z.npz", "--hoyer", 0.8).code == 0
    with np.load(tmp_path / "x.npz") as given, np.load(tmp_path / "z.npz") as found:
        assert found.files == given.files
        assert gs.average_hoyer(found["a"]) == pytest.approx(0.8, abs=1e-10)
        np.testing.assert_array_equal(found["vector"], given["vector"])
        assert list(found["words"]) == ["a", "b"]
    ran = run("project", tmp_path / "x.npz", tmp_path / "z.npz", "--hoyer", 0.8, "-t", "vector")
    assert ran.code == 0
    with np.load(tmp_path / "z.npz") as found:
        assert gs.average_hoyer([found["vector"]]) == pytest.approx(0.8, abs=1e-10)


def test_names_choose(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    ran = run("project", checkpoint, out, "--hoyer", 0.9, "-t", r"re:layer\..*", "-i", "layer.1")
    assert ran.code == 0, ran.err
    found, given = load_file(out), tensors()
    changed = [name for name in PROJECTED if not same(found[name], given[name])]
    assert changed == ["layer.0.weight"]


def test_ties_and_extreme_scales_meet_a_shared_target(run: Run, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name, members in {
        "ties": {"a": np.ones((5, 40)), "b": np.ones((3, 7)), "c": np.eye(4)[:2] + 1},
        "scales": {"a": 1e200 * rng.normal(size=(5, 40)), "b": 1e-200 * rng.normal(size=(9, 30))},
    }.items():
        np.savez(tmp_path / f"{name}.npz", **members)
        path = tmp_path / f"{name}.npz"
        ran = run("project", path, path, "--hoyer", 0.8, "--shared")
        assert ran.code == 0, ran.err
        with np.load(path) as found:
            rows = [row for member in members for row in found[member]]
        assert gs.average_hoyer(rows) == pytest.approx(0.8, abs=1e-10)


def test_one_bad_entry_is_named_and_nothing_is_written(run: Run, tmp_path: Path) -> None:
    bad = tensors()
    bad["layer.0.weight"][3, 5] = torch.nan
    path, out = tmp_path / "bad.safetensors", tmp_path / "out.safetensors"
    save_file(bad, path)
    for how in ((), ("--shared",)):
        ran = run("project", path, out, "--hoyer", 0.8, *how)
        assert ran.code == 1
        assert "layer.0.weight" in ran.err
        assert "vector 3, index 5 is nan" in ran.err
        assert [p.name for p in tmp_path.iterdir()] == ["bad.safetensors"]


def test_bfloat16_is_rounded_as_torch_rounds() -> None:
    bits = np.arange(0x3F7F0000, 0x3F830000, 0x400, dtype=np.uint32)  # every kind of tie
    values = np.concatenate([bits.view(np.float32), -bits.view(np.float32)])
    expected = torch.from_numpy(values).bfloat16().view(torch.int16).numpy()
    np.testing.assert_array_equal(narrowed(values).view(np.int16), expected)


def test_a_link_is_replaced_and_what_it_points_to_stays(run: Run, checkpoint: Path) -> None:
    before, link = checkpoint.read_bytes(), checkpoint.with_name("link.safetensors")
    link.symlink_to(checkpoint)
    assert run("project", link, link, "--hoyer", 0.8).code == 0
    assert not link.is_symlink()
    assert checkpoint.read_bytes() == before
