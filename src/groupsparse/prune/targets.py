"""Which parameters of a model are meant, and under which name.

A parameter is addressed by the class of its module, by a name, or by a ``re:`` pattern. Naming a
module, in any of the three ways, names everything inside it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import NoReturn

import torch
from torch import nn

from ..errors import InvalidInput, UnsupportedType

CONVOLUTIONS = ("Conv1d", "Conv2d", "Conv3d")
TRANSPOSED = ("ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d")
LINEAR = ("Linear", "Conv1D")  # the latter is what Hugging Face's GPT-2 calls its linear layers
DEFAULT_TARGETS = (*CONVOLUTIONS, *TRANSPOSED, *LINEAR)

Pattern = str | type[nn.Module]

_NORMS = (
    nn.LayerNorm,
    nn.GroupNorm,
    nn.RMSNorm,
    nn.modules.batchnorm._NormBase,
)
_OLDER_NORMS = ("WeightNorm", "SpectralNorm")  # hooks of torch.nn.utils, before parametrize
_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
# What torch.compile, DDP, DataParallel and activation checkpointing put around a module. Their
# names would otherwise creep into masks and files and make them useless for the bare model.
_WRAPPERS = frozenset({"_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module"})


@dataclass(frozen=True)
class Target:
    """A parameter that a pattern selected, its name in the bare model, and its module."""

    name: str
    parameter: nn.Parameter
    owner: nn.Module


def bare(model: nn.Module) -> nn.Module:
    """The model inside torch.compile, DistributedDataParallel and DataParallel."""
    if not isinstance(model, nn.Module):
        raise UnsupportedType(f"model is a {type(model).__name__}; expected a torch.nn.Module")
    while True:
        if isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
            model = model.module
        elif isinstance(inside := getattr(model, "_orig_mod", None), nn.Module):
            model = inside  # compiled; naming its class would load the whole compiler
        else:
            return model


def clean_name(name: str) -> str:
    """A parameter's name without what wrappers inside the model added to it."""
    if "_orig_mod" not in name and "_wrapped_module" not in name:
        return name.lstrip(".")
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS).lstrip(".")


def select(
    model: nn.Module, targets: Iterable[Pattern] | Pattern, ignore: Iterable[Pattern] | Pattern = ()
) -> list[Target]:
    """The parameters that ``targets`` names and ``ignore`` does not, each once, in model order.

    Parameters
    ----------
    model : torch.nn.Module
        A model or a single layer; wrappers (compiled, DDP) are looked through.
    targets, ignore : tuple of str or module classes
        ``"Linear"`` is a class (subclasses included), ``"encoder.head"`` a module or parameter,
        ``"re:.*head"`` a regular expression that must match the whole of such a name. Biases and
        normalisation parameters are taken only if named in full: ``"conv.bias"``. So is what a
        parametrization (a weight norm) computes a weight from; selecting it otherwise is an error.

    Returns
    -------
    list of Target
        A parameter tied to several names appears once, under its first; it is left out as soon as
        any of its names is ignored.

    Examples
    --------
    >>> from torch import nn
    >>> model = nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3), nn.Linear(3, 2))
    >>> [found.name for found in select(model, "Linear", ignore="re:2")]
    ['0.weight']
    """
    wanted, unwanted = as_patterns(targets), as_patterns(ignore)
    model = bare(model)
    search = _Search(model, wanted)
    left = _Search(model, unwanted).named if unwanted else frozenset[int]()
    found = []
    for key, (path, own, parameter, owner) in search.first.items():
        if key not in search.named or key in left:
            continue
        in_full = key in search.named_in_full
        if not in_full and _is_plain(parameter, owner):
            continue
        name = f"{path}.{own}" if path else own
        found.append(Target(name, parameter, owner))
        if not in_full and search.is_computed_from(key, owner):
            _refuse_computed(name)
        if (
            type(parameter) is not nn.Parameter
            or parameter.is_meta
            or parameter.dtype not in _DTYPES
        ):
            _refuse_unusable(name, parameter)
    if not found:
        raise InvalidInput(_nothing_matched(wanted, unwanted, search))
    return found


