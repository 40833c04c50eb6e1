"""The errors of groupsparse. Each message names the offender, its value and what was expected."""

from __future__ import annotations


class InvalidInput(ValueError):
    """An argument cannot be used; the message says which, where, and what was expected."""


class NonFiniteInput(InvalidInput):
    """A vector holds a NaN or an infinity; the message names the first one."""


class UnsupportedType(TypeError):
    """An argument has a type or dtype that the projection has no meaning for."""


class MissingExtra(ImportError):
    """An optional dependency is needed; the message says which extra installs it."""


def missing_extra(package: str, extra: str) -> MissingExtra:
    return MissingExtra(
        f"{package} is not installed; this part needs it: pip install 'groupsparse[{extra}]'"
    )
