"""The methods of the tables, attached to a slot: all of them through `groupsparse.prune`.

A graph cannot run hooks, so each is asked before a step whether it has to act after it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from experiments.jobs import Job, Method
from experiments.slot import Slot
from groupsparse import hoyer, prune
from groupsparse.prune.ordering import Scores, kth_smallest
from groupsparse.prune.schedules import Span
from groupsparse.prune.targets import DEFAULT_TARGETS
from groupsparse.prune.vectors import as_rows

SCORES = ("snip", "grasp", "synflow")  # cuts of fresh parameters
_RAMPS = {"cubic": prune.cubic, "linear": prune.linear}


class Attached(Protocol):
    """What acts between the steps of a trunk."""

    def due(self) -> bool:
        """Whether something happens after the coming step."""
        ...

    def act(self) -> None:
        """Do it, or count the step."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume."""
        ...


def plan_of(model: nn.Module, budget: str, target: float) -> prune.Plan:
    """The plan with this target.

    ``"even"``: one multiplier for the whole model, and layers priced so that it is one threshold
    for the entries of all of them, as in magnitude pruning; else long filters get a lower one.
    """
    if budget == "paper":
        return prune.Plan.paper(target)
    plan = prune.Plan(target)
    if budget == "even":
        [group] = plan.resolve(model)
        prices = {m.target.name: 1.0 / (m.length**0.5 - 1.0) for m in group.members}
        plan = replace(plan, layer_weights=prices)
    return plan


def attach(slot: Slot, job: Job, steps: int) -> Attached | None:
    """What acts during this job, which has so many steps an epoch."""
    method, total = job.method, steps * job.epochs
    # Steps are counted at the paper's batch of 128: about three projections an epoch.
    method = replace(method, every=max(1, round(method.every * 128 / slot.settings.batch)))
    if method.kind == "induced":
        return Induced(slot, method, total)
    if method.kind == "gradual-gsp":
        return GradualProjection(slot, method, total)
    if method.kind == "gradual-magnitude":
        return GradualMagnitude(slot, method, total)
    if method.kind == "induced-gradual":
        # The projection is ahead of the cuts: at its target when half of them are still to come.
        middle = (method.start + method.until) / 2
        ahead = replace(method, start=method.start / 2, until=middle, stop=method.until)
        return Together(Induced(slot, ahead, total), GradualMagnitude(slot, method, total))
    if method.kind in ("plain", "deephoyer"):
        return None
    raise ValueError(f"{method.kind!r} is no method")


def span_of(method: Method, total: int) -> tuple[int, int, float]:
    """First and last step, and the progress between them at which the ramp ends."""
    start, stop = round(method.start * total), max(round(method.stop * total), 1)
    until = (method.until - method.start) / max(method.stop - method.start, 1e-9)
    return start, stop, min(max(until, 1e-6), 1.0)


class Induced:
    """Induced GSP; if ``frozen``, cut by magnitude at the last projection, and the zeros held.

    When the cut happens follows from the count of steps alone, so that is all a state needs.
    """

    def __init__(self, slot: Slot, method: Method, total: int) -> None:
        start, stop, until = span_of(method, total)
        ramp = prune.constant() if method.ramp == "constant" else _RAMPS[method.ramp](until=until)
        self.slot, self.method = slot, method
        self.inducer = prune.Inducer(
            slot.model,
            plan_of(slot.model, method.budget, method.hoyer),
            None,
            every=method.every,
            start=start,
            stop=stop,
            schedule=ramp,
        )

    def due(self) -> bool:
        return self.inducer.span.due(self.inducer.steps + 1)

    def act(self) -> None:
        if not self.inducer.step():
            return
        if self.method.frozen and self.inducer.steps == self.inducer.span.stop:
            level, floor = self.method.level, self.method.floor
            self.slot.hold(prune.baselines.magnitude(self.slot.model, level, floor=floor))
        elif self.method.momentum:
            self.slot.project_momentum()

    def state_dict(self) -> dict[str, Any]:
        return self.inducer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.inducer.load_state_dict(state)


class GradualMagnitude:
    """Gradual magnitude pruning; the zeros are held by the slot's masks."""

    def __init__(self, slot: Slot, method: Method, total: int) -> None:
        self.slot = slot
        # Never steps: the slot's own step does, and keeps the zeros.
        idle = torch.optim.SGD(slot.model.parameters(), lr=0.0)
        self.pruner = prune.baselines.GradualMagnitude(
            slot.model,
            idle,
            method.level,
            every=method.every,
            start=round(method.start * total),
            stop=round(method.until * total),
            floor=method.floor,
        )

    def due(self) -> bool:
        return self.pruner.span.due(self.pruner.steps + 1)

    def act(self) -> None:
        if self.pruner.step():
            assert self.pruner.masks is not None
            self.slot.hold(self.pruner.masks)

    def state_dict(self) -> dict[str, Any]:
        return self.pruner.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.pruner.load_state_dict(state)


class Together:
    """Several of these, one after the other in every step."""

    def __init__(self, *parts: Attached) -> None:
        self.parts = parts

    def due(self) -> bool:
        return any(part.due() for part in self.parts)

    def act(self) -> None:
        for part in self.parts:
            part.act()

    def state_dict(self) -> dict[str, Any]:
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for part, own in zip(self.parts, state["parts"], strict=True):
            part.load_state_dict(own)


