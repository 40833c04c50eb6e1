"""What the estimator was told, checked before anything is computed."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

import numpy as np

from ..errors import InvalidInput
from .arrays import Vector, is_tensor
from .constraints import Target


def check_settings(model: Any, n_features: int) -> int:
    """Refuse settings that mean nothing, and return the rank."""
    rank = n_features if model.n_components is None else model.n_components
    _check(_is_count(rank), "n_components", rank, "a positive integer or None")
    _check(_is_count(model.max_iter), "max_iter", model.max_iter, "a positive integer")
    _check(_is_amount(model.tol), "tol", model.tol, "a number ≥ 0")
    limit = model.max_time
    _check(limit is None or _is_amount(limit), "max_time", limit, "seconds ≥ 0 or None")
    _check(_is_amount(model.verbose), "verbose", model.verbose, "0, 1 or 2")
    call = model.callback
    _check(call is None or callable(call), "callback", call, "a callable or None")
    choice = model.extrapolate
    _check(choice is None or isinstance(choice, bool | np.bool_), "extrapolate", choice, "a bool")
    return int(rank)


def make_target(
    hoyer: Any, weights: Any, per_vector: bool, name: str, shape: tuple[int, int]
) -> Target | None:
    """Check what was asked for one factor, r × n; None where nothing was.

    Weights come as they were given: for W they have one row per sample.
    """
    if hoyer is None:
        if weights is not None:
            raise InvalidInput(f"weights_{name} is given without hoyer_{name}")
        return None
    in_range = isinstance(hoyer, Real) and 0.0 <= float(hoyer) <= 1.0
    _check(in_range, f"hoyer_{name}", hoyer, "a number in [0, 1]")
    if shape[1] < 2:
        return None  # vectors of length 1 have no Hoyer measure
    if weights is not None:
        weights = _rows_of_weights(weights, name, shape)
    return Target(float(hoyer), weights, per_vector)


def _rows_of_weights(given: Any, name: str, shape: tuple[int, int]) -> Vector:
    """Weights as (1, n) or (r, n), in a scale in which nothing overflows."""
    given = given.detach().cpu() if is_tensor(given) else given
    array = np.asarray(given, dtype=np.float64)
    rows = np.atleast_2d(array.T if name == "W" else array)
    if rows.shape not in (shape, (1, shape[1])):
        full = shape[::-1] if name == "W" else shape
        raise InvalidInput(
            f"weights_{name} has shape {array.shape}; expected ({shape[1]},) or {full}"
        )
    if not (np.isfinite(rows).all() and (rows >= 0).all()):
        raise InvalidInput(f"weights_{name} holds negative or non-finite entries")
    largest = rows.max(axis=1, keepdims=True)
    if not (largest > 0).all():
        raise InvalidInput(f"weights_{name} are all zero for a vector; at least one has to count")
    # The measure does not depend on their scale, and a power of two changes no digit.
    scaled: Vector = np.ldexp(rows, -np.frexp(largest)[1])
    return scaled


def _check(holds: bool, name: str, value: Any, expected: str) -> None:
    if not holds:
        raise InvalidInput(f"{name} is {value!r}; expected {expected}")


def _is_count(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 1


def _is_amount(value: Any) -> bool:
    return isinstance(value, Real) and float(value) >= 0.0
