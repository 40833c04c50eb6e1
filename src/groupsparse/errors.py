"""The errors of groupsparse. Each message names the offender, its value and what was expected."""

from __future__ import annotations


class InvalidInput(ValueError):
    """An argument cannot be used; the message says which, where, and what was expected.

    Examples
    --------
    >>> import groupsparse as gs
    >>> gs.project([[3.0, 1.0, 2.0]], 1.5)
    Traceback (most recent call last):
    groupsparse.errors.InvalidInput: hoyer is 1.5; expected a number in [0, 1]
    """


class NonFiniteInput(InvalidInput):
    """A vector holds a NaN or an infinity; the message names the first one.

    Examples
    --------
    >>> import groupsparse as gs
    >>> gs.project([[3.0, 1.0], [2.0, float("nan")]], 0.8)
    Traceback (most recent call last):
    groupsparse.errors.NonFiniteInput: vectors[1]: index 1 is nan; expected finite numbers
    """


class UnsupportedType(TypeError):
    """An argument has a type or dtype that the projection has no meaning for.

    Examples
    --------
    >>> import groupsparse as gs
    >>> gs.project([[1j, 2.0]], 0.8)
    Traceback (most recent call last):
    groupsparse.errors.UnsupportedType: vectors[0] has dtype complex128; expected ...float64...
    """


class MissingExtra(ImportError):
    """An optional dependency is needed; the message says which extra installs it.

    Examples
    --------
    >>> import groupsparse as gs
    >>> try:
    ...     from groupsparse.nmf import GroupSparseNMF
    ... except gs.MissingExtra as missing:
    ...     print(missing)
    """


def missing_extra(package: str, extra: str) -> MissingExtra:
    return MissingExtra(
        f"{package} is not installed; this part needs it: pip install 'groupsparse[{extra}]'"
    )
