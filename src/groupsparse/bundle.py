"""What the user holds, as items that can be projected, and the way back to the same kind."""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import InvalidInput, UnsupportedType
from .layout import Axis, Item, arrange, real_array

# Vectors of a container that have the same length and fewer entries than this are stacked, since
# NumPy on ten thousand short vectors one by one would be slow. Longer ones are never copied.
STACKED = 1 << 12


def is_tensor(x: Any) -> bool:
    torch = sys.modules.get("torch")  # a tensor cannot exist before torch was imported
    return torch is not None and isinstance(x, torch.Tensor)


class Single:
    """One array or tensor whose vectors lie along an axis."""

    def __init__(
        self, given: Any, axis: Axis, weights: Any, *, in_place: bool, name: str = "vectors"
    ) -> None:
        self.given = given
        self.in_place = in_place
        array = to_numpy(given, name)
        weights = None if weights is None else to_numpy(weights, f"weights of {name}")
        self.item = arrange(array, axis, weights, name)
        if in_place:
            refuse_to_write(given, array, name)
        self.item.target = array if in_place else np.empty_like(array)
        self.items = [self.item]

    def finish(self) -> Any:
        target = self.item.target
        assert target is not None
        if not self.in_place:
            return like(self.given, target)
        write_back(self.given, target)
        return self.given


class Container:
    """A list, tuple or dict: each member is one vector."""

    def __init__(self, given: Any, weights: Any, *, in_place: bool) -> None:
        self.given = given
        self.in_place = in_place
        self.keys = list(given) if isinstance(given, Mapping) else list(range(len(given)))
        if not self.keys:
            raise InvalidInput("vectors is empty; expected at least one vector")
        self.arrays = [to_numpy(given[key], self._name(key)) for key in self.keys]
        self.weights = self._members_of(weights)
        for key, array in zip(self.keys, self.arrays, strict=True):
            if array.size == 0:
                raise InvalidInput(f"{self._name(key)} is empty; expected at least one entry")
            if in_place:
                refuse_to_write(given[key], array, self._name(key))
        if in_place:
            refuse_overlap(self.arrays, [self._name(key) for key in self.keys])
        self.targets = self.arrays if in_place else [np.empty_like(a) for a in self.arrays]
        self.stacks: list[tuple[list[int], Item]] = []
        self.items = self._make_items()

    def _name(self, key: Any) -> str:
        return f"vectors[{key!r}]"

    def _members_of(self, weights: Any) -> list[Any]:
        if weights is None:
            return [None] * len(self.keys)
        members = weights_in_order(weights, self.given)
        return [
            to_numpy(weight, f"weights of {self._name(key)}")
            for key, weight in zip(self.keys, members, strict=True)
        ]

    def _make_items(self) -> list[Item]:
        alike: dict[tuple[int, Any], list[int]] = {}
        items = []
        for i, array in enumerate(self.arrays):
            if array.ndim == 0:
                raise InvalidInput(
                    f"{self._name(self.keys[i])} is a single number; each member of a container is "
                    "one vector (one vector alone: pass it as an array)"
                )
            if array.size < STACKED and self.weights[i] is None:
                alike.setdefault((array.size, array.dtype), []).append(i)
            else:
                item = arrange(array, None, self.weights[i], self._name(self.keys[i]))
                item.target = self.targets[i]
                items.append(item)
        for members in alike.values():
            stacked = np.stack([self.arrays[i].ravel() for i in members])
            item = arrange(stacked, -1, None, "vectors")
            item.names = [self._name(self.keys[i]) for i in members]
            item.target = np.empty_like(stacked)
            self.stacks.append((members, item))
            items.append(item)
        return items

    def finish(self) -> Any:
        for members, item in self.stacks:
            assert item.target is not None
            for i, row in zip(members, item.target, strict=True):
                self.targets[i][...] = row.reshape(self.targets[i].shape)
        if self.in_place:
            for key, target in zip(self.keys, self.targets, strict=True):
                write_back(self.given[key], target)
            return self.given
        values = [
            like(self.given[key], target)
            for key, target in zip(self.keys, self.targets, strict=True)
        ]
        return rebuilt(self.given, self.keys, values)


def weights_in_order(weights: Any, given: Any, name: str = "vectors") -> list[Any]:
    """The members of a container of weights, in the order of what they belong to."""
    same = isinstance(weights, Mapping) == isinstance(given, Mapping)
    if not isinstance(weights, Mapping | list | tuple) or not same:
        raise InvalidInput(f"weights must be a container like {name}, with one member for each")
    keys = list(weights) if isinstance(weights, Mapping) else list(range(len(weights)))
    wanted = list(given) if isinstance(given, Mapping) else list(range(len(given)))
    if set(keys) != set(wanted):
        raise InvalidInput(
            f"weights has the members {keys} and {name} {wanted}; expected the same ones"
        )
    return [weights[key] for key in wanted]


