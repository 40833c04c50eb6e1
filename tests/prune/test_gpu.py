"""The kernels of the cut and of the masks give the answers of plain PyTorch, bit for bit.

Without a CUDA device they run in Triton's interpreter, on the CPU's own memory.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from groupsparse import NonFiniteInput, prune
from groupsparse.prune import cutting, freezing
from groupsparse.prune.gpu import masking, selecting, tables
from groupsparse.prune.packing import PackedMask
from tests.on_device import DEVICE, ON_GPU

pytestmark = pytest.mark.filterwarnings("ignore::groupsparse.prune.LayerCollapse")


@pytest.fixture(autouse=True)
def _usable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "usable", lambda device: True)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tensors each call of the kernels saw: which path ran."""
    seen: list[int] = []
    original = selecting.cut_

    def spy(parameters: list[Tensor], *rest: Any) -> selecting.Outcome | None:
        outcome = original(parameters, *rest)
        seen.extend([len(parameters)] if outcome is not None else [])
        return outcome

    monkeypatch.setattr(selecting, "cut_", spy)
    return seen


def network(dtype: torch.dtype = torch.float32, *, rounded: bool = False) -> nn.Module:
    """Layers of several blocks and of less than one, in all the usual formats."""
    model = nn.Sequential(
        nn.Conv2d(3, 5, 3),
        nn.Conv2d(40, 64, 3).to(memory_format=torch.channels_last),
        nn.Conv2d(64, 70, 1),
        nn.Conv1d(7, 9, 5),
        nn.Linear(130, 65),
        nn.Linear(3, 1),
    )
    model[4].weight = nn.Parameter(torch.randn(130, 65).t())  # inputs lie the other way
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 2.0)
            if rounded:  # ties, in every block and at both signs of zero
                parameter.round_()
    return model.to(DEVICE, dtype)


def plainly(model: nn.Module, monkeypatch: pytest.MonkeyPatch, **options: object) -> prune.Masks:
    with monkeypatch.context() as patch:
        patch.setattr(tables, "usable", lambda device: False)
        return prune.cut(model, **options)  # type: ignore[arg-type]


def assert_same(one: nn.Module, other: nn.Module) -> None:
    for name, parameter in one.named_parameters():
        assert torch.equal(parameter, other.get_parameter(name)), name
        assert parameter.stride() == other.get_parameter(name).stride()


@pytest.mark.parametrize("scope", ["model", "layer"])
@pytest.mark.parametrize("sparsity", [0.0, 0.37, 0.999, 1.0])
@pytest.mark.parametrize("rounded", [False, True])
def test_the_cut_is_the_same(
    monkeypatch: pytest.MonkeyPatch, calls: list[int], scope: str, sparsity: float, rounded: bool
) -> None:
    ours = network(rounded=rounded)
    theirs = copy.deepcopy(ours)
    masks = prune.cut(ours, sparsity=sparsity, scope=scope)
    assert calls == [6]
    assert masks == plainly(theirs, monkeypatch, sparsity=sparsity, scope=scope)
    assert_same(ours, theirs)
    if scope == "model":
        assert masks.zeros == round(sparsity * masks.entries)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_other_dtypes(
    monkeypatch: pytest.MonkeyPatch, calls: list[int], dtype: torch.dtype
) -> None:
    ours = network(dtype)
    theirs = copy.deepcopy(ours)
    assert prune.cut(ours, sparsity=0.8) == plainly(theirs, monkeypatch, sparsity=0.8)
    assert calls == [6]
    assert_same(ours, theirs)


@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize("sparsity", [0.1, 0.5, 0.9])
def test_scores_of_both_signs_decide(
    monkeypatch: pytest.MonkeyPatch, calls: list[int], rounded: bool, sparsity: float
) -> None:
    ours = network(torch.bfloat16)
    theirs = copy.deepcopy(ours)
    scores = {}
    for name, parameter in ours.named_parameters():
        score = torch.randn_like(parameter, dtype=torch.float32)
        scores[name] = score.round() if rounded else score  # with −0.0 beside 0.0
    options = {"scores": scores, "sparsity": sparsity}
    assert prune.cut(ours, **options) == plainly(theirs, monkeypatch, **options)  # type: ignore[arg-type]
    assert calls == [6]
    assert_same(ours, theirs)


@pytest.mark.parametrize("bad", [math.nan, -math.inf])
@pytest.mark.parametrize("with_scores", [False, True])
def test_not_finite_is_named_and_nothing_changes(
    calls: list[int], bad: float, with_scores: bool
) -> None:
    model = network()
    scores = {n: torch.randn_like(p) for n, p in model.named_parameters()}
    with torch.no_grad():
        (scores["1.weight"] if with_scores else model[1].weight)[3, 4, 0, 2] = bad
    before = copy.deepcopy(model)
    with pytest.raises(NonFiniteInput, match=r"1\.weight .*\(3, 4, 0, 2\)"):
        prune.cut(model, sparsity=0.5, scores=scores if with_scores else None)
    assert calls == [6]
    for parameter, old in zip(model.parameters(), before.parameters(), strict=True):
        assert torch.equal(parameter.nan_to_num(7.0), old.nan_to_num(7.0))


