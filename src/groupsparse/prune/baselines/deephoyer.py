"""DeepHoyer (Yang, Wen and Li, 2020): a scale-free regulariser in training, then a threshold."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from ...errors import InvalidInput
from ..cutting import warn_of_collapse
from ..masks import Masks
from ..ordering import Scores, refuse_non_finite
from ..packing import PackedMask
from ..sharding import is_sharded
from ..targets import DEFAULT_TARGETS, Pattern, Target, select
from ..vectors import as_rows, vector_view

KINDS = ("element", "group")


def hoyer_square(x: Tensor) -> Tensor:
    """(Σ|xⱼ|)² / Σxⱼ²: from 1, for a single entry, to n, for n equal ones; 0 for zeros.

    Examples
    --------
    >>> import torch
    >>> round(float(hoyer_square(torch.tensor([3.0, -4.0]))), 4)
    1.96
    """
    squares = x.square().sum()
    # The inner where keeps the gradient of an all-zero layer from being NaN.
    return torch.where(squares > 0, x.abs().sum().square() / squares.where(squares > 0, 1.0), 0.0)


class DeepHoyer:
    """Hoyer-Square of every layer, to be added to the loss, and the threshold step after training.

    Parameters
    ----------
    model : torch.nn.Module
        The model that is trained.
    strength : float
        What the sum over layers is multiplied by.
    kind : {"element", "group"}
        Hoyer-Square of a layer's entries, or Group-HS: that of the Euclidean norms of its filters
        (the rows of a matrix), plus that of its input channels (the columns).
    targets, ignore : tuple of str or module classes
        Which parameters; see `select`.

    Examples
    --------
    >>> import torch
    >>> from groupsparse import prune
    >>> model = torch.nn.Linear(10, 10)
    >>> regulariser = prune.baselines.DeepHoyer(model, strength=0.01)
    >>> loss = model(torch.ones(1, 10)).sum() + regulariser()
    >>> loss.backward()
    >>> masks = regulariser.threshold_(0.1)
    """

    def __init__(
        self,
        model: nn.Module,
        strength: float,
        *,
        kind: str = "element",
        targets: Iterable[Pattern] | Pattern = DEFAULT_TARGETS,
        ignore: Iterable[Pattern] | Pattern = (),
    ) -> None:
        if kind not in KINDS:
            raise InvalidInput(f"kind is {kind!r}; expected one of {KINDS}")
        if not 0.0 <= strength < float("inf"):
            raise InvalidInput(f"strength is {strength}; expected a finite number >= 0")
        self.strength = strength
        self.kind = kind
        self.targets = select(model, targets, ignore)
        for target in self.targets:
            if is_sharded(target.parameter):
                raise InvalidInput(f"{target.name} is sharded; DeepHoyer needs whole parameters")

    def __call__(self) -> Tensor:
        """The regulariser's value, differentiable."""
        terms = [term for target in self.targets for term in self._terms(target)]
        return self.strength * torch.stack(terms).sum()

    def _terms(self, target: Target) -> list[Tensor]:
        if self.kind == "element":
            return [hoyer_square(target.parameter)]
        view, axes = vector_view(target, "filter")
        rows = as_rows(target.parameter.reshape(view.shape), axes)
        # Input channels are the first of a filter's axes; k·k entries of each belong together.
        inputs = view.shape[axes[0]]
        channels = rows.reshape(rows.shape[0], inputs, -1).transpose(0, 1).reshape(inputs, -1)
        return [hoyer_square(_norms(rows)), hoyer_square(_norms(channels))]

    @torch.no_grad()
    def threshold_(self, threshold: float, *, relative: bool = True) -> Masks:
        """Zero every entry whose absolute value is below the threshold.

        Parameters
        ----------
        threshold : float
            As a multiple of the layer's standard deviation, or as it stands.
        relative : bool
            Which of the two.
        """
        if not threshold >= 0.0:
            raise InvalidInput(f"threshold is {threshold}; expected a number >= 0")
        values = [Scores(t.name, t.parameter.detach) for t in self.targets]
        if not all(bool(value.compute().isfinite().all()) for value in values):
            refuse_non_finite(values)
        packed: dict[str, PackedMask] = {}
        for target in self.targets:
            parameter = target.parameter.detach()
            unit = float(parameter.double().std(correction=0)) if relative else 1.0
            gone = parameter.abs() < threshold * unit
            parameter.masked_fill_(gone, 0)
            packed[target.name] = PackedMask.pack(~gone)
        warn_of_collapse(self.targets, stacklevel=4)
        return Masks(packed)


def _norms(rows: Tensor) -> Tensor:
    """Euclidean norms of rows, with gradient 0 instead of NaN at a zero row."""
    squares = rows.square().sum(dim=1)
    return torch.where(squares > 0, squares.where(squares > 0, 1.0).sqrt(), 0.0)
