"""A Hoyer target for the rows of one factor, and the projection that meets it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..projection import project_each_, solve_quietly
from ..sparsity import hoyer
from .arrays import Vector, is_tensor, wide
from .rows_compiled import project_rows

Multiplier = Vector | float


@dataclass(frozen=True)
class Target:
    """Average Hoyer measure ≥ ``hoyer`` over the rows of a factor or, ``per_vector``, of each row.

    ``weights`` has shape (1, n) or (r, n), or is None.
    """

    hoyer: float
    weights: Any = None
    per_vector: bool = False
    _there: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)

    def measure(self, rows: Any) -> float:
        """What the target bounds from below: the average, or the least of the rows."""
        rows = rows.detach().cpu().numpy() if is_tensor(rows) else rows
        each = np.asarray(hoyer(rows, weights=self._rows_of_weights(rows)))
        return float(each.min() if self.per_vector else each.mean())

    def beta(self, n: int) -> Vector | float:
        """1/(‖w‖ − min w) of each row, which turns a multiplier into a threshold."""
        if self.weights is None:
            return float(1.0 / (np.sqrt(n) - 1.0))
        w = np.asarray(self.weights, dtype=np.float64)
        beta: Vector = 1.0 / (np.linalg.norm(w, axis=1) - w.min(axis=1))
        return beta

    def project(self, rows: Any, start: Multiplier) -> tuple[Any, Multiplier]:
        """The closest rows that meet the target, and the multipliers (``rows`` may be reused)."""
        weights = self._rows_of_weights(rows)
        if not self.per_vector:
            return solve_quietly(
                rows,
                self.hoyer,
                axis=-1,
                weights=weights,
                tol=None,
                start=float(start),
                kernel=None,
            )
        multipliers = np.array(np.broadcast_to(start, len(rows)), dtype=np.float64)
        left = np.arange(len(rows))
        if weights is None and not is_tensor(rows):
            left = project_rows(rows, self.hoyer, multipliers)
        if len(left):
            one = weights is not None and weights.ndim == 1
            answers = project_each_(
                [rows[i] for i in left],
                self.hoyer,
                weights=None if weights is None else [weights if one else weights[i] for i in left],
                start=multipliers[left].tolist(),
            )
            multipliers[left] = [answer.multiplier for answer in answers]
        return rows, multipliers

    def weight_rows(self, rows: Any) -> Any:
        """The weights as an array that broadcasts against ``rows``: same dtype, same device."""
        return None if self.weights is None else self._beside(rows, rows.dtype)

    def _rows_of_weights(self, rows: Any) -> Any:
        """The weights as the projection takes them, in double precision."""
        if self.weights is None:
            return None
        weights = self._beside(rows, wide(rows) if is_tensor(rows) else np.float64)
        return weights[0] if len(weights) == 1 else weights

    def _beside(self, rows: Any, dtype: Any) -> Any:
        # A device gets them once, not in every iteration.
        place = (str(rows.device), dtype)
        if place not in self._there:
            tensor = is_tensor(rows)
            self._there[place] = (
                rows.new_tensor(self.weights, dtype=dtype)
                if tensor
                else np.asarray(self.weights, dtype=dtype)
            )
        return self._there[place]
