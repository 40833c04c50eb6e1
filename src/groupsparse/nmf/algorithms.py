"""The algorithms by name: which update each factor gets, and whether the steps are extrapolated."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..errors import InvalidInput
from .constraints import Target
from .updates import FastGradient, Hals, PenalisedHals, ShrunkHals, Update

SOLVERS = ("auto", "ahals", "nenmf", "l1-ahals", "csp", "gsp")

# The paper alternates plainly. gspNMF gains so much from going further (docs/nmf.md) that it does
# unless told otherwise; the others are what the paper compares with.
EXTRAPOLATED = ("auto", "gsp")

# Sweeps per update of the default solver. Beside a factor under a target few are better than many:
# neither factor should settle while the other is still far away.
PLAIN_SWEEPS = 6
FREE_SWEEPS = 2
CONSTRAINED_SWEEPS = 4

# Gradient steps per update of NeNMF, gspNMF and cspNMF.
GRADIENT_STEPS = 15


@dataclass(frozen=True)
class Algorithm:
    """An update for each factor."""

    update_w: Update
    update_h: Update
    accelerate: bool


def make_algorithm(
    solver: str,
    shape: tuple[int, int],
    r: int,
    target_w: Target | None,
    target_h: Target | None,
    extrapolate: bool | None = None,
) -> Algorithm:
    """The algorithm called ``solver`` for an n × m matrix and r components."""
    n, m = shape
    accelerate = solver in EXTRAPOLATED if extrapolate is None else bool(extrapolate)
    if solver not in SOLVERS:
        raise InvalidInput(f"solver is {solver!r}; expected one of {', '.join(SOLVERS)}")
    targets = [target for target in (target_w, target_h) if target is not None]
    if solver == "l1-ahals" and any(target.weights is not None for target in targets):
        raise InvalidInput("solver='l1-ahals' counts zeros and knows no weights_W or weights_H")
    if solver in ("ahals", "nenmf"):
        if targets:
            raise InvalidInput(
                f"solver={solver!r} knows no sparsity: leave out hoyer_W and hoyer_H, "
                "or choose 'auto', 'gsp', 'csp' or 'l1-ahals'"
            )
        if solver == "nenmf":
            return Algorithm(FastGradient(GRADIENT_STEPS), FastGradient(GRADIENT_STEPS), accelerate)
    if solver == "auto":
        free = Hals(PLAIN_SWEEPS if target_w is None and target_h is None else FREE_SWEEPS)
        return Algorithm(
            free if target_w is None else ShrunkHals(CONSTRAINED_SWEEPS, target_w),
            free if target_h is None else ShrunkHals(CONSTRAINED_SWEEPS, target_h),
            accelerate,
        )
    # A-HALS leaves its sweeps early where they no longer move much. What may come in pieces is not
    # left early, since how far it moves would depend on how it is cut.
    # Beside a factor under a target fewer are better, for the reason given above.
    share = 1.0 if solver == "ahals" else 0.5
    return Algorithm(
        _update(solver, target_w, Hals(inner_sweeps(n, m, r, share))),
        _update(solver, target_h, Hals(inner_sweeps(m, n, r, share), delta=0.01)),
        accelerate,
    )


def inner_sweeps(own: int, other: int, r: int, share: float) -> int:
    """How many sweeps cost as much as that share of a look at the data, and one more."""
    ratio = 1.0 + (own * other + other * r) / (own * (r + 1.0))
    return 1 + int(share * ratio)


def _update(solver: str, target: Target | None, ahals: Hals) -> Update:
    if target is None:
        return ahals
    if solver == "l1-ahals":
        return PenalisedHals(1, zeros=target.hoyer)
    if solver == "csp":
        target = replace(target, per_vector=True)
    return FastGradient(GRADIENT_STEPS, target)