class GradualProjection:
    """Projections whose target rises so that they themselves have the zeros that are wanted.

    The fraction of zeros follows the cubic schedule up to ``until``. ``frozen``: zeros stay zero
    from one projection to the next. ``values="original"``: only the support is the projection's.
    """

    def __init__(self, slot: Slot, method: Method, total: int) -> None:
        self.slot, self.method, self.steps = slot, method, 0
        start, stop, until = span_of(method, total)
        self.schedule = prune.cubic(until=until)
        if method.frozen:  # nothing is left to do once the last zeros are held
            stop, self.schedule = max(round(method.until * total), 1), prune.cubic()
        self.span = Span(method.every, start, stop)

    def due(self) -> bool:
        return self.span.due(self.steps + 1)

    def act(self) -> None:
        self.steps += 1
        if not self.span.due(self.steps):
            return
        level = self.method.level * self.span.share(self.steps, self.schedule)
        project_to_sparsity(self.slot.model, level, self.method.budget, self.method.values)
        if self.method.frozen:
            self.slot.hold(prune.Masks.of(self.slot.model))
        elif self.method.momentum:
            self.slot.project_momentum()

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]


def project_to_sparsity(model: nn.Module, level: float, budget: str, values: str) -> float:
    """Project once, to the target at which that fraction of entries becomes zero; return it."""
    if level <= 0.0:
        return 0.0
    search = _searched if budget == "paper" else target_of
    target = search(model, level, budget)
    prune.project_(model, plan_of(model, budget, target), values=values)
    return target


@torch.no_grad()
def target_of(model: nn.Module, level: float, budget: str = "model") -> float:
    """The target of the whole model at which the projection has this fraction of zeros.

    An entry of a layer with price λ becomes zero where λ |c| (√n − 1) is at most the multiplier, so
    the multiplier is a quantile; the target is the average Hoyer measure of what it leaves.
    """
    [group] = plan_of(model, budget, 0.5).resolve(model)
    rows = [as_rows(*member.view(member.target.parameter.detach())) for member in group.members]
    prices = [member.price * (member.length**0.5 - 1.0) for member in group.members]
    scores = [
        Scores(m.target.name, lambda row=row, price=price: row.abs() * price)
        for m, row, price in zip(group.members, rows, prices, strict=True)
    ]
    entries = sum(row.numel() for row in rows)
    multiplier = kth_smallest(scores, round(level * entries), torch.float32).value
    total, count = torch.zeros((), dtype=torch.float64, device=rows[0].device), 0
    for row, price in zip(rows, prices, strict=True):
        left = (row.abs() - multiplier / price).clamp_(min=0.0)
        measures = torch.as_tensor(hoyer(left, axis=-1), device=row.device)  # an empty row: 1
        total += measures.double().sum()
        count += len(row)
    return min(float(total) / count, 1.0)


@torch.no_grad()
def _searched(model: nn.Module, level: float, budget: str, rounds: int = 14) -> float:
    """The same by bisection, for targets that layers meet on their own."""
    found = prune.select(model, DEFAULT_TARGETS)
    before = [target.parameter.detach().clone() for target in found]
    entries = sum(value.numel() for value in before)
    low, high = 0.0, 1.0
    for _ in range(rounds):
        middle = (low + high) / 2
        prune.project_(model, plan_of(model, budget, middle))
        zeros = entries - sum(int(target.parameter.count_nonzero()) for target in found)
        low, high = (middle, high) if zeros < level * entries else (low, middle)
        for target, value in zip(found, before, strict=True):
            target.parameter.copy_(value)
    return low  # the side with fewer zeros: the cut takes the rest


def cut(slot: Slot, job: Job) -> prune.Masks | None:
    """What happens before the first step of a job: the zeros that it holds, or None."""
    model, level = slot.model, job.level
    baselines = prune.baselines
    match job.cut.split("/"):
        case ["none"]:
            return None
        case ["keep"]:
            return prune.Masks.of(model)
        case ["magnitude"]:
            return baselines.magnitude(model, level)
        case ["magnitude", "floor"]:
            return baselines.magnitude(model, level, floor=1)
        case ["magnitude", "layer"]:
            return baselines.magnitude(model, level, scope="layer")
        case ["random"]:
            return baselines.random(model, level, seed=job.seed)
        case ["project", budget, values]:
            project_to_sparsity(model, level, budget, values)
            return prune.cut(model, level)
        case ["snip"]:
            model.train()
            return baselines.snip(model, level, slot.loss_on(batch_of(slot), job.seed))
        case ["grasp"]:
            model.train()
            return baselines.grasp(model, level, slot.loss_on(batch_of(slot), job.seed, 200.0))
        case ["synflow"]:
            example: Tensor = slot.data.train.pixels[:1].float()
            return baselines.synflow(model, level, example)
    raise ValueError(f"{job.cut!r} is no cut")


def batch_of(slot: Slot) -> int:
    """How many images scores at initialisation are computed from."""
    return min(512, slot.data.count("search"))
