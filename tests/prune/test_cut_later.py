"""A cut by kernels does as little as it can before and after them; nobody is to notice.

Masks are taken out of one tensor when somebody first looks at them. Without a CUDA device the
kernels run in Triton's interpreter, on the CPU's own memory.
"""

from __future__ import annotations

import copy
import gc
import math
import pickle
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from groupsparse import InvalidInput, NonFiniteInput, prune
from groupsparse.prune import packing
from groupsparse.prune.gpu import selecting, tables
from tests.on_device import DEVICE, ON_GPU


@pytest.fixture(autouse=True)
def _usable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "usable", lambda device: True)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    convolution = nn.Conv2d(5, 7, 3).to(memory_format=torch.channels_last)
    return nn.Sequential(convolution, nn.Linear(9, 11), nn.Linear(3, 1)).to(DEVICE)


def cut_unseen(model: nn.Module) -> prune.Masks:
    """Masks that nobody has looked at."""
    masks = prune.cut(model, sparsity=0.5)
    assert "packed" not in vars(masks)
    return masks


def expected(monkeypatch: pytest.MonkeyPatch) -> prune.Masks:
    with monkeypatch.context() as patch:
        patch.setattr(tables, "usable", lambda device: False)
        return prune.cut(network(), sparsity=0.5)


def through_pickle(masks: prune.Masks) -> prune.Masks:
    return pickle.loads(pickle.dumps(masks))  # type: ignore[no-any-return]


def through_file(masks: prune.Masks) -> prune.Masks:
    masks.save("masks.safetensors")
    return prune.Masks.load("masks.safetensors")


def test_masks_outlive_the_model_and_do_not_hold_it(monkeypatch: pytest.MonkeyPatch) -> None:
    model = network()
    held = [weakref.ref(model[0]), *(weakref.ref(p) for p in model.parameters())]
    masks = cut_unseen(model)
    del model
    gc.collect()
    assert [each() for each in held] == [None] * len(held)
    assert masks == expected(monkeypatch)


def test_masks_speak_of_the_model_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameters that move, change their dtype, values or shape before anybody looks."""
    model = network()
    masks = cut_unseen(model)
    with torch.no_grad():
        model[1].weight.fill_(7.0)
    model[0].weight.data = torch.ones(2, 2, device=DEVICE)
    model[2] = nn.Linear(1, 1)
    model.to("cpu", torch.float64)
    assert masks == expected(monkeypatch)
    assert masks["0.weight"].shape == (7, 5, 3, 3)
    with pytest.raises(InvalidInput, match=r"0\.weight has shape \(2, 2\)"):
        masks.apply_(model)


def test_masks_of_two_cuts_do_not_mix(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = network(), network()
    first = cut_unseen(one)
    second = prune.cut(other, sparsity=0.6)
    third = prune.cut(one, sparsity=0.6)
    assert first == expected(monkeypatch)
    assert second == third != first


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, through_pickle, through_file])
@pytest.mark.parametrize("seen", [False, True])
def test_copies_are_whole(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    copied: Callable[[prune.Masks], prune.Masks],
    seen: bool,
) -> None:
    monkeypatch.chdir(tmp_path)
    masks = cut_unseen(network())
    if seen:
        assert len(masks) == 3
    again = copied(masks)
    assert again == masks == expected(monkeypatch)
    assert again.zeros == masks.zeros == round(0.5 * masks.entries)
    if copied is not copy.copy:
        again.packed["1.weight"].bits.zero_()
        assert masks == expected(monkeypatch)


def test_what_is_looked_at_stays_the_same() -> None:
    masks = cut_unseen(network())
    assert masks.packed is masks.packed
    assert list(masks) == ["0.weight", "1.weight", "2.weight"]
    assert all(mask.bits.data_ptr() % 16 == 0 for mask in masks.packed.values())


def test_autograd_hears_of_the_cut() -> None:
    layer = nn.Linear(4, 4, device=DEVICE)
    x = torch.ones(2, 4, device=DEVICE, requires_grad=True)
    y = layer(x).sum()
    before = layer.weight._version
    prune.cut(layer, sparsity=0.5)
    assert layer.weight._version == before + 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_autograd_hears_of_it_from_a_pytorch_that_counts_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one_by_one = torch.autograd.graph.increment_version

    def before_2_6(values: Any) -> None:
        if not isinstance(values, torch.Tensor):
            raise AttributeError("a list has no version")
        one_by_one(values)

    monkeypatch.setattr(torch.autograd.graph, "increment_version", before_2_6)
    packing._counts_many.cache_clear()
    model = network()
    before = [parameter._version for parameter in model.parameters() if parameter.ndim > 1]
    prune.cut(model, sparsity=0.5)
    after = [parameter._version for parameter in model.parameters() if parameter.ndim > 1]
    assert after == [version + 1 for version in before]
    packing._counts_many.cache_clear()


def test_a_cut_that_is_refused_has_written_nothing() -> None:
    layer = nn.Linear(4, 4, device=DEVICE)
    with torch.no_grad():
        layer.weight[2, 1] = math.nan
    before, values = layer.weight._version, layer.weight.detach().clone()
    with pytest.raises(NonFiniteInput, match=r"weight .*\(2, 1\)"):
        prune.cut(layer, sparsity=0.5)
    assert layer.weight._version == before
    assert torch.equal(layer.weight.nan_to_num(7.0), values.nan_to_num(7.0))


@pytest.mark.skipif(ON_GPU, reason="what is made in inference mode is the same elsewhere")
def test_parameters_of_inference_mode_have_no_versions() -> None:
    with torch.inference_mode():
        layer = nn.Linear(4, 4, device=DEVICE)
    assert prune.cut(layer, sparsity=0.5).zeros == 8


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"sparsity": 1.5}, InvalidInput),
        ({"sparsity": "half"}, TypeError),
        ({"sparsity": 0.5, "scope": "network"}, InvalidInput),
        ({"sparsity": 0.5, "floor": False}, InvalidInput),
        ({"sparsity": 0.5, "floor": 0.0}, InvalidInput),
        ({"sparsity": 0.5, "floor": -1}, InvalidInput),
        ({"sparsity": 0.5, "scores": {}}, InvalidInput),
        ({"sparsity": 0.5, "scores": {"weight": torch.ones(4)}}, InvalidInput),
    ],
)
def test_mistakes_are_found_before_anything_is_launched(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], error: type[Exception]
) -> None:
    def launched(*_: object) -> None:
        raise AssertionError("a kernel was launched")

    monkeypatch.setattr(selecting, "cut_", launched)
    with pytest.raises(error):
        prune.cut(nn.Linear(4, 4, device=DEVICE), **options)
