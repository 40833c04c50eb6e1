"""What is projected and to which target: a description that any model can be resolved against."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real

import torch
from torch import Tensor, nn

from ..errors import InvalidInput, UnsupportedType
from .targets import DEFAULT_TARGETS, LINEAR, Matcher, Pattern, Target, as_patterns, select
from .vectors import KINDS, vector_length, vector_view

Budget = str | Mapping[Pattern | tuple[Pattern, ...], float]


@dataclass(frozen=True)
class Member:
    """One parameter in a group: what its vectors are, and what keeping their values is worth."""

    target: Target
    kind: str
    price: float = 1.0
    weights: Tensor | None = None

    def view(self, values: Tensor) -> tuple[Tensor, tuple[int, ...]]:
        """The parameter's values, shaped so that vectors lie along the axes that come with them."""
        return vector_view(self.target, self.kind, values)

    @property
    def length(self) -> int:
        """How many entries one vector has."""
        return vector_length(*self.view(torch.empty(self.target.parameter.shape, device="meta")))


@dataclass(frozen=True)
class Group:
    """Parameters whose vectors share one target and one multiplier."""

    members: tuple[Member, ...]
    hoyer: float


@dataclass(frozen=True)
class Plan:
    """Which parameters are projected, what one vector is, and who shares a target.

    Parameters
    ----------
    hoyer : float
        The target average Hoyer measure, in [0, 1].
    targets, ignore : tuple of str or module classes
        Which parameters: classes, names, or ``re:`` patterns that match a whole name; naming a
        module names everything inside. Biases and norms only if named in full. See `select`.
    vectors : {"filter", "kernel", "layer"} or mapping of patterns to these
        What one vector is: all that makes one output channel (a row of a Linear), one ``k·k``
        kernel, or the whole parameter. In a mapping the first pattern that matches counts, and
        filters are the rest.
    budget : {"model", "layer"} or mapping of patterns to targets
        ``"model"``: all vectors of all layers under one multiplier, so that layers find their own
        level. ``"layer"``: every layer meets the target on its own, as in the paper. A mapping
        gives targets: a pattern's layers each meet its target, those of a tuple of patterns share
        one multiplier; layers that nothing in it names share ``hoyer``.
    layer_weights : mapping of patterns to numbers
        What a layer is worth: λ in the objective Σ λ xᵀ|c|, 1 if not named. A larger one moves
        zeros to other layers of the same group; it has no effect on a layer with its own budget.
    weights : mapping of patterns to tensors
        The weights wᵢ of the weighted projection (in the shape of the parameter or of one vector).

    Examples
    --------
    >>> from torch import nn
    >>> from groupsparse import prune
    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8, 2))
    >>> plan = prune.Plan(hoyer=0.8, ignore=("Linear",))
    >>> [member.target.name for group in plan.resolve(model) for member in group.members]
    ['0.weight']
    """

    hoyer: float = 0.8
    targets: Iterable[Pattern] | Pattern = DEFAULT_TARGETS
    ignore: Iterable[Pattern] | Pattern = ()
    vectors: str | Mapping[Pattern, str] = "filter"
    budget: Budget = "model"
    layer_weights: Mapping[Pattern, float] = field(default_factory=dict)
    weights: Mapping[Pattern, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "targets", as_patterns(self.targets))
        object.__setattr__(self, "ignore", as_patterns(self.ignore))
        _check_target("hoyer", self.hoyer)
        for name, value in (("vectors", self.vectors), ("budget", self.budget)):
            if not isinstance(value, str | Mapping):
                raise UnsupportedType(f"{name} is {value!r}; expected a string or a mapping")
        kinds = [self.vectors] if isinstance(self.vectors, str) else list(self.vectors.values())
        for kind in kinds:
            if kind not in KINDS:
                raise InvalidInput(f"vectors is {kind!r}; expected one of {KINDS}")
        if isinstance(self.budget, str):
            if self.budget not in ("model", "layer"):
                raise InvalidInput(
                    f"budget is {self.budget!r}; expected 'model', 'layer' or a mapping"
                )
        else:
            for pattern, target in self.budget.items():
                _check_target(f"the budget of {pattern!r}", target)
        for name, wanted in (("layer_weights", Real), ("weights", Tensor)):
            given = getattr(self, name)
            if not isinstance(given, Mapping):
                raise UnsupportedType(f"{name} is {given!r}; expected a mapping of patterns")
            for pattern, value in given.items():
                if not isinstance(value, wanted):
                    raise UnsupportedType(
                        f"{name}: {pattern!r} has {value!r}; expected a {wanted.__name__}"
                    )
        for pattern, price in self.layer_weights.items():
            if not 0.0 < price < float("inf"):
                raise InvalidInput(f"the layer weight of {pattern!r} is {price}; expected > 0")

    @classmethod
    def paper(
        cls,
        hoyer: float = 0.8,
        *,
        targets: Iterable[Pattern] | Pattern = DEFAULT_TARGETS,
        ignore: Iterable[Pattern] | Pattern = (),
    ) -> Plan:
        """The paper's setting: each layer its own target, a fully connected layer one vector.

        Examples
        --------
        >>> from groupsparse import prune
        >>> prune.Plan.paper(0.9).budget
        'layer'
        """
        return cls(hoyer, targets, ignore, vectors=dict.fromkeys(LINEAR, "layer"), budget="layer")

    def resolve(self, model: nn.Module) -> list[Group]:
        """The groups of a model, in its order; an error if there is nothing to project."""
        matcher = Matcher(model)
        found = select(model, self.targets, self.ignore)
        members = [self._member(target, matcher) for target in found]
        # Vectors of one entry (a layer with a single input) have no Hoyer measure.
        members = [member for member in members if member.length > 1]
        if not members:
            raise InvalidInput(
                f"every vector of {', '.join(t.name for t in found[:3])} has a single entry, which "
                "has no Hoyer measure; use vectors='layer'"
            )
        self._refuse_unused(found, matcher)
        if self.budget == "model":
            return [Group(tuple(members), float(self.hoyer))]
        if self.budget == "layer":
            return [Group((member,), float(self.hoyer)) for member in members]
        assert not isinstance(self.budget, str)
        return self._mapped(members, self.budget, matcher)

    def _member(self, target: Target, matcher: Matcher) -> Member:
        if isinstance(self.vectors, str):
            kind = self.vectors
        else:
            kinds = (kind for pattern, kind in self.vectors.items() if matcher(pattern, target))
            kind = next(kinds, "filter")
        prices = (p for pattern, p in self.layer_weights.items() if matcher(pattern, target))
        weights = (w for pattern, w in self.weights.items() if matcher(pattern, target))
        own = next(weights, None)
        if own is not None:
            own = own.detach().to(target.parameter.device)
        member = Member(target, kind, float(next(prices, 1.0)), own)
        if member.weights is not None:
            _check_weights(member, member.weights)
        return member

    def _mapped(
        self,
        members: Sequence[Member],
        budget: Mapping[Pattern | tuple[Pattern, ...], float],
        matcher: Matcher,
    ) -> list[Group]:
        groups: list[Group] = []
        left = list(members)
        for key, hoyer in budget.items():
            patterns = key if isinstance(key, tuple) else (key,)
            taken = [m for m in left if any(matcher(p, m.target) for p in patterns)]
            left = [member for member in left if member not in taken]
            if not taken:
                raise InvalidInput(f"the budget of {key!r} matches no parameter left for it")
            if isinstance(key, tuple):
                groups.append(Group(tuple(taken), float(hoyer)))
            else:
                groups.extend(Group((member,), float(hoyer)) for member in taken)
        if left:
            groups.append(Group(tuple(left), float(self.hoyer)))
        return groups

    def _refuse_unused(self, found: Sequence[Target], matcher: Matcher) -> None:
        """A pattern that was written for a layer and meets none is a slip of the pen."""
        for patterns in (self.layer_weights, self.weights):
            for pattern in patterns:
                if not any(matcher(pattern, target) for target in found):
                    raise InvalidInput(f"the weights of {pattern!r} match none of the targets")


def groups_of(model: nn.Module, plan: Plan | None) -> list[Group]:
    """The groups of a model under a plan, the default one where none is given."""
    plan = Plan() if plan is None else plan
    if not isinstance(plan, Plan):
        raise UnsupportedType(f"plan is {plan!r}; expected a prune.Plan, as in Plan(hoyer=0.8)")
    return plan.resolve(model)


def _check_weights(member: Member, weights: Tensor) -> None:
    shape = member.target.parameter.shape
    if weights.shape != shape and weights.numel() != member.length:
        raise InvalidInput(
            f"the weights of {member.target.name} have shape {tuple(weights.shape)}; expected "
            f"{tuple(shape)}, or one vector of {member.length} entries"
        )
    if not bool(((weights >= 0) & torch.isfinite(weights)).all()) or not bool(weights.any()):
        raise InvalidInput(
            f"the weights of {member.target.name} hold a number that is negative or not finite, or "
            "nothing but zeros"
        )


def _check_target(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise UnsupportedType(f"{name} is {value!r}; expected a number in [0, 1]")
    if not 0.0 <= float(value) <= 1.0:
        raise InvalidInput(f"{name} is {value}; expected a number in [0, 1]")