def rebuilt(given: Any, keys: Sequence[Any], values: Sequence[Any]) -> Any:
    """A container of the given one's kind."""
    kind: Any = type(given)
    if isinstance(given, MutableMapping) and kind is not dict:
        answer = copy.copy(given)  # keeps what it has beside its members, as a defaultdict
        answer.update(zip(keys, values, strict=True))
        return answer
    if isinstance(given, Mapping):
        return kind(dict(zip(keys, values, strict=True)))
    return kind._make(values) if hasattr(kind, "_make") else kind(values)


def bundle(given: Any, axis: Axis, weights: Any, *, in_place: bool) -> Single | Container:
    """Sort out what was given."""
    if isinstance(given, Mapping | list | tuple):
        return Container(given, weights, in_place=in_place)
    return Single(given, axis, weights, in_place=in_place)


def to_numpy(x: Any, name: str) -> NDArray[Any]:
    """A NumPy array, over the same memory where dtype and device allow it.

    bfloat16 becomes float32; what lies on another device is copied to the host, and back later.
    """
    if not is_tensor(x):
        return real_array(x, name)
    if x.device.type == "meta":
        raise InvalidInput(f"{name} is on the meta device and holds no values to project")
    tensor = x.detach().cpu()
    if str(tensor.dtype) == "torch.bfloat16":
        tensor = tensor.float()
    try:
        return real_array(tensor.numpy(), name)
    except (TypeError, RuntimeError) as error:
        if isinstance(error, UnsupportedType):
            raise
        raise UnsupportedType(f"{name}: {error}") from error


def like(given: Any, target: NDArray[Any]) -> Any:
    """The answer as the kind of thing that was given."""
    if not is_tensor(given):
        return target
    import torch

    if given.dtype == torch.bfloat16:
        return _round_to_bfloat16(target).to(given.device)
    return torch.from_numpy(target).to(given.device)


def write_back(given: Any, target: NDArray[Any]) -> None:
    """Finish an in-place call: a tensor learns that it changed, bfloat16 gets rounded values."""
    if not is_tensor(given):
        return
    import torch

    if given.data_ptr() == target.ctypes.data:
        torch.autograd.graph.increment_version(given)
    else:
        with torch.no_grad():
            rounded = given.dtype == torch.bfloat16
            given.copy_(_round_to_bfloat16(target) if rounded else torch.from_numpy(target))


def _round_to_bfloat16(target: NDArray[Any]) -> Any:
    """The array as a bfloat16 tensor; rounded itself, so that what is measured is returned."""
    import torch

    wide = torch.from_numpy(target)
    rounded = wide.to(torch.bfloat16)
    wide.copy_(rounded)
    return rounded


def refuse_to_write(given: Any, array: NDArray[Any], name: str) -> None:
    """Raise where an in-place call could not keep its promise."""
    if is_tensor(given):
        if not given.dtype.is_floating_point:
            raise UnsupportedType(f"{name} has dtype {given.dtype}, which cannot hold the answer")
    elif not isinstance(given, np.ndarray):
        raise UnsupportedType(f"{name} is a {type(given).__name__}; only arrays change in place")
    elif given is not array:
        raise UnsupportedType(f"{name} has dtype {given.dtype}, which cannot hold the answer")
    elif not given.flags.writeable:
        raise InvalidInput(f"{name} is read-only; expected an array that can be changed in place")
    extent = array.itemsize
    for stride, size in sorted(zip(map(abs, array.strides), array.shape, strict=True)):
        if size > 1 and stride < extent:
            raise InvalidInput(f"{name} repeats the same memory; copy it before an in-place call")
        extent += (size - 1) * stride


def refuse_overlap(arrays: Sequence[NDArray[Any]], names: Sequence[str]) -> None:
    """Raise where two of the arrays share memory: one would be projected twice."""
    bounds = [np.lib.array_utils.byte_bounds(array) for array in arrays]
    in_order = sorted(range(len(arrays)), key=bounds.__getitem__)
    for one, other in pairwise(in_order):
        if bounds[other][0] < bounds[one][1] and _share(arrays[one], arrays[other]):
            raise InvalidInput(
                f"{names[one]} and {names[other]} share memory; give tied ones only once"
            )


def _share(one: NDArray[Any], other: NDArray[Any]) -> bool:
    try:
        return np.shares_memory(one, other, max_work=1 << 16)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True
