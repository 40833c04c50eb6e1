"""Files: small, bit-identical, whole or absent, and never pickled."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from groupsparse import InvalidInput, prune


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().view(-1).view(torch.uint8)


def same(first: nn.Module, second: nn.Module) -> bool:
    one, two = first.state_dict(), second.state_dict()
    return one.keys() == two.keys() and all(
        torch.equal(bits(one[k].reshape(-1)), bits(two[k].reshape(-1))) for k in one
    )


def network(**options: object) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.Flatten(), nn.Linear(400, 300)
    ).to(**options)  # type: ignore[arg-type, call-overload]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("sparsity", [0.0, 0.5, 0.95, 0.99])
def test_it_comes_back_bit_for_bit(tmp_path: Path, dtype: torch.dtype, sparsity: float) -> None:
    model, other = network(dtype=dtype), network(dtype=dtype)
    prune.cut(model, sparsity=sparsity, scope="layer")
    prune.save(model, tmp_path / "model.safetensors")
    assert prune.load(other, tmp_path / "model.safetensors") is other
    assert same(model, other)


def test_awkward_values_come_back_bit_for_bit(tmp_path: Path) -> None:
    model, other = nn.Linear(64, 8), nn.Linear(64, 8)
    prune.cut(model, sparsity=0.9)
    with torch.no_grad():
        values = model.weight.view(-1)
        values[:6] = torch.tensor([-0.0, 0.0, float("nan"), float("inf"), 1e-45, -1e-45])
        values.view(torch.int32)[6] = 0x7FC12345  # a NaN that carries something
        model.bias.fill_(-0.0)
    prune.save(model, tmp_path / "model.safetensors")
    prune.load(other, tmp_path / "model.safetensors")
    assert same(model, other)


def test_at_95_percent_zeros_the_file_is_small(tmp_path: Path) -> None:
    model = network()
    prune.cut(model, sparsity=0.95)
    prune.save(model, tmp_path / "small.safetensors")
    dense = sum(t.nbytes for t in model.state_dict().values())
    size = (tmp_path / "small.safetensors").stat().st_size
    assert size <= 0.09 * dense
    assert not (load_file(tmp_path / "small.safetensors").keys() & {"0.weight", "3.weight"})


def test_a_dense_model_costs_nothing_more(tmp_path: Path) -> None:
    model = network()
    prune.save(model, tmp_path / "dense.safetensors")
    dense = sum(t.nbytes for t in model.state_dict().values())
    assert (tmp_path / "dense.safetensors").stat().st_size < dense + 2000


def test_memory_formats_and_tied_parameters(tmp_path: Path) -> None:
    def tied() -> nn.ModuleDict:
        model = nn.ModuleDict({"embed": nn.Embedding(50, 40), "head": nn.Linear(40, 50)})
        model["head"].weight = model["embed"].weight
        return model

    model, other = tied(), tied()
    prune.cut(model, sparsity=0.9)
    prune.save(model, tmp_path / "tied.safetensors")
    assert (tmp_path / "tied.safetensors").stat().st_size < 0.25 * 4 * 2000
    prune.load(other, tmp_path / "tied.safetensors")
    assert same(model, other)
    assert other["head"].weight is other["embed"].weight
    dense = prune.to_dense(tmp_path / "tied.safetensors", tmp_path / "dense.safetensors")
    assert torch.equal(dense["head.weight"], model["embed"].weight)
    written = load_file(tmp_path / "dense.safetensors")
    assert {n: t.tolist() for n, t in written.items()} == {n: t.tolist() for n, t in dense.items()}

    rows, columns = network(), network().to(memory_format=torch.channels_last)
    prune.cut(columns, sparsity=0.9)
    prune.save(columns, tmp_path / "columns.safetensors")
    prune.load(rows, tmp_path / "columns.safetensors")
    assert same(rows, columns)


def test_dense_files_are_for_everybody(tmp_path: Path) -> None:
    model, other = network(), network()
    prune.cut(model, sparsity=0.95)
    prune.save(model, tmp_path / "small.safetensors")
    prune.to_dense(tmp_path / "small.safetensors", tmp_path / "dense.safetensors")
    other.load_state_dict(load_file(tmp_path / "dense.safetensors"))
    assert same(model, other)
    other = network()
    other.load_state_dict(prune.to_dense(tmp_path / "small.safetensors"))
    assert same(model, other)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # from inside torch.compile
def test_compiled_models_share_files_with_plain_ones(tmp_path: Path) -> None:
    model = network()
    prune.cut(model, sparsity=0.95)
    prune.save(torch.compile(model), tmp_path / "model.safetensors")  # type: ignore[arg-type]
    other = network()
    prune.load(other, tmp_path / "model.safetensors")
    assert same(model, other)


def another_layer() -> nn.Module:
    return nn.Sequential(*network(), nn.Linear(300, 2))


def another_shape() -> nn.Module:
    model = network()
    model[3] = nn.Linear(400, 299)
    return model


def another_dtype() -> nn.Module:
    return network(dtype=torch.float64)


def on_meta() -> nn.Module:
    return network(device="meta")


@pytest.mark.parametrize("make", [another_layer, another_shape, another_dtype, on_meta])
def test_a_file_for_another_model(tmp_path: Path, make: object) -> None:
    prune.save(network(), tmp_path / "model.safetensors")
    other = make()  # type: ignore[operator]
    before = {k: v.clone() for k, v in other.state_dict().items()}
    with pytest.raises(InvalidInput, match=r"another model|meta"):
        prune.load(other, tmp_path / "model.safetensors")
    for key, value in other.state_dict().items():
        assert value.is_meta or torch.equal(value, before[key])


def test_files_of_another_kind(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    model = network()
    save_file(model.state_dict(), tmp_path / "other.safetensors")
    prune.Masks.of(model).save(tmp_path / "masks.safetensors")
    (tmp_path / "half.safetensors").write_bytes((tmp_path / "masks.safetensors").read_bytes()[:-9])
    (tmp_path / "text.safetensors").write_text("not at all")
    for path in ("other", "masks", "nowhere", "half", "text"):
        with pytest.raises(InvalidInput):
            prune.load(model, tmp_path / f"{path}.safetensors")
    prune.save(model, tmp_path / "model.safetensors")
    with pytest.raises(InvalidInput, match="no masks"):
        prune.Masks.load(tmp_path / "model.safetensors")


class Remembers(nn.Linear):
    def get_extra_state(self) -> object:
        return {"anything": 1}

    def set_extra_state(self, state: object) -> None:
        pass


def test_what_would_need_pickle_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="_extra_state is a dict"):
        prune.save(Remembers(3, 2), tmp_path / "model.safetensors")
    assert os.listdir(tmp_path) == []


def test_a_damaged_file_leaves_the_model_untouched(mlp: nn.Module, tmp_path: Path) -> None:
    prune.cut(mlp, 0.9)
    path, other = tmp_path / "small.safetensors", copy.deepcopy(mlp)
    prune.save(mlp, path)
    tensors = load_file(path)
    tensors["2.weight:bits"][3] ^= 16  # the last of the packed tensors
    with safe_open(path, framework="pt") as file:
        save_file(tensors, path, file.metadata())
    for parameter in other.parameters():
        nn.init.ones_(parameter)
    with pytest.raises(InvalidInput, match=r"damaged: mask and values of 2\.weight"):
        prune.load(other, path)
    assert all(bool((parameter == 1).all()) for parameter in other.parameters())
    with pytest.raises(InvalidInput, match="damaged"):
        prune.to_dense(path)


def test_buffers_that_overlap(tmp_path: Path) -> None:
    """Views of one table, as caches are: each is written for itself."""
    model = nn.Linear(4, 4)
    table = torch.randn(8, 4)
    for name, view in (("first", table[:5]), ("last", table[3:]), ("flat", table.view(-1))):
        model.register_buffer(name, view)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    prune.save(model, tmp_path / "views.safetensors")
    assert torch.equal(prune.to_dense(tmp_path / "views.safetensors")["flat"], before["flat"])
    table.zero_()
    prune.load(model, tmp_path / "views.safetensors")
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


def test_a_model_without_tensors(tmp_path: Path) -> None:
    """A file all the same: one that was there before would be read as this model's."""
    path = tmp_path / "nothing.safetensors"
    prune.save(nn.Linear(2, 2), path)
    prune.save(nn.ReLU(), path)
    prune.load(nn.ReLU(), path)
    assert prune.to_dense(path) == {}


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.safetensors"
    prune.save(network(), path)
    before = path.read_bytes()
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        prune.save(network(), path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["model.safetensors"]


def test_whoever_reads_the_old_file_goes_on_reading_it(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    prune.save(network(), path)
    before = path.read_bytes()
    with path.open("rb") as reader:
        prune.save(network(), path)
        assert reader.read() == before  # another file has taken its place
    assert path.read_bytes() != before


def test_a_kill_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    model = network()
    prune.save(model, path)
    program = f"""
import os, signal, torch
from torch import nn
from groupsparse import prune
os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)
prune.save(nn.Linear(300, 300), {str(path)!r})
"""
    done = subprocess.run([sys.executable, "-c", program], check=False, env=os.environ)
    assert done.returncode == -9
    other = network()
    prune.load(other, path)
    assert same(model, other)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no such folder: .*missing"):
        prune.save(nn.Linear(3, 4), tmp_path / "missing" / "model.safetensors")


def test_a_model_without_values_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="weight is on the meta device"):
        prune.save(nn.Linear(3, 3, device="meta"), tmp_path / "a.safetensors")
    assert not list(tmp_path.iterdir())
