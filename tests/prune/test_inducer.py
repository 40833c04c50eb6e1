"""Induced GSP: when it projects, to what, and that it resumes bit for bit."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, Adam, Optimizer

from groupsparse import InvalidInput, prune
from groupsparse.prune import induce
from groupsparse.prune.schedules import Span


def loss_of(model: nn.Module, step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(16, 64, generator=generator)
    return cross_entropy(model(x), torch.randint(0, 10, (16,), generator=generator))


def train(model: nn.Module, optimizer: Optimizer, first: int, last: int) -> None:
    for step in range(first, last):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()


def sgd(model: nn.Module) -> SGD:
    return SGD(model.parameters(), lr=0.05, momentum=0.9)


class Spy:
    """Notes the step and the targets of every projection."""

    def __init__(self, inducer: prune.Inducer, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[int, float]] = []
        original = induce.project_groups_

        def spy(groups: Any, targets: Any, starts: Any) -> Any:
            self.calls.append((inducer.steps, round(targets[0], 6)))
            return original(groups, targets, starts)

        monkeypatch.setattr(induce, "project_groups_", spy)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"every": 3}, [(3, 0.8), (6, 0.8), (9, 0.8)]),
        ({"every": 4, "start": 3}, [(3, 0.8), (7, 0.8)]),
        ({"every": 4, "start": 2, "stop": 8}, [(2, 0.8), (6, 0.8), (8, 0.8)]),
        ({"every": 2, "stop": 4, "schedule": prune.linear()}, [(2, 0.4), (4, 0.8)]),
        ({"every": 4, "stop": 8, "schedule": prune.cubic()}, [(4, 0.7), (8, 0.8)]),
        ({"every": 2, "stop": 8, "schedule": prune.linear(0.5, until=0.5)},
         [(2, 0.6), (4, 0.8), (6, 0.8), (8, 0.8)]),
        ({"every": 5, "stop": 10, "schedule": lambda u: u * u}, [(5, 0.2), (10, 0.8)]),
    ],
)  # fmt: skip
def test_when_and_to_what(
    mlp: nn.Module,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    expected: list[tuple[int, float]],
) -> None:
    optimizer = sgd(mlp)
    inducer = prune.Inducer(mlp, prune.Plan(0.8), optimizer, **options)
    spy = Spy(inducer, monkeypatch)
    train(mlp, optimizer, 0, 10)
    assert spy.calls == expected
    assert inducer.steps == 10
    assert inducer.projections[0].target == pytest.approx(expected[-1][1])


def test_one_call_of_the_core_for_the_whole_network(
    convnet: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    from groupsparse.prune import projecting

    calls: list[int] = []
    original = projecting.project_each_

    def spy(tensors: Any, *args: Any, **options: Any) -> Any:
        calls.append(len(tensors))
        return original(tensors, *args, **options)

    monkeypatch.setattr(projecting, "project_each_", spy)
    for plan in (prune.Plan(0.8), prune.Plan.paper(0.8)):
        prune.Inducer(convnet, plan).project()
    assert calls == [3, 3]


def test_the_multipliers_are_reused(mlp: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    starts: list[Any] = []
    original = induce.project_groups_

    def spy(groups: Any, targets: Any, start: Any) -> Any:
        starts.append(start)
        return original(groups, targets, start)

    monkeypatch.setattr(induce, "project_groups_", spy)
    optimizer = sgd(mlp)
    prune.Inducer(mlp, prune.Plan(0.8), optimizer, every=1)
    train(mlp, optimizer, 0, 2)
    assert starts[0] is None
    assert starts[1][0].multiplier > 0.0  # the certificate itself: nobody waits for its number
    assert len(starts) == 2


@pytest.mark.parametrize("budget", ["model", "layer"])
def test_certificates_hold_no_copy_of_a_parameter(mlp: nn.Module, budget: str) -> None:
    plan = prune.Plan(0.8, budget=budget, layer_weights={"0": 2.0})
    inducer = prune.Inducer(mlp, plan)
    inducer.project()
    values = [p.value for p in inducer.projections]
    held = list(values[0].values()) if budget == "model" else values
    own = {parameter.data_ptr() for parameter in mlp.parameters()}
    assert len(held) == 2
    assert {value.data_ptr() for value in held} <= own


@pytest.mark.parametrize("budget", ["model", "layer"])
@pytest.mark.parametrize("stop_at", [1, 7, 12])
def test_resuming_is_bit_identical(mlp: nn.Module, budget: str, stop_at: int) -> None:
    import io

    plan = prune.Plan(0.8, budget=budget)
    options: dict[str, Any] = {"every": 3, "start": 2, "stop": 20, "schedule": prune.cubic()}
    straight = copy.deepcopy(mlp)
    optimizer = sgd(straight)
    prune.Inducer(straight, plan, optimizer, **options)
    train(straight, optimizer, 0, 20)

    first = copy.deepcopy(mlp)
    optimizer = sgd(first)
    inducer = prune.Inducer(first, plan, optimizer, **options)
    train(first, optimizer, 0, stop_at)
    file = io.BytesIO()
    torch.save([first.state_dict(), optimizer.state_dict(), inducer.state_dict()], file)

    second = copy.deepcopy(mlp)
    optimizer = sgd(second)
    inducer = prune.Inducer(second, plan, optimizer, **options)
    file.seek(0)
    states = torch.load(file, weights_only=True)
    for part, state in zip((second, optimizer, inducer), states, strict=True):
        part.load_state_dict(state)
    assert inducer.state_dict() == states[2]
    train(second, optimizer, stop_at, 20)
    assert all(map(torch.equal, straight.parameters(), second.parameters()))


def test_a_state_for_another_plan(mlp: nn.Module, convnet: nn.Module) -> None:
    state = prune.Inducer(mlp, prune.Plan(0.8)).state_dict()
    for other in (
        prune.Inducer(mlp, prune.Plan(0.7)),
        prune.Inducer(mlp, prune.Plan(0.8, budget="layer")),
        prune.Inducer(convnet, prune.Plan(0.8)),
    ):
        with pytest.raises(InvalidInput, match="another plan"):
            other.load_state_dict(state)


def test_gradient_accumulation_counts_optimizer_steps(mlp: nn.Module) -> None:
    optimizer = sgd(mlp)
    inducer = prune.Inducer(mlp, prune.Plan(0.8), optimizer, every=2)
    for step in range(8):
        (loss_of(mlp, step) / 4).backward()
        if step % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
    assert inducer.steps == 2
    assert inducer.projections


@pytest.mark.parametrize("fused", [False, True])
def test_a_skipped_step_of_a_gradscaler_does_not_count(mlp: nn.Module, fused: bool) -> None:
    # A fused optimizer is called even so, and finds out within its kernel that it must not move.
    optimizer = SGD(mlp.parameters(), lr=0.05, momentum=0.9, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    inducer = prune.Inducer(mlp, prune.Plan(0.8), optimizer, every=1)
    for step in range(3):
        optimizer.zero_grad()
        scaler.scale(loss_of(mlp, step)).backward()
        if step == 1:
            mlp[0].weight.grad[0, 0] = float("inf")
        scaler.step(optimizer)
        scaler.update()
    assert inducer.steps == 2


def test_several_optimizers_make_one_step_together(mlp: nn.Module) -> None:
    first, second = sgd(mlp[0]), Adam(mlp[2].parameters())
    inducer = prune.Inducer(mlp, prune.Plan(0.8), [first, second], every=1)
    loss_of(mlp, 0).backward()
    first.step()
    assert inducer.steps == 0
    second.step()
    assert inducer.steps == 1
    second.step()
    first.step()
    assert inducer.steps == 2


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # from inside torch.compile
def test_a_compiled_model_sees_the_projection(mlp: nn.Module) -> None:
    compiled: Callable[..., Any] = torch.compile(mlp, backend="eager")  # type: ignore[assignment]
    optimizer = sgd(mlp)
    inducer = prune.Inducer(compiled, prune.Plan(0.8), optimizer, every=1)  # type: ignore[arg-type]
    loss_of(compiled, 0).backward()  # type: ignore[arg-type]
    optimizer.step()
    assert inducer.steps == 1
    x = torch.randn(4, 64)
    assert torch.equal(compiled(x), mlp(x))
    assert prune.report(mlp).total.hoyer == pytest.approx(0.8, abs=1e-5)


def test_by_hand(mlp: nn.Module) -> None:
    inducer = prune.Inducer(mlp, prune.Plan(0.8), every=2)
    assert [inducer.step() for _ in range(4)] == [False, True, False, True]


def test_only_its_own_hook_goes(mlp: nn.Module) -> None:
    optimizer = sgd(mlp)
    calls: list[int] = []
    optimizer.register_step_post_hook(lambda *_: calls.append(1))
    with prune.Inducer(mlp, prune.Plan(0.8), optimizer, every=1) as inducer:
        train(mlp, optimizer, 0, 1)
    train(mlp, optimizer, 1, 2)
    assert (inducer.steps, len(calls)) == (1, 2)
    copy.deepcopy(mlp)
    assert list(mlp.state_dict()) == ["0.weight", "0.bias", "2.weight", "2.bias"]


@pytest.mark.parametrize(
    "options",
    [
        {"every": 0},
        {"every": 1.5},
        {"start": 2.0},
        {"stop": True},
        {"start": -1},
        {"start": 5, "stop": 4},
        {"schedule": prune.cubic()},  # without a stop there is nothing to grow towards
    ],
)
def test_bad_input(mlp: nn.Module, options: dict[str, Any]) -> None:
    optimizer = sgd(mlp)
    with pytest.raises(InvalidInput):
        prune.Inducer(mlp, prune.Plan(), optimizer, **options)
    with pytest.raises(InvalidInput):
        prune.Inducer(mlp, prune.Plan(targets="Conv2d"), optimizer)
    assert not optimizer._optimizer_step_post_hooks


def test_a_schedule_that_would_fail_later(mlp: nn.Module) -> None:
    """Where it is given, not after hours of training: the function for its result, a bad number."""
    for schedule, told in (
        (prune.cubic, "such as prune.cubic()"),
        ("cubic", "expected a function"),
        (lambda progress: 2.0 * progress, "returned 2.0 at progress 1"),
        (lambda progress: progress - 1.0, "returned -1.0 at progress 0"),
    ):
        with pytest.raises(InvalidInput, match=re.escape(told)):
            prune.Inducer(mlp, prune.Plan(), stop=9, schedule=schedule)  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match=re.escape(told)):
            prune.baselines.GradualMagnitude(mlp, sgd(mlp), 0.9, stop=9, schedule=schedule)  # type: ignore[arg-type]


def test_no_optimizer_in_the_list(mlp: nn.Module) -> None:
    """It would never do anything, and say nothing."""
    with pytest.raises(InvalidInput, match="no optimizer"):
        prune.Inducer(mlp, prune.Plan(), [])
    with pytest.raises(InvalidInput, match="no optimizer"):
        prune.cut(mlp, 0.5).frozen(mlp, [])


def test_a_state_of_something_else(mlp: nn.Module) -> None:
    inducer = prune.Inducer(mlp, prune.Plan())
    pruner = prune.baselines.GradualMagnitude(mlp, sgd(mlp), 0.9, stop=9)
    with pytest.raises(InvalidInput, match="no state of an inducer"):
        inducer.load_state_dict(pruner.state_dict())
    with pytest.raises(InvalidInput, match="no state of a gradual pruner"):
        pruner.load_state_dict(inducer.state_dict())


def test_an_optimizer_of_another_model(mlp: nn.Module, convnet: nn.Module) -> None:
    optimizer = sgd(convnet)
    with pytest.raises(InvalidInput, match="holds none of the parameters"):
        prune.Inducer(mlp, prune.Plan(), optimizer)
    assert not optimizer._optimizer_step_post_hooks
    prune.Inducer(mlp, prune.Plan(), [optimizer, sgd(mlp)]).remove()  # one of them does


def test_schedules() -> None:
    assert [prune.cubic(initial=0.2)(u) for u in (0.0, 0.5, 1.0)] == pytest.approx([0.2, 0.9, 1.0])
    assert [prune.linear(until=0.5)(u) for u in (-1.0, 0.25, 0.9)] == [0.0, 0.5, 1.0]
    with pytest.raises(InvalidInput):
        prune.linear(initial=1.5)
    with pytest.raises(InvalidInput):
        prune.cubic(until=0.0)
    with pytest.raises(InvalidInput, match="expected one in"):
        Span(1, 0, 10).share(5, lambda u: 2.0)