def test_tiny_and_huge_values() -> None:
    layer = nn.Linear(6, 1, bias=False, device=DEVICE)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[3e38, 1e-45, 1e-38, -1e-45, 2e-45, 1.0]]))
    masks = prune.cut(layer, sparsity=0.5)
    assert masks["weight"].tolist() == [[True, False, True, False, False, True]]


def test_a_layer_without_anything_left_is_named() -> None:
    model = nn.Sequential(nn.Linear(2, 1, bias=False), nn.Linear(1, 2, bias=False)).to(DEVICE)
    nn.init.constant_(model[0].weight, 1e-3)
    nn.init.constant_(model[1].weight, 1.0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        prune.cut(model, sparsity=0.5)
    assert "nothing is left of 0.weight:" in str(caught[0].message)
    assert caught[0].filename == __file__


def test_what_does_not_fit_goes_the_plain_way(calls: list[int]) -> None:
    assert prune.cut(network(torch.float64), sparsity=0.5).sparsity == pytest.approx(0.5, abs=1e-4)
    mixed = network()
    mixed[0].to(torch.bfloat16)
    prune.cut(mixed, sparsity=0.5)
    prune.cut(network(), sparsity=0.5, floor=1)
    strided = nn.Conv3d(2, 3, 4, device=DEVICE)
    strided.weight = nn.Parameter(torch.randn(4, 4, 4, 2, 3, device=DEVICE).permute(4, 0, 3, 1, 2))
    assert tables.layout(strided.weight) is None
    prune.cut(strided, sparsity=0.5)
    assert calls == []


FORMATS: dict[str, Callable[[], Tensor]] = {
    "rows": lambda: torch.randn(70, 130),
    "columns": lambda: torch.randn(130, 70).t(),
    "channels last": lambda: torch.randn(40, 16, 3, 5).to(memory_format=torch.channels_last),
    "every second": lambda: torch.randn(64, 200)[:, ::2],
    "one": lambda: torch.randn(1, 1),
    "none": lambda: torch.randn(0, 4),
}


@pytest.mark.parametrize("given", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_masked_entries_become_zero(given: Callable[[], Tensor], dtype: torch.dtype) -> None:
    values = given().to(DEVICE, dtype)
    if values.numel() > 1:
        values[0, 0] = math.nan  # which no product with zero would remove
    kept = torch.rand(values.shape, device=DEVICE) < 0.4
    kept[:1, :1] = False
    mask = PackedMask.pack(kept)
    expected = values.masked_fill(~kept, 0)
    assert masking.zero_(values, mask.bits)
    assert torch.equal(values, expected)


class SpiedSweep(masking.Sweep):
    """Notes how many tensors each call was given, and how many it left to others."""

    calls: ClassVar[list[tuple[int, int]]] = []

    def zero_(self, values: Sequence[Tensor], bits: Sequence[Tensor]) -> Sequence[int]:
        left = super().zero_(values, bits)
        self.calls.append((len(values), len(left)))
        return left


@pytest.fixture
def sweeps(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    monkeypatch.setattr(freezing, "Sweep", SpiedSweep)
    SpiedSweep.calls = []
    return SpiedSweep.calls


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the kernels of masks that were launched."""
    from groupsparse.prune.gpu import kernels

    seen: list[str] = []

    class Counted:
        def __init__(self, name: str) -> None:
            self.name, self.kernel = name, getattr(kernels, name)

        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., object]:
            seen.append(self.name)
            return self.kernel[grid]  # type: ignore[no-any-return]

    for name in ("zero", "zero_all"):
        monkeypatch.setattr(kernels, name, Counted(name))
    return seen


def test_frozen_masks_take_one_launch_before_and_one_after_a_step(
    sweeps: list[tuple[int, int]], launches: list[str]
) -> None:
    model = network()
    held = model[1].weight
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    masks = prune.cut(model, sparsity=0.9)
    with masks.frozen(model, optimizer):
        launches.clear()
        for step in range(3):
            for parameter in model.parameters():  # new ones, elsewhere, and of all formats
                parameter.grad = torch.randn_like(parameter)
            before = {name: parameter._version for name, parameter in model.named_parameters()}
            optimizer.step()
            assert launches == ["zero_all"] * 2 * (step + 1)
            for name, mask in masks.items():
                parameter = model.get_parameter(name)
                assert not parameter.detach()[~mask].any()
                assert not parameter.grad[~mask].any()
                assert parameter.grad[mask].all()
                assert parameter._version >= before[name] + 2  # the step's and ours
    assert sweeps == [(6, 0)] * 6
    assert held.detach().count_nonzero() == masks["1.weight"].sum()


def test_what_the_sweep_cannot_do_goes_the_plain_way(
    sweeps: list[tuple[int, int]], launches: list[str]
) -> None:
    model = network()
    model[2].to(torch.float64)
    strided = nn.Conv3d(2, 3, 4, device=DEVICE)
    strided.weight = nn.Parameter(torch.randn(4, 4, 4, 2, 3, device=DEVICE).permute(4, 0, 3, 1, 2))
    model.append(strided)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    masks = prune.cut(model, sparsity=0.9)
    with masks.frozen(model, optimizer):
        launches.clear()
        model[0].weight.grad = None
        for parameter in list(model.parameters())[1:]:
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()
    assert sweeps == [(6, 1), (7, 1)]
    assert launches == ["zero_all"] * 4  # float32 and float64, before and after
    for name, mask in masks.items():
        assert not model.get_parameter(name).detach()[~mask].any()


def test_a_sweep_follows_what_moves() -> None:
    """New values at old addresses, old formats at new ones, new formats, another mask."""
    sweep = masking.Sweep()
    values = [torch.randn(70, 130, device=DEVICE), torch.randn(9, 5, device=DEVICE)]
    masks = [PackedMask.pack(torch.rand(x.shape, device=DEVICE) < 0.5) for x in values]
    moved = [torch.randn_like(x) for x in values]
    turned = [torch.randn(x.shape[::-1], device=DEVICE).t() for x in values]
    others = [PackedMask.pack(torch.rand(x.shape, device=DEVICE) < 0.5) for x in values]
    for given, held in ((values, masks), (values, masks), (moved, masks), (turned, masks),
                        (turned, others), (values[1:], masks[1:]), ([], [])):  # fmt: skip
        for x in given:
            x.normal_()
        expected = [x.masked_fill(~mask.unpack(), 0) for x, mask in zip(given, held, strict=True)]
        assert list(sweep.zero_(given, [mask.bits for mask in held])) == []
        assert all(map(torch.equal, given, expected))


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [
        (torch.empty(4, 3, 2, 2), (1, 48, 0, 0, 1, 1)),
        (torch.empty(7), (1, 7, 0, 0, 1, 1)),
        (torch.empty(3, 5).t(), (5, 3, 0, 1, 5, 0)),
        (torch.empty(4, 1, 3, 3).to(memory_format=torch.channels_last), (1, 36, 0, 0, 1, 1)),
        (torch.empty(8, 3, 4)[:, :, :2], (24, 2, 0, 4, 1, 0)),
        (torch.empty(2**31, device="meta"), None),
    ],
)
def test_layouts(tensor: Tensor, expected: tuple[int, ...] | None) -> None:
    assert tables.layout(tensor) == expected


@pytest.mark.gpu
@pytest.mark.skipif(not ON_GPU, reason="needs a CUDA device")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_the_cut_waits_once(calls: list[int]) -> None:
    model = network()
    prune.cut(model, sparsity=0.5)
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            prune.cut(model, sparsity=0.9)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len([w for w in caught if "synchronizing" in str(w.message)]) == 1
    assert calls == [6, 6]


@pytest.mark.gpu
@pytest.mark.skipif(not ON_GPU, reason="needs a CUDA device")
@pytest.mark.parametrize("kind", ["fused", "foreach", "capturable"])
def test_zeros_stay_in_a_cuda_graph(kind: str) -> None:
    model = nn.Linear(64, 64, device=DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), **{"capturable": True, kind: True})
    x = torch.randn(8, 64, device=DEVICE)

    def step() -> None:
        optimizer.zero_grad(set_to_none=False)
        model(x).square().sum().backward()
        optimizer.step()

    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        step()
    torch.cuda.current_stream().wait_stream(aside)
    masks = prune.cut(model, sparsity=0.9)
    graph = torch.cuda.CUDAGraph()
    with masks.frozen(model, optimizer):
        step()
        with torch.cuda.graph(graph):
            step()
    before = model.weight.detach().clone()
    for _ in range(3):
        graph.replay()
    assert not torch.equal(before, model.weight)
    assert prune.Masks.of(model) == masks


def test_the_warning_counts_what_is_left() -> None:
    """The kernel counts what is not zero: kept entries that were zero before do not count."""
    layer = nn.Linear(8, 2, bias=False, device=DEVICE)
    nn.init.zeros_(layer.weight)
    found = prune.select(layer, "Linear")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        cutting.cut_by(found, None, 0.25)
    assert [w.category for w in caught] == [prune.LayerCollapse]


@pytest.mark.gpu
@pytest.mark.skipif(not ON_GPU, reason="needs a CUDA device")
def test_a_value_that_is_not_finite_leaves_the_model_as_it_is() -> None:
    model = network()
    with torch.no_grad():
        model[4].weight[3, 2] = math.nan
    before = copy.deepcopy(model)
    with pytest.raises(NonFiniteInput, match=r"4\.weight: index \(3, 2\) is nan"):
        prune.project_(model, prune.Plan(0.8))
    for one, other in zip(model.parameters(), before.parameters(), strict=True):
        assert torch.equal(one.nan_to_num(), other.nan_to_num())
