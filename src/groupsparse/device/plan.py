"""A reusable plan for a set of CUDA tensors: two launches a call, and no waiting.

``Projector`` is made once and called as often as wanted: nothing is allocated, nothing is read
back, so a call can be captured in a CUDA graph.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import InvalidInput, NonFiniteInput, UnsupportedType, missing_extra
from ..layout import checked_target, filter_axes, normal_axes
from ..result import Projection, Status, multiplier_of
from .certificate import (
    MODE,
    MU,
    SEGMENT_FIELDS,
    SPLIT_FIELDS,
    STATE_FIELDS,
    STATUSES,
    Call,
    DeviceProjection,
    left_on_device,
)
from .memory import offence, repeats_memory, span, vectors_last
from .settings import SETTINGS, settings_of
from .tables import DTYPES, Shape, build
from .weighting import Laid, lay

KEPT_FIELDS = 5  # numbers per weighted vector; see ``kernels/triton_weighted.py``


class Projector:
    """A reusable plan for a set of CUDA tensors: their shapes are settled once.

    Each call of :meth:`project_` is two kernel launches for all tensors together. It allocates
    nothing and waits for nothing, so it can be captured in a CUDA graph.

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
    outputs : sequence of torch.Tensor, optional
        Where the answers go: tensors of the same shapes and dtypes. By default they overwrite
        ``tensors``.
    names : sequence of str, optional
        What error messages call the tensors.
    weights : sequence, optional
        One per tensor, each of the tensor's shape, or one vector that is used for all, or None for
        ones; see :func:`groupsparse.project`. Like the tensors they may change their values. They
        are looked at on the device: a certificate's status says where they cannot be used.

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
        weights: Sequence[Any] | None = None,
    ) -> None:
        if not tensors:
            raise InvalidInput("tensors is empty; expected at least one tensor")
        self.names = list(names or (f"tensors[{i}]" for i in range(len(tensors))))
        self.tensors = list(tensors)
        self.in_place = outputs is None
        self.outputs = self.tensors if outputs is None else list(outputs)
        self.shared, self.tol = shared, tol
        self.weighted = weights is not None and any(w is not None for w in weights)
        self.weights = list(weights or [])
        self.groups = 1 if shared else len(self.tensors)
        self.device = self.tensors[0].device
        self._check()
        axes = axis if isinstance(axis, list) else [axis] * len(self.tensors)
        self.axes = [
            normal_axes(filter_axes(x.ndim) if along is None else along, x.ndim, name)
            for x, along, name in zip(self.tensors, axes, self.names, strict=True)
        ]
        self._prepare()
        self._allocate()
        self._lay_weights()

    def _check(self) -> None:
        for x, name in zip(self.tensors, self.names, strict=True):
            if x.dtype not in DTYPES:
                raise UnsupportedType(
                    f"{name} has dtype {x.dtype}; expected float64, float32, float16 or bfloat16"
                )
            if x.numel() == 0:
                raise InvalidInput(f"{name} is empty (shape {tuple(x.shape)}); expected a vector")
            if x.device != self.device:
                raise InvalidInput(
                    f"{name} is on {x.device} and {self.names[0]} on {self.device}; "
                    "expected one device"
                )
        for x, name in zip(self.outputs, self.names, strict=True):
            if repeats_memory(x):
                raise InvalidInput(f"{name} repeats the same memory; copy it first")
        self._refuse_overlap()

    def _refuse_overlap(self) -> None:
        spans = sorted((*span(x), name) for x, name in zip(self.outputs, self.names, strict=True))
        for (_, end, one), (start, _, other) in pairwise(spans):
            if start < end:
                raise InvalidInput(f"{one} and {other} share memory; give tied ones only once")

    def _prepare(self) -> None:
        """The tables of the kernel."""
        kernels = kernel_module()
        shapes, dtypes, groups = [], [], []
        self.plain: list[int] = []  # tensors whose vectors have one entry: not counted
        self.staged: dict[int, Tensor] = {}  # those that cannot be walked as they lie
        self.walked: list[int] = []
        for i, x in enumerate(self.tensors):
            if math.prod(x.shape[a] for a in self.axes[i]) == 1:
                self.plain.append(i)
                continue
            self.walked.append(i)
            shapes.append(self._shape(i))
            dtypes.append(DTYPES[x.dtype])
            groups.append(0 if self.shared else i)
        missing = set(range(self.groups)) - set(groups)
        if missing:
            raise InvalidInput(
                f"{self.names[min(missing)]} holds only vectors of length 1, which have no Hoyer "
                "measure; expected a vector of length 2 or more"
            )
        self.double = any(dtype == 8 for dtype in dtypes)
        self.wide = self.double or self.weighted  # whether the sums run in float64
        self.dtypes = int(np.bitwise_or.reduce(dtypes))
        self.shapes = shapes
        programs = kernels.resident_programs(self.device, self.wide)
        self.tables = build(
            shapes, dtypes, self._addresses(), groups, programs, weighted=self.weighted
        )

    def _shape(self, i: int) -> Shape:
        x, out = self.tensors[i], self.outputs[i]
        item, axes = x.element_size(), self.axes[i]
        shape = Shape.of(x.shape, x.stride(), item, axes, (x.data_ptr(), out.data_ptr()))
        if shape is None or x.stride() != out.stride():
            stage = self.staged[i] = vectors_last(x, axes)
            shape = Shape.of(x.shape, stage.stride(), item, axes, (stage.data_ptr(),))
            assert shape is not None
        return shape

    def _places(self) -> list[int]:
        """Where all tensors lie."""
        return [x.data_ptr() for x in (*self.tensors, *(() if self.in_place else self.outputs))]

    def _addresses(self) -> list[tuple[int, int]]:
        """Where the kernel reads and writes each of the tensors that it walks."""
        pairs = [
            (self.staged.get(i, self.tensors[i]), self.staged.get(i, self.outputs[i]))
            for i in self.walked
        ]
        return [(source.data_ptr(), goal.data_ptr()) for source, goal in pairs]

    def _allocate(self) -> None:
        tables, device = self.tables, self.device
        arrays = (tables.tensors, tables.segments, tables.programs, tables.groups, tables.splits)
        self.on_device = [torch.from_numpy(table).to(device) for table in arrays]
        segments, splits = len(tables.segments), max(len(tables.lengths), 1)
        sizes = (self.groups * STATE_FIELDS, segments * SEGMENT_FIELDS, splits * SPLIT_FIELDS)

        def zeros(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self.report = zeros(sum(sizes))
        self.state, self.results, self.values = torch.split(self.report, list(sizes))
        self.settings = zeros(self.groups, SETTINGS)
        self.parts = zeros(tables.parts, 5)
        self.raw = zeros(segments, 6)
        real = torch.float64 if self.wide else torch.float32
        slots = 1 if self.weighted else tables.slots
        self.tops, self.factors = zeros(slots, dtype=real), zeros(slots, dtype=real)
        self.kept = zeros(tables.slots if self.weighted else 0, KEPT_FIELDS)
        # Of the kernels' own: a meeting, each group's round, arrivals of groups and of splits.
        self.counters = zeros(1 + 2 * self.groups + splits, dtype=torch.int64)
        self.places = self._places()  # the addresses that are in the table
        self.weight_table: tuple[NDArray[np.int64], Tensor] | None = None
        self.targets: list[float] = []
        self.plain_settings = np.empty(0)  # for these targets, without a start
        self.written: NDArray[np.float64] | None = None

    def _lay_weights(self) -> None:
        """The table of weights, which lie as the tensors that are walked."""
        self.laid: list[Laid] = []
        if not self.weighted:
            return
        for i, shape in zip(self.walked, self.shapes, strict=True):
            x = self.tensors[i]
            walked = self.staged.get(i, x)
            self.laid.append(lay(self.weights[i], x, walked, shape, self.axes[i], self.names[i]))
        kinds = [self.dtypes, *(laid.row[-1] for laid in self.laid)]
        self.all_dtypes = int(np.bitwise_or.reduce(kinds))
        table = np.asarray([laid.row for laid in self.laid], dtype=np.int64)
        if self.weight_table is None or not np.array_equal(table, self.weight_table[0]):
            self.weight_table = table, torch.from_numpy(table).to(self.device, non_blocking=True)

    @property
    def workspace(self) -> int:
        """Bytes on the device that the plan keeps beside the tensors."""
        kept = [*self.on_device, self.report, self.settings, self.parts, self.raw, self.tops]
        kept += [self.factors, self.kept, self.counters, *self.staged.values()]
        kept += [laid.tensor for laid in self.laid if laid.source is not None]
        return sum(x.numel() * x.element_size() for x in kept)

    def bind(
        self,
        tensors: Sequence[Tensor],
        outputs: Sequence[Tensor] | None = None,
        weights: Sequence[Any] | None = None,
    ) -> None:
        """Work on other tensors from now on, which lie in memory like those before."""
        self.tensors = list(tensors)
        self.outputs = self.tensors if outputs is None else list(outputs)
        places = self._places()
        if places != self.places:
            self._refuse_overlap()
            self.tables.tensors[:, :2] = self._addresses()
            self.on_device[0].copy_(torch.from_numpy(self.tables.tensors), non_blocking=True)
            self.places = places
        self.weights = list(weights or [])
        self._lay_weights()

    def release(self) -> None:
        """Keep no tensor alive until :meth:`bind` brings the next ones."""
        self.tensors = self.outputs = []
        self.weights, self.laid = [], []

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
            the moment somebody looks at it. Where a value is not finite, nothing of the group was
            written, and its status says so.
        """
        self.launch(hoyer, start)
        return self.certificates(self.report, live=True)

    def certificates(self, numbers: Tensor, *, live: bool = False) -> list[Projection[Any]]:
        """The certificates of the latest call, from its numbers."""
        values = [self.outputs] if self.shared else self.outputs
        call = Call(self.tables, self.targets, numbers, live)
        return [DeviceProjection(value, call, group) for group, value in enumerate(values)]

    def launch(self, hoyer: float | Sequence[float], start: Any = None) -> None:
        """Queue the work and return."""
        self._set(hoyer, start)
        with torch.no_grad():
            for i, stage in self.staged.items():
                stage.copy_(self.tensors[i])
            for laid in self.laid:
                if laid.source is not None:
                    laid.tensor.copy_(laid.source)
            kernel_module().run(self)
            for i, stage in self.staged.items():
                self.outputs[i].copy_(stage)
            if not self.in_place:
                for i in self.plain:
                    self.outputs[i].copy_(self.tensors[i])
        if self.in_place:
            for x in self.tensors:
                torch.autograd.graph.increment_version(x)

    def _set(self, hoyer: float | Sequence[float], start: Any) -> None:
        """Bring targets and guesses onto the device, unless they are there already."""
        asked = [hoyer] * self.groups if isinstance(hoyer, int | float) else list(hoyer)
        if len(asked) != self.groups:
            raise InvalidInput(f"hoyer has {len(asked)} members; expected one or {self.groups}")
        if asked != self.targets:
            self.targets = [checked_target(h) for h in asked]
            self.plain_settings = settings_of(self)
        settings = self.plain_settings
        known: Tensor | None = self.state if start is True else None
        if start is not None and start is not True:
            guesses = list(start) if isinstance(start, list | tuple) else [start] * self.groups
            if len(guesses) != self.groups:
                raise InvalidInput(
                    f"start has {len(guesses)} members; expected one or {self.groups}"
                )
            known = left_on_device(guesses, self.groups, self.device)
            if known is None:
                settings = settings.copy()
                settings[:, 1] = [multiplier_of(guess) or 0.0 for guess in guesses]
        if self.written is None or not np.array_equal(settings, self.written):
            self.settings.copy_(torch.from_numpy(settings), non_blocking=True)
            self.written = settings
        if known is not None:
            states = known[: self.groups * STATE_FIELDS].view(self.groups, STATE_FIELDS)
            self.settings[:, 1].copy_(states[:, MU])
            self.written = None

    def raise_if_refused(self) -> None:
        """Wait for the device, and raise what a call on the host would have raised."""
        modes = self.state.view(self.groups, STATE_FIELDS)[:, MODE].tolist()
        for group, mode in enumerate(modes):
            if STATUSES[int(mode)] is Status.NOT_FINITE:
                raise NonFiniteInput(self.offender(group) or str(Status.NOT_FINITE))
            if STATUSES[int(mode)] is Status.BAD_WEIGHTS:
                raise InvalidInput(
                    f"weights of {self.names[0 if self.shared else group]}: {Status.BAD_WEIGHTS}"
                )
            if STATUSES[int(mode)] is Status.OUT_OF_RANGE:
                raise InvalidInput(
                    f"{self.names[0 if self.shared else group]}: an entry of the answer is out of "
                    "the range of its dtype; scale the vectors down first"
                )

    def refuse_plain(self) -> None:
        """Raise where a vector of length 1, which no kernel looks at, is not finite."""
        for i in self.plain:
            found = offence(self.tensors[i], self.axes[i], self.names[i])
            if found is not None:
                raise NonFiniteInput(found)

    def offender(self, group: int = 0) -> str | None:
        """Which entry of a group is not finite, looked up in the tensors as they are now."""
        for i in range(len(self.tensors)) if self.shared else [group]:
            found = offence(self.tensors[i].detach(), self.axes[i], self.names[i])
            if found is not None:
                return found
        return None


def kernel_module() -> Any:
    """The launcher of the Triton kernels."""
    try:
        from ..kernels import triton_launch
    except ImportError as error:
        raise missing_extra("triton", "torch") from error
    return triton_launch
