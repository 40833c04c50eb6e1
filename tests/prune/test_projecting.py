"""Single-shot GSP: the core's answer, on a network's own parameters."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor, nn

import groupsparse as gs
from groupsparse import InvalidInput, NonFiniteInput, prune
from groupsparse.prune.vectors import as_rows, vector_view


def rows(model: nn.Module, kind: str = "filter") -> list[Tensor]:
    return [as_rows(*vector_view(t, kind)).clone() for t in prune.select(model, ("re:.*",))]


def average(matrices: list[Tensor]) -> float:
    return gs.average_hoyer([row.double() for matrix in matrices for row in matrix])


def kept(before: list[Tensor], after: list[Tensor], worth: list[float]) -> float:
    """The objective Σ λ xᵀ|c|, with x the direction of z."""
    return sum(
        value * float((c.double() * nn.functional.normalize(z.double())).sum())
        for c, z, value in zip(before, after, worth, strict=True)
    )


@pytest.mark.parametrize("hoyer", [0.5, 0.8, 0.95])
@pytest.mark.parametrize("kind", ["filter", "kernel", "layer"])
def test_one_target_for_the_model(convnet: nn.Module, hoyer: float, kind: str) -> None:
    before = {n: p.detach().clone() for n, p in convnet.named_parameters()}
    expected = gs.project([r.double() for m in rows(convnet, kind) for r in m], hoyer)
    [p] = prune.project_(convnet, prune.Plan(hoyer, vectors=kind))
    assert average(rows(convnet, kind)) == pytest.approx(hoyer, abs=1e-6)
    assert abs(p.residual) < 1e-6
    got = [r for m in rows(convnet, kind) for r in m]
    for mine, core in zip(got, expected, strict=True):
        torch.testing.assert_close(mine.double(), core, rtol=0, atol=1e-6)
    for name, parameter in convnet.named_parameters():
        assert parameter.ndim > 1 or torch.equal(parameter, before[name])


def test_one_target_per_layer(convnet: nn.Module) -> None:
    projections = prune.project_(convnet, prune.Plan.paper(0.7))
    assert len(projections) == 3
    for index in (0, 3):
        assert average([convnet[index].weight.detach().flatten(1)]) == pytest.approx(0.7, abs=1e-6)
    assert float(gs.hoyer(convnet[7].weight.detach(), axis=None)) == pytest.approx(0.7, abs=1e-6)


def test_budgets_by_pattern(convnet: nn.Module) -> None:
    plan = prune.Plan(0.5, budget={("0", "7"): 0.9, "3": 0.6})
    shared, single = prune.project_(convnet, plan)
    outer = [convnet[0].weight.detach().flatten(1), convnet[7].weight.detach()]
    assert average(outer) == pytest.approx(0.9, abs=1e-6)
    assert average([convnet[3].weight.detach().flatten(1)]) == pytest.approx(0.6, abs=1e-6)
    assert (shared.target, single.target) == (0.9, 0.6)


def test_layers_find_their_own_level(mlp: nn.Module) -> None:
    with torch.no_grad():
        mlp[0].weight.mul_(0.1)
    prune.project_(mlp, prune.Plan(0.8))
    first, second = (gs.hoyer(mlp[i].weight.detach()).mean() for i in (0, 2))
    assert first > 0.82 > 0.78 > second


def test_channels_last_and_transposed_layers() -> None:
    torch.manual_seed(1)
    plain = nn.Sequential(nn.Conv2d(4, 8, 3), nn.ConvTranspose2d(8, 6, 3, groups=2))
    strided = copy.deepcopy(plain).to(memory_format=torch.channels_last)
    strides = [p.stride() for p in strided.parameters()]
    prune.project_(plain, prune.Plan(0.7))
    prune.project_(strided, prune.Plan(0.7))
    assert [p.stride() for p in strided.parameters()] == strides
    for a, b in zip(plain.parameters(), strided.parameters(), strict=True):
        torch.testing.assert_close(a, b)
    assert average(rows(strided)) == pytest.approx(0.7, abs=1e-6)


def test_tied_parameters_are_projected_once() -> None:
    torch.manual_seed(0)
    alone = nn.Linear(16, 16)
    twice = nn.Sequential(copy.deepcopy(alone), nn.Linear(16, 16))
    twice[1].weight = twice[0].weight
    prune.project_(alone, prune.Plan(0.7))
    prune.project_(twice, prune.Plan(0.7))
    assert torch.equal(alone.weight, twice[1].weight)


def test_the_mask_alone_keeps_the_values(convnet: nn.Module) -> None:
    other = copy.deepcopy(convnet)
    before = rows(convnet)
    prune.project_(convnet, prune.Plan(0.8), values="original")
    prune.project_(other, prune.Plan(0.8))
    assert prune.Masks.of(convnet) == prune.Masks.of(other)
    for kept, old, projected in zip(rows(convnet), before, rows(other), strict=True):
        assert torch.equal(kept, old * (projected != 0))
        assert not torch.equal(kept, projected)


def test_what_a_layer_is_worth(mlp: nn.Module) -> None:
    """Each answer is the better one in its own objective."""
    even, dear = copy.deepcopy(mlp), copy.deepcopy(mlp)
    before = rows(mlp)
    prune.project_(even, prune.Plan(0.8))
    prune.project_(dear, prune.Plan(0.8, layer_weights={"2": 5.0}))
    assert average(rows(dear)) == pytest.approx(0.8, abs=1e-6)
    assert int((dear[2].weight == 0).sum()) < int((even[2].weight == 0).sum())
    for best, other, worth in ((dear, even, [1.0, 5.0]), (even, dear, [1.0, 1.0])):
        assert kept(before, rows(best), worth) > kept(before, rows(other), worth) + 0.01


def test_a_price_does_not_round_what_stays(mlp: nn.Module) -> None:
    before = [p.detach().clone() for p in mlp.parameters()]
    prune.project_(mlp, prune.Plan(0.05, layer_weights={"Linear": 3.7}))  # sparse enough already
    assert all(map(torch.equal, before, mlp.parameters()))


def test_a_price_for_everything_changes_nothing(mlp: nn.Module) -> None:
    other = copy.deepcopy(mlp)
    prune.project_(mlp, prune.Plan(0.8))
    prune.project_(other, prune.Plan(0.8, layer_weights={"re:.*": 16.0}))
    assert all(map(torch.equal, mlp.parameters(), other.parameters()))


@pytest.mark.parametrize("shape", ["parameter", "vector"])
def test_weights_of_the_weighted_projection(mlp: nn.Module, shape: str) -> None:
    weights = torch.rand(64) + 0.5
    given = weights.expand(32, 64) if shape == "parameter" else weights
    expected = gs.project(mlp[0].weight.detach().clone(), 0.7, weights=weights)
    prune.project_(mlp, prune.Plan(0.7, budget="layer", weights={"0": given}))
    torch.testing.assert_close(mlp[0].weight.detach(), expected)
    average = gs.average_hoyer(mlp[0].weight.detach(), weights=weights)
    assert average == pytest.approx(0.7, abs=1e-6)


@pytest.mark.parametrize(
    "weights", [torch.ones(63), torch.ones(64, 32), torch.zeros(64), -torch.ones(64)]
)
def test_impossible_weights_leave_everything_untouched(mlp: nn.Module, weights: Tensor) -> None:
    before = [p.detach().clone() for p in mlp.parameters()]
    with pytest.raises(InvalidInput, match=r"weights of 0\.weight"):
        prune.project_(mlp, prune.Plan(0.7, weights={"0": weights}))
    assert all(map(torch.equal, before, mlp.parameters()))


@pytest.mark.parametrize("budget", ["model", "layer", {("0", "7"): 0.9, "3": 0.6}])
def test_a_nan_leaves_everything_untouched(convnet: nn.Module, budget: object) -> None:
    with torch.no_grad():
        convnet[7].weight[3, 4] = math.nan
    before = [p.detach().clone() for p in convnet.parameters()]
    with pytest.raises(NonFiniteInput, match=r"7\.weight"):
        prune.project_(convnet, prune.Plan(0.7, budget=budget))  # type: ignore[arg-type]
    for old, new in zip(before, convnet.parameters(), strict=True):
        assert torch.equal(old.nan_to_num(9.0), new.detach().nan_to_num(9.0))


def test_bad_input(mlp: nn.Module) -> None:
    with pytest.raises(InvalidInput, match="values is 'mask'"):
        prune.project_(mlp, prune.Plan(), values="mask")
    with pytest.raises(InvalidInput, match="match no parameter"):
        prune.project_(mlp, prune.Plan(targets="Conv2d"))
    with torch.device("meta"):
        model = nn.Linear(4, 4)
    with pytest.raises(InvalidInput, match="meta"):
        prune.project_(model, prune.Plan())
    for call in (prune.project_, prune.report, prune.Inducer):
        with pytest.raises(TypeError, match=r"plan is 0.8; expected a prune.Plan"):
            call(mlp, 0.8)  # type: ignore[operator]
        with pytest.raises(TypeError, match=r"model is a Tensor; expected a torch.nn.Module"):
            call(mlp[0].weight.data, prune.Plan())  # type: ignore[operator]


def test_autograd_knows_that_the_parameters_changed(mlp: nn.Module) -> None:
    loss = (mlp[0].weight.square()).sum()
    prune.project_(mlp, prune.Plan(0.8))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
