"""The loop: update W, update H, extrapolate, accept or restart, remember the best."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..sparsity import average_hoyer
from .arrays import (
    Vector,
    as_dtype_of,
    as_vector,
    copy,
    dot,
    gram_of,
    is_tensor,
    like,
    on_host,
    row_squares,
)
from .samples import Samples, State, Sums, extrapolated
from .updates import ShrunkHals, Update

# A random start says nothing about what should be sparse: the first iterations run free of the
# target, which only what is reported has to meet. In those that follow, constrained rows go from
# equal shares of the burden to those that their energies ask for.
WARM_UP, RAMP = 30, 100
CHECK_EVERY = 10
# A component is given up after so many useless iterations: some come back by themselves.
PATIENCE = 10


@dataclass(frozen=True)
class Progress:
    """What a callback sees after each iteration: the best factorisation so far.

    Attributes
    ----------
    iteration
        How many iterations have been made.
    loss
        ‖X − WH‖_F/‖X‖_F.
    seconds
        Time since the first iteration began.
    components
        H, before it is scaled as in ``components_``.
    codes
        W with one row per component, not scaled either; for a Dask array one piece per chunk.

    Examples
    --------
    >>> import numpy as np
    >>> from groupsparse.nmf import GroupSparseNMF
    >>> def good_enough(progress):
    ...     return progress.loss < 0.45
    >>> x = np.random.default_rng(0).random((30, 20))
    >>> model = GroupSparseNMF(4, callback=good_enough, random_state=0).fit(x)
    >>> model.stopped_by_
    'callback'
    """

    iteration: int
    loss: float
    seconds: float
    components: Any = field(repr=False)
    codes: Any = field(repr=False)

    @property
    def hoyer(self) -> float:
        """Average Hoyer measure of the components."""
        rows = self.components.detach().cpu() if is_tensor(self.components) else self.components
        return average_hoyer(rows) if rows.shape[1] > 1 else float("nan")


Callback = Callable[[Progress], Any]


@dataclass(frozen=True)
class Limits:
    """When to stop."""

    max_iter: int
    tol: float = 0.0
    max_time: float | None = None


@dataclass(frozen=True)
class Best:
    """The best factorisation met; replaced as a whole, so that no interrupt can mix two of them."""

    state: State
    h: Any
    loss: float
    code_norms: Vector  # of the rows of W


@dataclass
class Outcome:
    """The best factorisation met, and how the search for it went."""

    best: Best
    losses: list[float] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    revived: int = 0
    reason: str = "max_iter"

    def note(self, seconds: float) -> None:
        """Remember how good the best is now."""
        self.times.append(seconds)
        self.losses.append(self.best.loss)


class Extrapolation:
    """How far to go beyond each update (Ang and Gillis, 2019): further while it helps."""

    def __init__(self) -> None:
        self.momentum = self.last_good = 0.5
        self.bound = 1.0

    def accepted(self) -> None:
        self.last_good = self.momentum
        self.momentum = min(self.bound, 1.01 * self.momentum)
        self.bound = min(1.0, 1.005 * self.bound)

    def rejected(self) -> None:
        self.bound = self.last_good
        self.momentum /= 1.5


class NoExtrapolation(Extrapolation):
    """The plain alternation of the paper's algorithms: every update is taken as it is."""

    def __init__(self) -> None:
        self.momentum = 0.0

    def accepted(self) -> None: ...

    def rejected(self) -> None: ...


def alternate(
    samples: Samples,
    update_w: Update,
    update_h: Update,
    w: Any,
    h: Any,
    limits: Limits,
    *,
    accelerate: bool,
    rng: np.random.RandomState,
    feasible: bool = False,
    callback: Callback | None = None,
) -> Outcome:
    """Improve W and H from the given start.

    Returns the best pair that was met, which meets all targets: the losses of the outcome never
    rise. A start that is ``feasible``, that is, meets all targets itself, is one of the pairs.
    Ctrl-C ends the search like any other limit.
    """
    began = time.perf_counter()
    search = _Search(samples, update_w, update_h, w, h, accelerate, rng)
    outcome = search.outcome
    ramp = 0
    if feasible:
        search.keep_start()
    else:
        ramp = search.plan(limits.max_iter)
    try:
        for iteration in range(limits.max_iter):
            search.begin(iteration)
            search.step()
            seconds = time.perf_counter() - began
            outcome.note(seconds)
            if callback is not None and callback(_progress(outcome, samples)):
                outcome.reason = "callback"
                break
            if _converged(outcome.losses, limits.tol, ramp):
                outcome.reason = "converged"
                break
            if limits.max_time is not None and seconds >= limits.max_time:
                outcome.reason = "max_time"
                break
    except KeyboardInterrupt:
        if outcome.best.loss == np.inf:
            raise
        outcome.reason = "interrupted"
        if len(outcome.losses) < len(outcome.times):
            outcome.times.pop()
        if not outcome.losses or outcome.best.loss < outcome.losses[-1]:
            outcome.note(time.perf_counter() - began)  # in an iteration that was not finished
    return outcome


def _progress(outcome: Outcome, samples: Samples) -> Progress:
    best, made = outcome.best, len(outcome.times)
    return Progress(made, best.loss, outcome.times[-1], best.h, samples.value(best.state))