def named_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Every parameter under every one of its names in the bare model."""
    pairs = bare(model).named_parameters(remove_duplicate=False)
    return {clean_name(name): parameter for name, parameter in pairs}


class Matcher:
    """Whether a pattern names a target, for one model that is walked once for each pattern."""

    def __init__(self, model: nn.Module) -> None:
        self._model = bare(model)
        self._named: dict[str, set[int]] = {}

    def __call__(self, pattern: Pattern, target: Target) -> bool:
        (text,) = as_patterns(pattern)
        if text not in self._named:
            self._named[text] = _Search(self._model, (text,)).named
        return id(target.parameter) in self._named[text]


def as_patterns(given: Iterable[Pattern] | Pattern) -> tuple[str, ...]:
    """Patterns as a tuple of strings, each checked."""
    if isinstance(given, nn.Module) or not isinstance(given, str | type | Iterable):
        raise InvalidInput(f"a pattern is {given!r}; expected a name, 're:...' or a class")
    items = (given,) if isinstance(given, str | type) else tuple(given)
    patterns = []
    for item in items:
        text = item.__name__ if isinstance(item, type) else item
        if not isinstance(text, str) or not text:
            raise InvalidInput(f"a pattern is {item!r}; expected a name, 're:...' or a class")
        if text.startswith("re:"):
            try:
                re.compile(text[3:])
            except re.error as error:
                raise InvalidInput(f"{text!r} is not a regular expression: {error}") from None
        patterns.append(text)
    return tuple(patterns)


_Met = tuple[str, str, nn.Parameter, nn.Module]  # path of the module, own name, parameter, module


class _Search:
    """One walk over a model: every parameter once, in model order, and which ones patterns name.

    Parameters go by their `id`. One that is tied to others, or in a module that is used twice, is
    met several times, and named as soon as it is in one place. ``path`` is always that in the bare
    model.
    """

    def __init__(self, model: nn.Module, patterns: Iterable[str]) -> None:
        self.first: dict[int, _Met] = {}
        self.named: set[int] = set()  # itself, or what encloses it
        self.named_in_full: set[int] = set()
        self._again: dict[int, list[str]] = {}  # what it is called where it is met again
        self._parametrized: set[int] = set()
        self._names = frozenset(patterns)
        # Few parameters end like a pattern: the full names of the others are never spelled out.
        self._ends = frozenset(name.rpartition(".")[2] for name in self._names)
        self._expressions = [re.compile(p[3:]) for p in self._names if p.startswith("re:")]
        self._classes: dict[type, tuple[bool, bool]] = {}
        self._visit(model, "", False, False)

    def is_computed_from(self, key: int, owner: nn.Module) -> bool:
        """Whether torch.nn.utils.parametrize, or the older hooks, make a weight of a parameter."""
        if key in self._parametrized:
            return True
        hooks = owner._forward_pre_hooks
        if not hooks:
            return False
        made = [getattr(h, "name", "") for h in hooks.values() if type(h).__name__ in _OLDER_NORMS]
        sources = {f"{weight}_{part}" for weight in made for part in ("g", "v", "orig")}
        return not sources.isdisjoint([self.first[key][1], *self._again.get(key, ())])

    def _visit(self, module: nn.Module, path: str, named: bool, parametrized: bool) -> None:
        """A module and all inside it; the flags say what is known of all that it encloses."""
        kind = type(module)
        of_class = self._classes.get(kind) or self._look_at(kind)
        children, parameters = module._modules, module._parameters
        wrapped = bool(children) and not _WRAPPERS.isdisjoint(children)
        if path:  # neither name nor class of the model itself say anything about what is inside
            of_place = self._look_at(type(_unwrapped(module))) if wrapped else of_class
            named = named or of_place[0] or path in self._names or self._is_expressed(path)
            parametrized = parametrized or of_place[1]
        if parameters:
            self._meet(module, path, named or of_class[0], parametrized or of_class[1])
        if children:
            for name, child in children.items():
                if child is not None:
                    below = f"{path}.{name}" if path else name
                    if wrapped and name in _WRAPPERS:
                        below = path
                    self._visit(child, below, named, parametrized)

    def _meet(self, module: nn.Module, path: str, named: bool, parametrized: bool) -> None:
        first, ends, buffers = self.first, self._ends, module._buffers
        for own, parameter in module._parameters.items():
            if parameter is None:
                continue
            if buffers and _torch_mask(own) in buffers:
                raise InvalidInput(
                    f"{path or 'the model'} was pruned by torch.nn.utils.prune ({own!r} and its "
                    "mask); call prune.import_from_torch_prune(model) first"
                )
            key = id(parameter)
            if key in first:
                self._again.setdefault(key, []).append(own)
            else:
                first[key] = path, own, parameter, module
            if named:
                self.named.add(key)
            if parametrized:
                self._parametrized.add(key)
            if own in ends or self._expressions:
                name = f"{path}.{own}" if path else own
                if name in self._names:
                    self.named.add(key)
                    self.named_in_full.add(key)
                elif self._is_expressed(name):
                    self.named.add(key)

    def _is_expressed(self, text: str) -> bool:
        # A generator costs more than the question, which is asked for every module.
        return bool(self._expressions) and any(e.fullmatch(text) for e in self._expressions)

    def _look_at(self, kind: type) -> tuple[bool, bool]:
        """Whether a pattern names a class, and whether it is one of parametrizations."""
        names = {each.__name__ for each in kind.__mro__}
        found = not self._names.isdisjoint(names), "ParametrizationList" in names
        self._classes[kind] = found
        return found


@cache
def _torch_mask(own: str) -> str:
    """What torch.nn.utils.prune calls the mask of a parameter."""
    return f"{own.removesuffix('_orig')}_mask"


def _unwrapped(module: nn.Module) -> nn.Module:
    """What is inside all wrappers."""
    while inside := [m for n, m in module._modules.items() if m is not None and n in _WRAPPERS]:
        module = inside[-1]
    return module


def _is_plain(parameter: nn.Parameter, owner: nn.Module) -> bool:
    """Whether only its own full name selects it: biases, and what belongs to a norm."""
    if isinstance(owner, _NORMS) or parameter.ndim < 2:
        kind: type = type(parameter)  # one without a shape is selected, and refused with a reason
        return kind is not nn.parameter.UninitializedParameter
    return False


def _nothing_matched(wanted: tuple[str, ...], unwanted: tuple[str, ...], search: _Search) -> str:
    if not search.first:
        return "the model has no parameters; expected at least one that the targets name"
    met = list(search.first.values())
    classes = sorted({type(owner).__name__ for *_, p, owner in met if not _is_plain(p, owner)})
    kept = f", less {unwanted}," if unwanted else ""
    first = ".".join(met[0][:2]).lstrip(".")
    return (
        f"targets {wanted}{kept} match no parameter; the model has weights in modules of class "
        f"{', '.join(classes) or '(none)'}, its first parameter is {first!r}"
    )


def _refuse_computed(name: str) -> NoReturn:
    """Refuse what a weight is computed from: its zeros need not be zeros of the weight.

    Of a weight norm the length of each row would be cut together with its direction, and a row
    without a direction is NaN. Who names such a parameter in full knows what it is.
    """
    raise InvalidInput(
        f"{name} is what a weight is computed from (a weight norm or another "
        "parametrization), so that zeros in it need not be zeros of the weight; make the weight "
        "plain (torch.nn.utils.parametrize.remove_parametrizations), ignore the module, or give "
        "the parameter's full name as a target"
    )


def _refuse_unusable(name: str, parameter: nn.Parameter) -> None:
    if issubclass(type(parameter), nn.parameter.UninitializedParameter):
        raise InvalidInput(f"{name} has no shape yet; run the lazy module once first")
    if parameter.is_meta:
        raise InvalidInput(f"{name} is on the meta device; load its values first")
    if parameter.dtype not in _DTYPES:
        raise InvalidInput(
            f"{name} has dtype {parameter.dtype}; expected float16, bfloat16, float32 or float64"
        )
