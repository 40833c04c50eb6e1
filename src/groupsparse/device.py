"""The projection of CUDA tensors: a plan that knows the shapes, two launches, and no waiting.

``Projector`` is made once for a set of tensors and called as often as wanted: nothing is allocated,
nothing is read back, so a call can be captured in a CUDA graph. The certificate comes to the host
when somebody looks at it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from . import device_tables
from .device_tables import Shape, Tables
from .errors import InvalidInput, NonFiniteInput, UnsupportedType, missing_extra
from .layout import Axis, checked_target, normal_axes
from .result import Projection, Status

DTYPES = {torch.float32: 1, torch.bfloat16: 2, torch.float16: 4, torch.float64: 8}
STATUSES = {
    10: Status.FEASIBLE,
    11: Status.CONVERGED,
    12: Status.TIE,
    13: Status.STALLED,
    14: Status.NOT_FINITE,
    15: Status.OUT_OF_RANGE,
}
# Columns of a group's state that the host reads; see ``kernels/triton_search.py``.
MU, MODE, ITERATIONS, PASSES, STATE_FIELDS = 0, 1, 21, 22, 31
SETTINGS = 8
TOLERANCE = {False: 1e-7, True: 1e-12}  # by whether the sums run in float64
SLACK = {False: 5e-7, True: 1e-11}
PROGRAMS_PER_UNIT = 4
REGISTERS = 65536


class Projector:
    """A reusable plan for a set of CUDA tensors: their shapes are settled once.

    Parameters
    ----------
    tensors : sequence of torch.Tensor
        Floating-point tensors on one CUDA device. The plan keeps them; they may change their values
        but not their memory.
    axis : int, tuple, None, or a list with one of these per tensor
        See :func:`groupsparse.project_each_`.
    shared : bool
        Whether all vectors of all tensors share one target and one multiplier.
    tol : float, optional
        See :func:`groupsparse.project`.

    Examples
    --------
    >>> import torch
    >>> import groupsparse as gs
    >>> if torch.cuda.is_available():
    ...     layers = [torch.randn(64, 3, 3, 3, device="cuda"), torch.randn(10, 64, device="cuda")]
    ...     plan = gs.Projector(layers, shared=True)
    ...     [p] = plan.project_(0.8)  # no waiting: the certificate is read when looked at
    ...     print(p.status)
    ... else:
    ...     print("target met")
    target met
    """

    def __init__(
        self,
        tensors: Sequence[Tensor],
        *,
        axis: Any = None,
        shared: bool = False,
        tol: float | None = None,
        outputs: Sequence[Tensor] | None = None,
        names: Sequence[str] | None = None,
    ) -> None:
        self.tensors = list(tensors)
        self.outputs = self.tensors if outputs is None else list(outputs)
        self.in_place = outputs is None
        self.shared = shared
        self.names = list(names or (f"tensors[{i}]" for i in range(len(self.tensors))))
        axes = axis if isinstance(axis, list) else [axis] * len(self.tensors)
        self.axes = [
            normal_axes(filter_axes(x) if along is None else along, x.ndim, name)
            for x, along, name in zip(self.tensors, axes, self.names, strict=True)
        ]
        self._check()
        self.device = self.tensors[0].device
        self.staged: list[tuple[int, Tensor, Tensor]] = []
        self.tol = tol
        self._prepare()

    @property
    def groups(self) -> int:
        """How many multipliers there are."""
        return 1 if self.shared else len(self.tensors)

    def _check(self) -> None:
        if not self.tensors:
            raise InvalidInput("tensors is empty; expected at least one tensor")
        for x, name in zip(self.tensors, self.names, strict=True):
            if x.dtype not in DTYPES:
                raise UnsupportedType(
                    f"{name} has dtype {x.dtype}; expected float64, float32, float16 or bfloat16"
                )
            if x.numel() == 0:
                raise InvalidInput(f"{name} is empty (shape {tuple(x.shape)}); expected a vector")
            if x.device != self.tensors[0].device:
                raise InvalidInput(
                    f"{name} is on {x.device} and {self.names[0]} on {self.tensors[0].device}; "
                    "expected one device"
                )
            if any(step == 0 and size > 1 for step, size in zip(x.stride(), x.shape, strict=True)):
                raise InvalidInput(f"{name} repeats the same memory; copy it first")
        spans = sorted((*_span(x), name) for x, name in zip(self.outputs, self.names, strict=True))
        for (_, end, one), (start, _, other) in zip(spans, spans[1:], strict=False):
            if start < end:
                raise InvalidInput(f"{one} and {other} share memory; give tied ones only once")

    def _prepare(self) -> None:
        kernels = kernel_module()
        shapes, dtypes, addresses, groups = [], [], [], []
        self.plain: list[int] = []  # tensors whose vectors have one entry: not counted
        for i, x in enumerate(self.tensors):
            if math.prod(x.shape[a] for a in self.axes[i]) == 1:
                self.plain.append(i)
                continue
            shape, address = self._shape(i)
            shapes.append(shape)
            addresses.append(address)
            dtypes.append(DTYPES[x.dtype])
            groups.append(0 if self.shared else i)
        missing = set(range(self.groups)) - set(groups)
        if missing:
            raise InvalidInput(
                f"{self.names[min(missing)]} holds only vectors of length 1, which have no Hoyer "
                "measure; expected a vector of length 2 or more"
            )
        self.wide = any(dtype == 8 for dtype in dtypes)
        self.dtypes = int(np.bitwise_or.reduce(dtypes))
        programs = kernels.resident_programs(self.device, shapes, self.dtypes, self.wide)
        self.tables = device_tables.build(shapes, dtypes, addresses, groups, programs)
        self._allocate()

    def _shape(self, i: int) -> tuple[Shape, tuple[int, int]]:
        """How tensor i lies in memory; one that cannot be walked as it lies is staged in a copy."""
        x, out = self.tensors[i], self.outputs[i]
        address = (x.data_ptr(), out.data_ptr())
        shape = Shape.of(x.shape, x.stride(), x.element_size(), self.axes[i], address)
        if shape is None or x.stride() != out.stride():
            stage = torch.empty(x.shape, dtype=x.dtype, device=x.device)
            self.staged.append((i, stage, out))
            address = (stage.data_ptr(), stage.data_ptr())
            shape = Shape.of(stage.shape, stage.stride(), x.element_size(), self.axes[i], address)
            assert shape is not None
        return shape, address

    def _allocate(self) -> None:
        tables, device = self.tables, self.device

        def onto(table: NDArray[np.int64]) -> Tensor:
            return torch.from_numpy(table).to(device)

        self.on_device = [
            onto(t) for t in (tables.tensors, tables.segments, tables.programs, tables.groups)
        ]
        self.on_device.append(onto(tables.splits))
        segments, splits = len(tables.segments), max(len(tables.lengths), 1)
        sizes = (self.groups * STATE_FIELDS, segments * 3, splits * 4)
        self.report = torch.zeros(sum(sizes), dtype=torch.float64, device=device)
        self.state, self.results, self.values = self.report.split(sizes)
        self.settings = torch.zeros(self.groups, SETTINGS, dtype=torch.float64, device=device)
        self.parts = torch.zeros(tables.parts, 5, dtype=torch.float64, device=device)
        self.raw = torch.zeros(segments, 6, dtype=torch.float64, device=device)
        real = torch.float64 if self.wide else torch.float32
        self.tops = torch.zeros(tables.slots, dtype=real, device=device)
        self.factors = torch.zeros(tables.slots, dtype=real, device=device)
        self.counters = torch.zeros(2, dtype=torch.int64, device=device)
        self.targets: list[float] = []
        self.written: NDArray[np.float64] | None = None

    @property
    def workspace(self) -> int:
        """Bytes on the device that the plan keeps beside the tensors."""
        kept = [*self.on_device, self.report, self.settings, self.parts, self.raw, self.tops]
        kept += [self.factors, self.counters, *(stage for _, stage, _ in self.staged)]
        return sum(x.numel() * x.element_size() for x in kept)

    def project_(
        self, hoyer: float | Sequence[float], *, start: Any = None
    ) -> list[Projection[Any]]:
        """Project the tensors in place, to one target or one per group.

        Parameters
        ----------
        hoyer : float or sequence of float
            The target, or one per group.
        start : sequence of Projection or float, True, or None
            Multipliers of a similar problem; True takes this plan's own last ones, on the device.

        Returns
        -------
        list of Projection
            One certificate per group. Each reads what the plan's latest call left on the device at
            the moment somebody looks at it.
        """
        self.launch(hoyer, start)
        return [DeviceProjection(self, g, self.report) for g in range(self.groups)]

    def launch(self, hoyer: float | Sequence[float], start: Any = None) -> None:
        """Queue the work and return."""
        self._set(hoyer, start)
        for i, stage, _ in self.staged:
            stage.copy_(self.tensors[i].detach())
        kernel_module().run(self)
        with torch.no_grad():
            for i, stage, out in self.staged:
                out.detach().copy_(stage)
            if not self.in_place:
                for i in self.plain:
                    self.outputs[i].copy_(self.tensors[i])
        if self.in_place:
            for x in self.tensors:
                torch.autograd.graph.increment_version(x)

    def _set(self, hoyer: float | Sequence[float], start: Any) -> None:
        if isinstance(hoyer, int | float):
            targets = [checked_target(hoyer)] * self.groups
        else:
            targets = [checked_target(h) for h in hoyer]
        if len(targets) != self.groups:
            raise InvalidInput(f"hoyer has {len(targets)} members; expected one or {self.groups}")
        self.targets = targets
        settings = self._settings()
        guesses = None if start is None or start is True else self._guesses(start)
        if guesses is not None and not isinstance(guesses, Tensor):
            settings[:, 1] = guesses
        if self.written is None or not np.array_equal(settings, self.written):
            self.settings.copy_(torch.from_numpy(settings), non_blocking=True)
            self.written = settings
        if start is True:
            guesses = self.state
        if isinstance(guesses, Tensor):
            own = guesses[: self.groups * STATE_FIELDS].view(self.groups, STATE_FIELDS)
            self.settings[:, 1].copy_(own[:, MU])
            self.written = None

    def _guesses(self, start: Any) -> Any:
        """Multipliers to start from: floats, or what another call left on the device."""
        many = list(start) if isinstance(start, list | tuple) else [start] * self.groups
        if len(many) != self.groups:
            raise InvalidInput(f"start has {len(many)} members; expected one or {self.groups}")
        first = many[0]
        if isinstance(first, DeviceProjection) and first.fits(self) and all(
            isinstance(p, DeviceProjection) and p.same_call(first) for p in many
        ):
            return first.numbers
        return [_multiplier(guess) for guess in many]

    def _settings(self) -> NDArray[np.float64]:
        tables, wide = self.tables, self.wide
        tolerance = TOLERANCE[wide] if self.tol is None else self.tol
        settings = np.zeros((self.groups, SETTINGS))
        target = np.asarray(self.targets)
        counts, some = np.asarray(tables.counts), np.asarray(tables.sample_counts)
        settings[:, 0] = target == 1.0
        settings[:, 2] = np.asarray(tables.tops) - counts * target
        settings[:, 3] = counts
        settings[:, 4] = tolerance * counts
        settings[:, 5] = max(tolerance, SLACK[wide]) * counts
        settings[:, 6] = np.asarray(tables.sample_tops) - some * target
        settings[:, 7] = some
        return settings

    def offender(self, group: int) -> str | None:
        """Which entry of a group is not finite, looked up in the tensors as they are now."""
        chosen = range(len(self.tensors)) if self.shared else [group]
        for i in chosen:
            bad = ~torch.isfinite(self.tensors[i].detach())
            if bool(bad.any()):
                at = tuple(int(k) for k in bad.nonzero()[0])
                value = float(self.tensors[i].detach()[at])
                entry = tuple(at[a] for a in self.axes[i])
                vector = tuple(k for a, k in enumerate(at) if a not in self.axes[i])
                where = f"vector {_plain(vector)}, " if vector else ""
                return (
                    f"{self.names[i]}: {where}index {_plain(entry)} is {value}; "
                    "expected finite numbers"
                )
        return None

    def raise_if_refused(self) -> None:
        """Wait for the device, and raise what a call on the host would have raised."""
        modes = self.state.view(self.groups, STATE_FIELDS)[:, MODE].tolist()
        for group, mode in enumerate(modes):
            if STATUSES[int(mode)] is Status.NOT_FINITE:
                raise NonFiniteInput(self.offender(group) or str(Status.NOT_FINITE))
            if STATUSES[int(mode)] is Status.OUT_OF_RANGE:
                raise InvalidInput(
                    f"{self.names[0 if self.shared else group]}: an entry of the answer is out of "
                    "the range of its dtype; scale the vectors down first"
                )


class DeviceProjection(Projection[Any]):
    """A certificate that lies on the device until somebody looks at it."""

    __slots__ = ("group", "known", "numbers", "plan", "targeted")

    def __init__(self, plan: Projector, group: int, numbers: Tensor) -> None:
        for name, given in (
            ("plan", plan), ("group", group), ("numbers", numbers), ("known", None),
            ("targeted", plan.targets[group]),
        ):  # fmt: skip
            object.__setattr__(self, name, given)

    def fits(self, plan: Projector) -> bool:
        """Whether its multipliers are laid out like those of the plan."""
        return self.plan.groups == plan.groups and self.plan.device == plan.device

    def same_call(self, other: DeviceProjection) -> bool:
        """Whether both come from one call."""
        return self.numbers is other.numbers

    def _read(self) -> dict[str, Any]:
        live = self.numbers is self.plan.report  # may change with the plan's next call
        if self.known is None or live:
            numbers = self.numbers.cpu().numpy()
            object.__setattr__(self, "known", read_certificate(self.plan, numbers, self.group))
        return self.known  # type: ignore[no-any-return]

    value = property(
        lambda self: self.plan.outputs if self.plan.shared else self.plan.outputs[self.group]
    )
    target = property(lambda self: self.targeted)
    multiplier = property(lambda self: self._read()["multiplier"])
    hoyer = property(lambda self: self._read()["hoyer"])
    status = property(lambda self: self._read()["status"])
    iterations = property(lambda self: self._read()["iterations"])
    passes = property(lambda self: self._read()["passes"])
    kernel = property(lambda self: "triton")
    primal = property(lambda self: self._read()["primal"])
    dual = property(lambda self: self._read()["dual"])


def read_certificate(plan: Projector, numbers: NDArray[np.float64], group: int) -> dict[str, Any]:
    """Put a group's certificate together from what the kernels left."""
    tables = plan.tables
    states = plan.groups * STATE_FIELDS
    segments = len(tables.segments)
    state = numbers[:states].reshape(plan.groups, STATE_FIELDS)[group]
    results = numbers[states : states + 3 * segments].reshape(segments, 3)
    values = numbers[states + 3 * segments :].reshape(-1, 4)
    mu = float(state[MU])
    mine = tables.segments[:, 1] == group
    whole = mine & (tables.segments[:, 2] != device_tables.SPLIT)
    terms, primal, dual = results[whole].sum(axis=0)
    for number, length in enumerate(tables.lengths):
        _, owner, _, first, last, _, _ = tables.splits[number]
        if owner != group:
            continue
        root = math.sqrt(length)
        beta = 1.0 / (root - 1.0)
        l1, l2, norm = results[first:last].sum(axis=0)
        top, factor = values[number, :2]
        scale = 2.0 ** -math.floor(math.log2(top)) if 0.0 < top < math.inf else 1.0
        size = math.sqrt(norm) / scale
        terms += beta * (l1 / math.sqrt(l2) if l2 > 0.0 else 1.0)
        primal += size
        kept = mu == 0.0
        dual += size if kept else size / factor if factor > 0.0 else top - mu * beta
    level = tables.tops[group] - tables.counts[group] * plan.targets[group]
    return {
        "multiplier": mu,
        "status": STATUSES[int(state[MODE])],
        "iterations": int(state[ITERATIONS]),
        "passes": int(state[PASSES]) + 1,
        "hoyer": float((tables.tops[group] - terms) / tables.counts[group]),
        "primal": float(primal),
        "dual": float(dual + mu * level),
    }


def kernel_module() -> Any:
    """The launcher of the Triton kernels."""
    try:
        from .kernels import triton_launch
    except ImportError as error:
        raise missing_extra("triton", "torch") from error
    return triton_launch


def filter_axes(x: Tensor) -> tuple[int, ...]:
    """Every axis but the first; the only one of a 1-d tensor."""
    return tuple(range(min(1, x.ndim - 1), x.ndim))


def _multiplier(guess: Any) -> float:
    if guess is None:
        return 0.0
    mu = float(guess.multiplier if isinstance(guess, Projection) else guess)
    if not 0.0 <= mu < math.inf:
        raise InvalidInput(f"start is {mu}; expected a multiplier, a finite number >= 0")
    return mu


def _span(x: Tensor) -> tuple[int, int]:
    last = sum((size - 1) * abs(step) for size, step in zip(x.shape, x.stride(), strict=True))
    return x.data_ptr(), x.data_ptr() + (last + 1) * x.element_size()


def _plain(index: tuple[int, ...]) -> str:
    return str(index[0]) if len(index) == 1 else str(index)


__all__ = ["Axis", "DeviceProjection", "Mapping", "Projector", "Tables"]
