"""The cut: exactly as many zeros as asked for, the right ones, the same ones every time."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from groupsparse import InvalidInput, NonFiniteInput, prune
from groupsparse.prune import ordering
from groupsparse.prune.ordering import Scores, common_dtype, kth_smallest
from groupsparse.prune.packing import PackedMask, pack_columns, unpack_columns


def zeros(model: nn.Module) -> int:
    return sum(int((t.parameter == 0).sum()) for t in prune.select(model, ("Conv2d", "Linear")))


def linear(values: object, dtype: torch.dtype = torch.float32) -> nn.Linear:
    weight = torch.as_tensor(values, dtype=dtype)
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=dtype)
    with torch.no_grad():
        layer.weight.copy_(weight)
    return layer


@pytest.mark.parametrize("sparsity", [0.0, 1e-3, 0.5, 0.777, 0.95, 0.999])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_exactly_the_smallest(convnet: nn.Module, sparsity: float, dtype: torch.dtype) -> None:
    convnet = convnet.to(dtype)
    before = [t.parameter.detach().clone() for t in prune.select(convnet, ("Conv2d", "Linear"))]
    biases = [p.detach().clone() for p in convnet.parameters() if p.ndim < 2]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", prune.LayerCollapse)
        masks = prune.cut(convnet, sparsity=sparsity)
    wanted = round(sparsity * 1528)
    assert zeros(convnet) == masks.zeros == wanted
    assert masks.entries == 1528
    after = [t.parameter.detach() for t in prune.select(convnet, ("Conv2d", "Linear"))]
    kept = torch.cat([a[m].abs() for a, m in zip(after, masks.values(), strict=True)])
    gone = torch.cat([b[~m].abs() for b, m in zip(before, masks.values(), strict=True)])
    assert wanted in (0, 1528) or kept.min() >= gone.max()
    for a, b, mask in zip(after, before, masks.values(), strict=True):
        assert torch.equal(a, b * mask)
    assert all(map(torch.equal, biases, [p.detach() for p in convnet.parameters() if p.ndim < 2]))


def test_each_layer_for_itself(convnet: nn.Module) -> None:
    masks = prune.cut(convnet, sparsity=0.9, scope="layer")
    assert [int((~mask).sum()) for mask in masks.values()] == [194, 1037, 144]


@pytest.mark.filterwarnings("ignore::groupsparse.prune.LayerCollapse")
def test_ties_go_in_order_of_the_model_and_row_by_row() -> None:
    model = nn.Sequential(linear([[1, -1], [1, 1]]), linear([[-1, 1], [1, 1]]))
    masks = prune.cut(model, sparsity=5 / 8)
    assert [m.tolist() for m in masks.values()] == [
        [[False, False], [False, False]],
        [[False, True], [True, True]],
    ]


def test_ties_do_not_depend_on_the_memory_format() -> None:
    rows = nn.Conv2d(4, 4, 2, bias=False)
    nn.init.constant_(rows.weight, 0.5)
    columns = nn.Conv2d(4, 4, 2, bias=False).to(memory_format=torch.channels_last)
    nn.init.constant_(columns.weight, 0.5)
    assert prune.cut(rows, sparsity=0.3) == prune.cut(columns, sparsity=0.3)


def test_zeros_that_are_there_count() -> None:
    layer = linear([[0.0, -0.0, 3.0, 1.0]])
    assert prune.cut(layer, sparsity=0.75)["weight"].tolist() == [[False, False, True, False]]
    assert layer.weight.tolist() == [[0.0, 0.0, 3.0, 0.0]]
    assert not torch.signbit(layer.weight).any()


def test_a_mixture_of_dtypes_is_compared_exactly() -> None:
    tiny = 1.0 + 2.0**-40
    model = nn.Sequential(linear([[1.0, 2.0]]), linear([[tiny], [3.0]], torch.float64))
    masks = prune.cut(model, sparsity=0.25)
    assert [mask.flatten().tolist() for mask in masks.values()] == [[False, True], [True, True]]


def test_extreme_values() -> None:
    layer = linear([[3e38, 1e-45, 1e-38, -1e-45, 2e-45, 1.0]])
    assert prune.cut(layer, sparsity=0.5)["weight"].tolist() == [
        [True, False, True, False, False, True]
    ]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, -math.nan])
@pytest.mark.parametrize("scope", ["model", "layer"])
@pytest.mark.parametrize("floor", [0, 2])
def test_not_finite_is_named_and_nothing_changes(
    mlp: nn.Module, bad: float, scope: str, floor: int
) -> None:
    with torch.no_grad():
        mlp[2].weight[3, 4] = bad
    before = {name: p.detach().clone() for name, p in mlp.named_parameters()}
    with pytest.raises(NonFiniteInput, match=r"2\.weight .*\(3, 4\)"):
        prune.cut(mlp, sparsity=0.5, scope=scope, floor=floor)
    for name, parameter in mlp.named_parameters():
        assert torch.equal(parameter.nan_to_num(7.0), before[name].nan_to_num(7.0))


@pytest.mark.parametrize(
    "options",
    [
        {"sparsity": 1.01},
        {"sparsity": -0.1},
        {"sparsity": math.nan},
        {"sparsity": 0.5, "scope": "network"},
        {"sparsity": 0.5, "floor": -1},
        {"sparsity": 0.5, "floor": 1.5},
        {"sparsity": 0.5, "floor": 1000},
        {"sparsity": 0.99, "floor": 32},
        {"sparsity": 0.5, "targets": "Conv3d"},
        {"sparsity": 0.5, "scores": {}},
    ],
)
def test_bad_input_leaves_the_model_untouched(mlp: nn.Module, options: dict[str, object]) -> None:
    before = [p.detach().clone() for p in mlp.parameters()]
    with pytest.raises(InvalidInput):
        prune.cut(mlp, **options)  # type: ignore[arg-type]
    assert all(map(torch.equal, before, mlp.parameters()))


def test_sparsity_must_be_a_number(mlp: nn.Module) -> None:
    assert prune.cut(mlp, sparsity=np.float32(0.5)).zeros == 1184  # type: ignore[arg-type]
    assert prune.Plan(np.float32(0.5)).hoyer == 0.5  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        prune.cut(mlp, sparsity="0.5")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        prune.cut(mlp, sparsity=True)


def test_a_layer_without_anything_left_is_named() -> None:
    model = nn.Sequential(linear([[1e-3, 1e-3]]), linear([[1.0], [2.0]]))
    with pytest.warns(prune.LayerCollapse, match=r"nothing is left of 0\.weight"):
        prune.cut(model, sparsity=0.5)
    with pytest.warns(prune.LayerCollapse) as caught:
        prune.baselines.magnitude(model, 0.5)
    assert caught[0].filename.endswith("magnitude.py")
    with pytest.warns(prune.LayerCollapse) as caught:
        prune.cut(model, sparsity=0.5)
    assert caught[0].filename == __file__


@pytest.mark.parametrize("scope", ["model", "layer"])
def test_a_floor_keeps_the_best_of_every_filter(convnet: nn.Module, scope: str) -> None:
    weight = convnet[3].weight.detach()
    best = weight.flatten(1).abs().topk(2, dim=1).indices
    masks = prune.cut(convnet, sparsity=0.85, floor=2, scope=scope)
    kept = masks["3.weight"].flatten(1)
    assert kept.gather(1, best).all()
    assert zeros(convnet) == masks.zeros
    if scope == "model":
        assert masks.zeros == round(0.85 * 1528)
    for name, mask in masks.items():
        filters = mask.flatten(1)
        assert (filters.sum(1) >= 2).all(), name


def test_a_floor_changes_nothing_where_nothing_is_scarce(convnet: nn.Module) -> None:
    import copy

    other = copy.deepcopy(convnet)
    assert prune.cut(convnet, sparsity=0.3) == prune.cut(other, sparsity=0.3, floor=1)


def test_scores_decide(mlp: nn.Module) -> None:
    scores = {t.name: -t.parameter.detach().abs() for t in prune.select(mlp, "Linear")}
    largest = float(torch.cat([s.flatten() for s in scores.values()]).abs().max())
    masks = prune.cut(mlp, sparsity=0.5, scores=scores)
    assert masks.zeros == round(0.5 * (64 * 32 + 320))
    left = [t.parameter.detach().abs().max() for t in prune.select(mlp, "Linear")]
    assert max(left) < largest


def test_scores_that_are_whole_numbers() -> None:
    layer = nn.Linear(3, 3, bias=False)
    order = torch.randperm(9)
    scores = {"weight": (2**40 + order).view(3, 3)}  # in float32 all of them are equal
    masks = prune.cut(layer, 4 / 9, scores=scores)
    assert torch.equal(masks["weight"].view(-1), order >= 4)
    for wrong in (np.ones((3, 3)), torch.ones(3, 3, dtype=torch.complex64), torch.ones(9)):
        with pytest.raises(InvalidInput, match="no real tensor of shape"):
            prune.cut(layer, 0.5, scores={"weight": wrong})  # type: ignore[dict-item]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("seed", range(5))
def test_the_kth_smallest_is_that_of_a_sort(dtype: torch.dtype, seed: int) -> None:
    rng = np.random.default_rng(seed)
    # Many magnitudes, both signs, many ties, and several chunks.
    values = rng.normal(size=3000) * 10.0 ** rng.integers(-30, 30, size=3000)
    values[rng.random(3000) < 0.3] = rng.choice([0.0, -0.0, 1.0, -1.0])
    parts = [torch.as_tensor(part, dtype=dtype) for part in np.split(values, [0, 5, 1111])]
    together = np.sort(torch.cat(parts).numpy())
    for k in (1, 2, 700, 1500, 2999, 3000):
        cutoff = kth_smallest([Scores("", lambda p=p: p) for p in parts], k, dtype)
        assert cutoff.value == together[k - 1]
        assert cutoff.ties == k - int((together < together[k - 1]).sum())


def test_more_than_there_is() -> None:
    with pytest.raises(InvalidInput, match="there are 2"):
        kth_smallest([Scores("a", lambda: torch.ones(2))], 3, torch.float32)


def test_chunks_are_bounded_and_lose_nothing() -> None:
    parts = [torch.randn(700_000), torch.randn(10), torch.randn(2_500_000)]
    scores = [Scores("", lambda p=p: p) for p in parts]
    chunks = [chunk.numel() for chunk in ordering._chunks(scores, torch.float32)]
    assert sum(chunks) == 3_200_010
    assert max(chunks) <= 1 << 18
    k = 1_234_567
    cutoff = kth_smallest(scores, k, common_dtype([p.dtype for p in parts]))
    assert cutoff.value == torch.cat(parts).kthvalue(k).values


@pytest.mark.parametrize("shape", [(1,), (7,), (8,), (9,), (3, 5), (2, 3, 3, 3), (0,)])
def test_packing_is_one_bit_an_entry(shape: tuple[int, ...]) -> None:
    kept = torch.rand(shape) < 0.4
    packed = PackedMask.pack(kept)
    assert torch.equal(packed.unpack(), kept)
    assert packed.bits.numel() == math.ceil(kept.numel() / 8)
    assert packed.zeros == kept.numel() - int(kept.sum())
    numpy = np.packbits(kept.numpy().reshape(-1), bitorder="little")
    assert np.array_equal(packed.bits.numpy(), numpy)


@pytest.mark.parametrize("count", [1, 7, 8, 9, 1000])
def test_other_devices_pack_alike(count: int) -> None:
    kept = torch.rand(count) < 0.4
    bits = PackedMask.pack(kept).bits
    assert torch.equal(pack_columns(kept.view(torch.uint8)), bits)
    assert torch.equal(unpack_columns(bits)[:count].view(torch.bool), kept)


def test_a_mask_of_the_wrong_size_is_refused() -> None:
    with pytest.raises(InvalidInput, match="expected 2 of"):
        PackedMask(torch.zeros(1, dtype=torch.uint8), (3, 4))


def test_cutting_holds_little_memory() -> None:
    """No copy of the parameters: chunks are bounded, and what stays is a bit per entry."""
    layers = [nn.Linear(1000, 1000, bias=False) for _ in range(8)]
    model = nn.Sequential(*layers)
    seen: list[int] = []
    original = ordering._keys

    def spy(scores: Tensor, dtype: torch.dtype) -> Tensor:
        seen.append(scores.numel())
        return original(scores, dtype)

    ordering._keys = spy
    try:
        masks = prune.cut(model, sparsity=0.9)
    finally:
        ordering._keys = original
    assert max(seen) <= 1 << 18
    held = sum(mask.bits.nbytes for mask in masks.packed.values())
    assert held == 1_000_000