def _converged(losses: list[float], tol: float, ramp: int) -> bool:
    if losses[-1] == 0.0:
        return True
    if tol <= 0.0 or len(losses) <= ramp + CHECK_EVERY or len(losses) % CHECK_EVERY:
        return False
    # A fit that is getting exact halves its error for ever: below 0.1 % that is no longer progress.
    return losses[-1 - CHECK_EVERY] - losses[-1] <= tol * max(losses[-1], 1e-3)


class _Search:
    """The current point, the last accepted one and the best one."""

    def __init__(
        self,
        samples: Samples,
        update_w: Update,
        update_h: Update,
        w: Any,
        h: Any,
        accelerate: bool,
        rng: np.random.RandomState,
    ) -> None:
        self.samples = samples
        self.update_h = update_h
        self.constrained = [u for u in (update_w, update_h) if isinstance(u, ShrunkHals)]
        self.extrapolation = Extrapolation() if accelerate else NoExtrapolation()
        self.accelerate = accelerate
        self.restarting = False
        self.rng = rng
        self.state = samples.start(w)
        self.accepted = h
        self.point = h
        self.loss = np.inf
        self.outcome = Outcome(Best(self.state, h, np.inf, np.ones(len(h))))
        self.idle = np.zeros(len(h), dtype=np.intp)
        self.mean: Any = None
        self.warm_up = self.ramp = -1  # no phases

    def keep_start(self) -> None:
        """Go on from a factorisation that is one already, instead of towards the targets."""
        sums = self.samples.sums(self.state)
        loss, codes, _ = self._look(self.state, sums, self.point)
        self.outcome.best = Best(self.state, self.point, loss, np.sqrt(codes))
        for update in self.constrained:
            update.trust = 1.0

    def plan(self, iterations: int) -> int:
        """Divide the iterations into phases, and return where the last one begins."""
        self.warm_up = self.ramp = 0
        if self.constrained:
            self.ramp = min(RAMP, iterations // 3)
            # A W under a target is not relaxed: to report one that meets it would take another
            # reading of the data.
            if len(self.constrained) == 1 and self.constrained[0] is self.update_h:
                self.warm_up = min(WARM_UP, iterations // 6)
                self.constrained[0].relaxed = self.warm_up > 0
        return self.ramp

    def begin(self, iteration: int) -> None:
        """Enter the phase of this iteration. Losses of another phase are not to be compared."""
        if iteration in (self.warm_up, self.ramp):
            self.loss = np.inf
        if self.warm_up <= iteration <= self.ramp:
            for update in self.constrained:
                update.relaxed = False
                update.trust = (iteration - self.warm_up) / max(self.ramp - self.warm_up, 1)

    def step(self) -> None:
        momentum = self.extrapolation.momentum
        state, sums = self.samples.advance(self.state, self.point, momentum)
        h = self.update_h(self.point, sums.patterns, as_dtype_of(sums.gram, self.point))
        loss, codes, parts = self._look(state, sums, h)
        if loss < self.outcome.best.loss:
            self.outcome.best = Best(state, h, loss, np.sqrt(codes))
        if isinstance(self.update_h, ShrunkHals) and self.update_h.relaxed:
            h = self.update_h.free
            loss, codes, parts = self._look(state, sums, h)
        if self.accelerate and not loss <= self.loss and not self.restarting:
            # Too far: start again from the updates before, which were not extrapolated. What that
            # gives is taken in any case: under a target no step is sure to lower the loss.
            self.restarting = True
            self.extrapolation.rejected()
            self.state = State(self.state.updated, self.state.updated)
            self.point = self.accepted
            return
        self.restarting = False
        self.extrapolation.accepted()
        self.point = extrapolated(h, self.accepted, momentum)
        self.state, self.accepted, self.loss = state, h, loss
        self._revive((codes == 0.0) | (parts == 0.0))

    def _look(self, state: State, sums: Sums, h: Any) -> tuple[float, Vector, Vector]:
        """‖X − WH‖/‖X‖, and the squared norms of the rows of W and of H, in one transfer."""
        (linear,), (square,), codes, parts = on_host(
            dot(sums.patterns, h), dot(sums.gram, gram_of(h)), sums.gram.diagonal(), row_squares(h)
        )
        norm = self.samples.squared_norm
        if norm == 0.0:
            return 0.0, codes, parts
        rest = norm - 2.0 * float(linear) + float(square)
        if not rest > 1e3 * np.finfo(self.samples.dtype).eps * norm:  # all digits cancelled
            rest = self.samples.squared_residual(state, h)
        return float(np.sqrt(max(rest, 0.0) / norm)), codes, parts

    def _revive(self, useless: Any) -> None:
        """Give a component that died the direction in which the average sample is missed most."""
        self.idle = (self.idle + 1) * useless
        dead = np.flatnonzero(self.idle >= PATIENCE)
        if not len(dead) or self.loss == 0.0:
            return
        if self.mean is None:
            self.mean = like(as_vector(self.samples.mean()), self.accepted)
        missed = (self.mean - self.samples.mean_of(self.state) @ self.accepted).clip(min=0)
        if not float(missed.max()) > 1e-7 * float(self.mean.max()):
            return  # the data has no more to give: a rank below the number of components
        self.point = copy(self.point)
        for k in dead:
            # Different entries for each, or all that died together would become the same.
            keep = self.rng.uniform(size=len(missed)) < 0.5
            self.point[k] = missed * like(keep, missed)
        self.idle[dead] = 0
        self.outcome.revived += len(dead)
