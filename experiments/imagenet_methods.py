"""The methods that are compared on the trained ResNet-50: all in one shot, to an exact level.

A level is a number of zeros, a projection is given a Hoyer target. `Targets` finds the target at
which the projection alone has just under the wanted zeros (at most 0.2 % of all parameters fewer),
and `prune.cut` sets the smallest of what the projection left to zero, so that all methods have
exactly the same number of zeros. With the original values the zeros are the same ones, and the
survivors are as they were trained.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from groupsparse import prune

PlanOf = Callable[[float], prune.Plan]
Pruned = tuple[prune.Masks, dict[str, float]]
TOLERANCE = 0.002


def plans(model: nn.Module) -> dict[str, PlanOf]:
    """Return the plans for a trained model, each a function of the target.

    With one multiplier for the whole model, a layer whose filters are small pays for the others.
    “Scaled” takes that out: every layer is worth what makes its filters of norm 1 in the mean.
    """
    # Written out: the comparison must not change if the library's defaults do.
    whole: dict[str, Any] = {"vectors": "filter", "budget": "model"}
    parameters = {t.name: t.parameter.detach() for t in prune.select(model, prune.Plan().targets)}
    worth = {name: len(p) ** 0.5 / float(p.norm()) for name, p in parameters.items()}
    return {
        "GSP per layer": prune.Plan.paper,
        "GSP whole model": lambda hoyer: prune.Plan(hoyer, **whole),
        "GSP whole model, scaled": lambda hoyer: prune.Plan(hoyer, layer_weights=worth, **whole),
    }


class Targets:
    """Hoyer targets for numbers of zeros, for one trained model and one kind of plan.

    The zeros of a projection grow with its target, so what earlier searches saw narrows later ones.
    """

    def __init__(self, model: nn.Module, plan: PlanOf) -> None:
        self.model, self.plan = model, plan
        found = prune.select(model, plan(0.5).targets)
        self.parameters = [target.parameter for target in found]
        self.trained = [parameter.detach().clone() for parameter in self.parameters]
        self.entries = sum(parameter.numel() for parameter in self.parameters)
        self.zeros: dict[float, float] = {0.0: self._zeros(), 1.0: 1.0}

    def __call__(self, level: float) -> float:
        """Return the target; the model is left as it was trained."""
        low = max(hoyer for hoyer, zeros in self.zeros.items() if zeros <= level)
        high = min(hoyer for hoyer, zeros in self.zeros.items() if zeros > level)
        while level - self.zeros[low] > TOLERANCE and high - low > 1e-5:
            middle = (low + high) / 2
            prune.project_(self.model, self.plan(middle))
            self.zeros[middle] = self._zeros()
            self.restore()
            low, high = (middle, high) if self.zeros[middle] <= level else (low, middle)
        return low

    @torch.no_grad()
    def restore(self) -> None:
        """Put the trained parameters back."""
        for parameter, trained in zip(self.parameters, self.trained, strict=True):
            parameter.copy_(trained)

    def _zeros(self) -> float:
        kept = torch.stack([parameter.count_nonzero() for parameter in self.parameters]).sum()
        return 1.0 - int(kept) / self.entries


class Methods:
    """Every method by name; each call prunes the trained model it is given, in place."""

    def __init__(self, model: nn.Module, seed: int) -> None:
        self.model, self.seed = model, seed
        self.targets = {name: Targets(model, plan) for name, plan in plans(model).items()}
        simple: dict[str, Callable[[float], prune.Masks]] = {
            "magnitude, global": lambda level: prune.cut(model, level),
            "magnitude, global, floor 1": lambda level: prune.cut(model, level, floor=1),
            "magnitude, per layer": lambda level: prune.cut(model, level, scope="layer"),
            "random": lambda level: prune.baselines.random(model, level, seed=seed),
        }
        self._calls: dict[str, Callable[[float], Pruned]] = {}
        for name in self.targets:
            for values in ("projected", "original"):
                self._calls[f"{name}, {values} values"] = self._projection(name, values)
        for name, method in simple.items():
            self._calls[name] = self._without_target(method)

    @property
    def names(self) -> list[str]:
        """The methods, in the order of the tables."""
        return list(self._calls)

    def prune(self, name: str, level: float) -> Pruned:
        """Prune the model; return its masks and, for a projection, target and zeros before cut."""
        return self._calls[name](level)

    def _projection(self, name: str, values: str) -> Callable[[float], Pruned]:
        def call(level: float) -> Pruned:
            targets = self.targets[name]
            hoyer = targets(level)
            prune.project_(self.model, targets.plan(hoyer))
            masks = prune.cut(self.model, level)
            if values == "original":
                targets.restore()
                masks.apply_(self.model)
            return masks, {"hoyer": hoyer, "zeros before the cut": targets.zeros[hoyer]}

        return call

    def _without_target(self, method: Callable[[float], prune.Masks]) -> Callable[[float], Pruned]:
        return lambda level: (method(level), {})


def state_of(model: nn.Module) -> dict[str, Tensor]:
    """Return a copy of all that a model learned, to be loaded again before each method."""
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def zeros_per_layer(masks: prune.Masks) -> dict[str, Any]:
    """Return the fraction of zeros of every layer, in few digits: there are many records of it."""
    return {name: round(each.zeros / each.numel, 4) for name, each in masks.packed.items()}
