"""Which tensors of a file are meant: by name, without the code of the model they belong to."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches

from ..errors import InvalidInput
from .stored import FLOATS, Stored


def choose(
    tensors: Sequence[Stored], targets: Sequence[str] = (), ignore: Sequence[str] = ()
) -> list[Stored]:
    """The tensors that ``targets`` names (all if empty) and ``ignore`` does not.

    A pattern is a name, the name of a module, which stands for everything inside it, or ``re:`` and
    a regular expression that matches the whole of such a name. Tensors with one axis, which are
    biases and norms, are taken only if named in full, or if there is no other tensor in the file.

    Examples
    --------
    >>> from groupsparse.storage.stored import Stored
    >>> found = [Stored("a.weight", "F32", (4, 3)), Stored("a.bias", "F32", (4,))]
    >>> [t.name for t in choose(found, targets=["a"])]
    ['a.weight']
    """
    for pattern in (*targets, *ignore):
        _check(pattern, tensors)
    usable = [t for t in tensors if t.floating and t.size > 1 and t.shape]
    if not usable:
        first = f"; {tensors[0].name} is {tensors[0].dtype}" if tensors else ""
        kinds = ", ".join(FLOATS)
        raise InvalidInput(
            f"the file holds no tensor of floats ({kinds}) with more than one entry{first}"
        )
    chosen = [
        tensor
        for tensor in usable
        if (
            (len(tensor.shape) > 1 or len(tensors) == 1 or tensor.name in targets)
            and (not targets or any(_matches(pattern, tensor.name) for pattern in targets))
            and not any(_matches(pattern, tensor.name) for pattern in ignore)
        )
    ]
    if not chosen:
        wanted = " ".join(targets) or "the default"
        left_out = f", less {' '.join(ignore)}," if ignore else ""
        raise InvalidInput(
            f"{wanted}{left_out} selects none of the {len(tensors)} tensors; "
            f"the first one is {usable[0].name}, and vectors have to be named in full"
        )
    return chosen


def _check(pattern: str, tensors: Sequence[Stored]) -> None:
    """Refuse what names nothing: a slip in a name would otherwise prune what was to stay."""
    if pattern.startswith("re:"):
        try:
            re.compile(pattern[3:])
        except re.error as error:
            raise InvalidInput(f"{pattern!r} is not a regular expression: {error}") from None
    if tensors and not any(_matches(pattern, tensor.name) for tensor in tensors):
        names = {name: None for tensor in tensors for name in _names(tensor.name)}
        close = get_close_matches(pattern, names, 1)
        hint = f"did you mean {close[0]}?" if close else f"the first one is {tensors[0].name}"
        raise InvalidInput(f"{pattern} selects none of the {len(tensors)} tensors; {hint}")


def _matches(pattern: str, name: str) -> bool:
    if pattern.startswith("re:"):
        return any(re.fullmatch(pattern[3:], prefix) for prefix in _names(name))
    return pattern in _names(name)


def _names(name: str) -> list[str]:
    """The name of a tensor, and of all modules that it is in."""
    pieces = name.split(".")
    return [".".join(pieces[:end]) for end in range(1, len(pieces) + 1)]
