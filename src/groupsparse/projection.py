"""The public verbs: project, project_, project_each_, solve."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from .bundle import Single, bundle, is_tensor, refuse_overlap, weights_in_order
from .errors import InvalidInput, UnsupportedType
from .group import Certificate, Group
from .layout import Axis, as_number, checked_target, filter_axes
from .places import all_tensors, any_sharded, members_of, place
from .result import Projection, multiplier_of

V = TypeVar("V")
Start = float | Projection[Any] | None


def project(
    vectors: V,
    hoyer: float,
    *,
    axis: Axis = -1,
    weights: Any = None,
    tol: float | None = None,
    start: Start = None,
    kernel: str | None = None,
) -> V:
    """The closest set of vectors with the given average Hoyer measure.

    For vectors cᵢ and weights wᵢ (all ones by default) it returns zᵢ = (|cᵢ|ᵀxᵢ) sign(cᵢ)∘xᵢ with::

        x = argmax  Σ xᵢᵀ|cᵢ|   subject to  ‖xᵢ‖₂ = 1,  xᵢ ≥ 0,  average sp(xᵢ) ≥ hoyer

    Which vectors become sparse and which stay dense follows from the data.

    Parameters
    ----------
    vectors : array, torch.Tensor, or list, tuple or dict of such
        An array holds its vectors along ``axis``; each member of a container is one vector, of any
        shape and length. Vectors of length 1 have no Hoyer measure: they come back unchanged and do
        not count. Zero vectors stay zero and count as 1.
    hoyer : float
        The target, between 0 (all entries equally large) and 1 (one entry per vector).
    axis : int, tuple of ints or None
        Where the vectors of an array lie; None takes the whole array as one vector. Not used for
        containers.
    weights : like ``vectors``, optional
        Weights ≥ 0 of the entries in the weighted measure; for an array also one vector that is
        used for all.
    tol : float, optional
        How far the average may end from the target. The default is as near as float64 sums allow.
    start : float or Projection, optional
        The multiplier of a similar problem solved before. It saves time and changes nothing else.
    kernel : {None, "reference", "numba", "torch", "triton"}
        Which kernel to run; it runs or an error is raised. None chooses by type, device and size.

    Returns
    -------
    like ``vectors``
        Same type, shape, dtype, device and memory order; integers become float64. Where the input
        is sparse enough already, it is returned bit for bit.

    See Also
    --------
    solve : the same with a certificate.
    project_ : the same in place.

    Examples
    --------
    >>> import numpy as np
    >>> import groupsparse as gs
    >>> z = gs.project([np.array([5.0, 1.0, -0.5, 0.2]), np.array([3.0, -3.0, 1.0])], 0.8)
    >>> round(gs.average_hoyer(z), 10)
    0.8
    """
    if (is_tensor(vectors) or all_tensors(vectors)) and not any_sharded(vectors):
        from . import autograd

        return autograd.project(  # type: ignore[no-any-return]
            vectors,
            checked_target(hoyer),
            axis,
            weights,
            _checked_tol(tol),
            multiplier_of(start),
            kernel,
        )
    return _run(vectors, hoyer, axis, weights, tol, start, kernel)  # type: ignore[no-any-return]


def project_(
    array: V,
    hoyer: float,
    *,
    axis: Axis = -1,
    weights: Any = None,
    tol: float | None = None,
    start: Start = None,
    kernel: str | None = None,
) -> V:
    """:func:`project`, written over its input.

    Parameters
    ----------
    array : array, torch.Tensor, or list, tuple or dict of such
        Changed in place. Where an error is raised, nothing was written.
    hoyer, axis, weights, tol, start, kernel
        See :func:`project`.

    Returns
    -------
    The very object that was given.

    Examples
    --------
    >>> import numpy as np
    >>> import groupsparse as gs
    >>> a = np.array([[5.0, 1.0, -0.5, 0.2]])
    >>> gs.project_(a, 0.9) is a
    True
    >>> round(gs.average_hoyer(a), 10)
    0.9
    """
    return _run(array, hoyer, axis, weights, tol, start, kernel, in_place=True)  # type: ignore[no-any-return]


def solve(
    vectors: V,
    hoyer: float,
    *,
    axis: Axis = -1,
    weights: Any = None,
    tol: float | None = None,
    start: Start = None,
    kernel: str | None = None,
) -> Projection[V]:
    """:func:`project` with a certificate: how it was solved, and the proof that it is optimal.

    Parameters
    ----------
    vectors, hoyer, axis, weights, tol, start, kernel
        See :func:`project`.

    Returns
    -------
    Projection
        ``value`` is what :func:`project` returns. ``gap``, the dual minus the primal value, is zero
        up to rounding where the answer is proved optimal.

    Examples
    --------
    >>> import numpy as np
    >>> import groupsparse as gs
    >>> p = gs.solve(np.array([[4.0, 3.0, 0.0], [1.0, 1.0, 1.0]]), 0.5)
    >>> str(p.status), round(p.hoyer, 10), abs(p.gap) < 1e-10
    ('target met at a tie: the share of equally large entries was chosen to meet it', 0.5, True)
    """
    return _run(vectors, hoyer, axis, weights, tol, start, kernel, certify=True)  # type: ignore[no-any-return]


def project_each_(
    tensors: Any,
    hoyer: float | Sequence[float] | Mapping[Any, float],
    *,
    axis: Any = None,
    weights: Any = None,
    shared: bool = False,
    tol: float | None = None,
    start: Any = None,
    kernel: str | None = None,
) -> list[Projection[Any]]:
    """Project many tensors in place, for instance all the parameters of a network.

    Parameters
    ----------
    tensors : list, tuple or dict of arrays or torch.Tensors, or an iterator over them
        Each one is a group with its own target and multiplier or, with ``shared``, all their
        vectors together are one group. All of them are checked and solved before the first is
        written: where an error is raised, every tensor is as it was. CUDA tensors are projected
        without waiting for the device, so a value that is not finite cannot be an error there: the
        tensors of that group stay as they are, and the status of its certificate says so.
    hoyer : float, or one per tensor
        The targets; a single one with ``shared``.
    axis : int, tuple, None, or a list with one of these per tensor
        Where the vectors lie. None: along every axis but the first, which makes the filters of a
        convolution and the rows of a matrix the vectors; a 1-d tensor is one vector.
    weights : list or dict like ``tensors``, optional
        See :func:`project`; members may be None.
    shared : bool
        Whether all vectors of all tensors share one target and one multiplier.
    tol, kernel
        See :func:`project`.
    start : float, Projection, or one per group, optional
        Earlier multipliers, for instance the list that the call before returned.

    Returns
    -------
    list of Projection
        The certificate of each group; ``value`` is its tensor, or all of them with ``shared``.

    Examples
    --------
    >>> import numpy as np
    >>> import groupsparse as gs
    >>> rng = np.random.default_rng(0)
    >>> layers = [rng.normal(size=(8, 3, 3, 3)), rng.normal(size=(10, 8))]
    >>> [p] = gs.project_each_(layers, 0.7, shared=True)
    >>> filters = [f for layer in layers for f in layer]
    >>> round(gs.average_hoyer(filters), 10)
    0.7
    """
    tensors = _checked_tensors(tensors)
    keys = list(tensors) if isinstance(tensors, Mapping) else list(range(len(tensors)))
    if weights is not None:
        weights_in_order(weights, tensors, "tensors")
    axes = axis if isinstance(axis, list | Mapping) else [axis] * len(keys)
    each = _one_each(axes, keys, "axis")
    names: Sequence[Any] = [0] if shared else keys
    targets = [checked_target(h) for h in _one_each(hoyer, names, "hoyer")]
    where = place([tensors[key] for key in keys], kernel)
    if where == "triton":
        from . import device

        guesses = None if start is None else _one_each(start, names, "start")
        return device.project_each_(
            tensors, targets, axes=each, weights=weights, shared=shared, tol=_checked_tol(tol),
            start=guesses,
        )  # fmt: skip
    if where == "torch":
        from . import sharded

        return sharded.project_each_(
            [
                sharded.Member(
                    tensors[key],
                    filter_axes(tensors[key].ndim) if along is None else along,
                    f"tensors[{key!r}]",
                    None if weights is None else weights[key],
                )
                for key, along in zip(keys, each, strict=True)
            ],
            targets,
            [multiplier_of(guess) for guess in _one_each(start, names, "start")],
            tensors,
            shared=shared,
            tol=_checked_tol(tol),
            kernel=kernel,
        )
    singles = [
        Single(
            tensors[key],
            filter_axes(tensors[key].ndim) if along is None else along,
            None if weights is None else weights[key],
            in_place=True,
            name=f"tensors[{key!r}]",
        )
        for key, along in zip(keys, each, strict=True)
    ]
    refuse_overlap([one.item.array for one in singles], [one.item.name for one in singles])
    members = [singles] if shared else [[single] for single in singles]
    groups = [
        Group([single.item for single in part], target, kernel)
        for part, target in zip(members, targets, strict=True)
    ]
    for group, guess in zip(groups, _one_each(start, names, "start"), strict=True):
        group.solve(_checked_tol(tol), multiplier_of(guess))
    certificates = [group.write(certify=True) for group in groups]
    values = [single.finish() for single in singles]
    return [
        _result(value, group, certificate)
        for value, group, certificate in zip(
            [tensors] if shared else values, groups, certificates, strict=True
        )
    ]


def solve_quietly(vectors: V, hoyer: float, **options: Any) -> tuple[V, float]:
    """The answer and its multiplier without the other parts of the certificate."""
    if place(members_of(vectors), options["kernel"]) != "host":
        found = _run(vectors, hoyer, **options, certify=True)
        return found.value, found.multiplier
    given = bundle(vectors, options["axis"], options["weights"], in_place=False)
    group = Group(given.items, hoyer, options["kernel"])
    group.solve(_checked_tol(options["tol"]), options["start"])
    multiplier = group.write(certify=False).multiplier
    return given.finish(), multiplier


def _run(
    vectors: Any,
    hoyer: Any,
    axis: Axis,
    weights: Any,
    tol: float | None,
    start: Start,
    kernel: str | None,
    *,
    in_place: bool = False,
    certify: bool = False,
) -> Any:
    target = checked_target(hoyer)
    where = place(members_of(vectors), kernel)
    if where == "triton":
        from . import device

        found = device.solve(
            vectors, target, axis=axis, weights=weights, tol=_checked_tol(tol), start=start,
            in_place=in_place,
        )  # fmt: skip
        return found if certify else found.value
    if where == "torch":
        from . import sharded

        return sharded.project(
            vectors,
            target,
            axis=axis,
            weights=weights,
            tol=_checked_tol(tol),
            start=multiplier_of(start),
            kernel=kernel,
            in_place=in_place,
            certify=certify,
        )
    given = bundle(vectors, axis, weights, in_place=in_place)
    group = Group(given.items, target, kernel)
    group.solve(_checked_tol(tol), multiplier_of(start))
    certificate = group.write(certify=certify)
    value = given.finish()
    return _result(value, group, certificate) if certify else value


def _result(value: V, group: Group, certificate: Certificate) -> Projection[V]:
    return Projection(
        value=value,
        multiplier=certificate.multiplier,
        target=group.target,
        hoyer=group.average(),
        status=certificate.status,
        iterations=certificate.iterations,
        passes=certificate.passes,
        kernel=certificate.kernel,
        primal=certificate.primal,
        dual=certificate.dual,
    )


def _checked_tensors(given: Any) -> Any:
    """The tensors of a call on many, as a container; anything to iterate over becomes a list."""
    if is_tensor(given) or isinstance(given, np.ndarray):
        raise InvalidInput(
            "tensors is a single one; expected a list, tuple or dict of them (one alone: project_)"
        )
    tensors = given
    if not isinstance(given, Mapping | list | tuple):
        if not isinstance(given, Iterable):
            raise UnsupportedType(f"tensors is {given!r}; expected a list, tuple or dict of them")
        tensors = list(given)  # as the parameters of a module
    if not tensors:
        raise InvalidInput("tensors is empty; expected at least one tensor")
    for key in tensors if isinstance(tensors, Mapping) else range(len(tensors)):
        if not (is_tensor(tensors[key]) or isinstance(tensors[key], np.ndarray)):
            kind = type(tensors[key]).__name__
            raise UnsupportedType(f"tensors[{key!r}] is a {kind}; only arrays change in place")
    return tensors


def _one_each(given: Any, keys: Sequence[Any], name: str) -> list[Any]:
    """One value per key from a list or dict of them, or the same value for all."""
    if isinstance(given, Mapping):
        if set(given) != set(keys):
            raise InvalidInput(f"{name} is a dict with other keys than tensors: {list(given)}")
        return [given[key] for key in keys]
    if isinstance(given, list | tuple | np.ndarray):
        if len(given) != len(keys):
            raise InvalidInput(f"{name} has {len(given)} members; expected one or {len(keys)}")
        return list(given)
    return [given] * len(keys)


def _checked_tol(tol: float | None) -> float | None:
    if tol is None:
        return None
    number = as_number(tol, "tol", "a number in [0, 1)")
    if not 0.0 <= number < 1.0:
        raise InvalidInput(f"tol is {number}; expected a number in [0, 1)")
    return number
