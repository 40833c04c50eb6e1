"""The plan that an inducer keeps on a GPU gives what a call of the core gives.

Without a CUDA device its kernels run in Triton's interpreter, on the CPU's own memory.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import groupsparse as gs
from groupsparse import device, prune
from groupsparse.prune import induce, standing
from tests.on_device import DEVICE, ON_GPU

PLANS: dict[str, Callable[[], prune.Plan]] = {
    "model": lambda: prune.Plan(0.7),
    "layer": lambda: prune.Plan.paper(0.7),
    "weights": lambda: prune.Plan(
        0.7, weights={"0": torch.linspace(0.5, 1.5, 108).reshape(4, 3, 3, 3)}
    ),
}


@pytest.fixture(autouse=True)
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The plans of the core that were made, each by the number of its tensors."""
    monkeypatch.setattr(standing, "_on_device", lambda parameters: True)
    seen: list[int] = []
    original = device.Projector

    def spy(tensors: Any, **options: Any) -> device.Projector:
        seen.append(len(tensors))
        return original(tensors, **options)

    monkeypatch.setattr(device, "Projector", spy)
    return seen


@pytest.fixture
def otherwise(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many groups went the way without a plan that is kept."""
    seen: list[int] = []
    original = induce.project_groups_

    def spy(groups: Any, *rest: Any) -> Any:
        seen.append(len(groups))
        return original(groups, *rest)

    monkeypatch.setattr(induce, "project_groups_", spy)
    return seen


def network(last: nn.Module | None = None) -> nn.Module:
    torch.manual_seed(3)
    last = last or nn.Conv2d(6, 5, 2)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 6, 1), last).to(DEVICE)


def targeted(model: nn.Module) -> list[torch.Tensor]:
    return [t.parameter.detach() for t in prune.select(model, ("Conv2d", "ConvTranspose2d"))]


def assert_close(one: nn.Module, other: nn.Module) -> None:
    for mine, theirs in zip(targeted(one), targeted(other), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
        assert mine.stride() == theirs.stride()


def away(model: nn.Module) -> nn.Module:
    """The same step of training, wherever the parameters are."""
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape).to(parameter.device), alpha=0.1)
    return model


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_projections_are_those_of_a_call(
    made: list[int], otherwise: list[int], plan: Callable[[], prune.Plan]
) -> None:
    ours, theirs = network(), network()
    inducer = prune.Inducer(ours, plan())
    for _ in range(3):
        inducer.project()
        expected = prune.project_(theirs, plan())
        assert_close(ours, theirs)
        for found, other in zip(inducer.projections, expected, strict=True):
            assert (found.kernel, found.target) == ("triton", other.target)
            assert found.hoyer == pytest.approx(other.hoyer, abs=1e-5)
            assert found.multiplier == pytest.approx(other.multiplier, rel=1e-3)
        away(ours), away(theirs)
    assert (made, otherwise) == ([3], [])


def test_values_and_numbers_of_a_certificate_are_its_own() -> None:
    model = network()
    inducer = prune.Inducer(model, prune.Plan(0.6))
    inducer.project()
    [first] = inducer.projections
    assert list(first.value) == ["0.weight", "1.weight", "2.weight"]
    assert first.value["1.weight"].data_ptr() == model[1].weight.data_ptr()
    plan = inducer._standing._plan
    assert plan is not None
    multiplier = float(plan.state[0])
    away(model)
    version = model[0].weight._version
    inducer.project()
    assert model[0].weight._version > version  # autograd knows
    assert first.multiplier == multiplier != inducer.projections[0].multiplier


def test_multipliers_are_reused_and_come_back_from_a_checkpoint(made: list[int]) -> None:
    model = network()
    inducer = prune.Inducer(model, prune.Plan(0.6))
    inducer.project()
    resumed_model = copy.deepcopy(model)
    resumed = prune.Inducer(resumed_model, prune.Plan(0.6))
    resumed.load_state_dict(inducer.state_dict())
    for each in (away(model), away(resumed_model)):
        assert each is not None
    before = inducer.projections[0].multiplier
    inducer.project()
    resumed.project()
    for each in (inducer, resumed):
        plan = each._standing._plan
        assert plan is not None
        assert float(plan.settings[0, 1]) == before  # where the search began
    for mine, theirs in zip(targeted(model), targeted(resumed_model), strict=True):
        assert torch.equal(mine, theirs)
    assert inducer.projections[0].multiplier == resumed.projections[0].multiplier
    assert made == [3, 3]


def moved(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()


def channels_last(model: nn.Module) -> None:
    model.to(memory_format=torch.channels_last)


def turned(model: nn.Module) -> None:
    """Other strides at the same address."""
    weight = model[1].weight
    weight.data = weight.data.as_strided(weight.shape, (1, 6, 1, 1))


def emptied_and_filled(model: nn.Module) -> None:
    """As what takes memory away between steps does: the same storage, elsewhere."""
    for parameter in model.parameters():
        held, storage = parameter.detach().clone(), parameter.untyped_storage()
        size = storage.size()
        storage.resize_(0)
        blocker = torch.empty(size, dtype=torch.uint8, device=DEVICE)
        storage.resize_(size)
        parameter.data.copy_(held)
        del blocker


# Memory that NumPy saw, as the interpreter shows it everything, cannot be taken away.
FILLED = pytest.param(
    emptied_and_filled, marks=pytest.mark.skipif(not ON_GPU, reason="needs a CUDA device")
)


@pytest.mark.parametrize("change", [moved, channels_last, turned, FILLED])
def test_parameters_may_move(otherwise: list[int], change: Callable[[nn.Module], None]) -> None:
    ours, theirs = network(), network()
    inducer = prune.Inducer(ours, prune.Plan(0.7))
    inducer.project()
    prune.project_(theirs, prune.Plan(0.7))
    change(ours), change(theirs)
    away(ours), away(theirs)
    inducer.project()
    prune.project_(theirs, prune.Plan(0.7))
    assert_close(ours, theirs)
    assert inducer.projections[0].hoyer == pytest.approx(0.7, abs=1e-5)
    assert otherwise == []


def test_a_copy_projects_its_own_parameters() -> None:
    model = network()
    inducer = prune.Inducer(model, prune.Plan(0.7))
    inducer.project()
    away(model)
    before = [x.clone() for x in targeted(model)]
    other = copy.deepcopy(inducer)
    other.project()
    assert all(map(torch.equal, targeted(model), before))
    copied = [m.target.parameter.detach() for group in other.groups for m in group.members]
    assert gs.average_hoyer([f for x in copied[:2] for f in x.flatten(1)]) > 0.5
    assert not any(map(torch.equal, copied, before))


def test_what_a_plan_cannot_do_goes_the_other_way(made: list[int], otherwise: list[int]) -> None:
    mapped = {("0", "1"): 0.6, "2": 0.7}  # two calls
    for plan in (prune.Plan(0.7, layer_weights={"0": 2.0}), prune.Plan(budget=mapped)):
        prune.Inducer(network(), plan).project()
    assert (made, otherwise) == ([], [1, 2])
    # Vectors that cannot be walked as they lie: the core's copies of them are not kept.
    inducer = prune.Inducer(network(nn.ConvTranspose2d(6, 4, 3, groups=2)), prune.Plan(0.7))
    inducer.project()
    inducer.project()
    assert (made, otherwise) == ([3], [1, 2, 1, 1])
    assert inducer._standing._plan is None
