"""Which parameters of a model are meant, and under which name.

A parameter is addressed by the class of its module, by a name, or by a ``re:`` pattern. Naming a
module, in any of the three ways, names everything inside it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache

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
_WRAPPERS = re.compile(r"(^|\.)(_orig_mod|_checkpoint_wrapped_module|_fsdp_wrapped_module)(?=\.|$)")


@dataclass(frozen=True)
class Target:
    """A parameter that a pattern selected, its name in the bare model, and its module."""

    name: str
    parameter: nn.Parameter
    owner: nn.Module


@dataclass(slots=True)
class _Candidate:
    """A parameter with everything a pattern may be compared to, under all of its names.

    ``parts`` and ``classes`` are sets that candidates share: names and classes of what encloses it.
    """

    parameter: nn.Parameter
    owner: nn.Module
    names: list[str]
    parts: list[frozenset[str]]
    classes: list[frozenset[str]]

    @property
    def plain(self) -> bool:
        """Whether only its own full name selects it: biases, and what belongs to a norm."""
        kind: type = type(self.parameter)
        if kind is nn.parameter.UninitializedParameter:
            return False  # let it be selected, and refused with a reason
        return self.parameter.ndim < 2 or isinstance(self.owner, _NORMS)


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
    return _WRAPPERS.sub("", name).lstrip(".")


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
    candidates = _candidates(bare(model))
    taken, left = _Selection(wanted), _Selection(unwanted)
    chosen = [c for c in candidates if taken.selects(c) and not (unwanted and left.matches(c))]
    if not chosen:
        raise InvalidInput(_nothing_matched(wanted, unwanted, candidates))
    for candidate in chosen:
        _refuse_computed(candidate, wanted)
        _refuse_unusable(candidate)
    return [Target(c.names[0], c.parameter, c.owner) for c in chosen]


def named_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Every parameter under every one of its names in the bare model."""
    pairs = bare(model).named_parameters(remove_duplicate=False)
    return {clean_name(name): parameter for name, parameter in pairs}


class Matcher:
    """Whether a pattern names a target, for one model that is walked once."""

    def __init__(self, model: nn.Module) -> None:
        self.candidates = {id(c.parameter): c for c in _candidates(bare(model))}

    def __call__(self, pattern: Pattern, target: Target) -> bool:
        (text,) = as_patterns(pattern)
        return _Selection((text,)).matches(self.candidates[id(target.parameter)])


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


def _candidates(model: nn.Module) -> list[_Candidate]:
    found: dict[int, _Candidate] = {}
    for path, module, (parts, classes) in _places(model):
        own_classes = _class_names(type(module).__mro__)
        buffers = module._buffers
        for own, parameter in module._parameters.items():
            if parameter is None:
                continue
            if buffers and f"{own.removesuffix('_orig')}_mask" in buffers:
                raise InvalidInput(
                    f"{path or 'the model'} was pruned by torch.nn.utils.prune ({own!r} and its "
                    "mask); call prune.import_from_torch_prune(model) first"
                )
            name = clean_name(f"{path}.{own}")
            candidate = found.get(id(parameter))
            if candidate is None:
                found[id(parameter)] = _Candidate(
                    parameter, module, [name], [parts], [own_classes, classes]
                )
            else:
                candidate.names.append(name)
                candidate.parts.append(parts)
                candidate.classes += (own_classes, classes)
    return list(found.values())


def _places(model: nn.Module) -> Iterator[tuple[str, nn.Module, _Place]]:
    """Every module with parameters of its own under each of its paths, and what encloses it."""
    walk = _walk(model, "")
    modules = {clean_name(path): module for path, module in walk}
    places: dict[str, _Place] = {"": (frozenset(), frozenset())}
    for path, module in walk:
        if module._parameters:
            yield path, module, _place(clean_name(path), modules, places)


def _walk(module: nn.Module, path: str) -> list[tuple[str, nn.Module]]:
    """``named_modules(remove_duplicate=False)``, whose nested generators take twice the time."""
    found = [(path, module)]
    for name, child in module._modules.items():
        if child is not None:
            found += _walk(child, f"{path}.{name}" if path else name)
    return found


_Place = tuple[frozenset[str], frozenset[str]]


def _place(path: str, modules: Mapping[str, nn.Module], known: dict[str, _Place]) -> _Place:
    """The names of a module and of all that enclose it below the model, and their classes."""
    if path not in known:
        parts, classes = _place(path.rpartition(".")[0], modules, known)
        if (inside := modules.get(path)) is not None:
            classes = classes | _class_names(type(inside).__mro__)
        known[path] = parts | {path}, classes
    return known[path]


@cache
def _class_names(mro: tuple[type, ...]) -> frozenset[str]:
    return frozenset(kind.__name__ for kind in mro)


class _Selection:
    """Patterns, sorted into names and regular expressions once for all candidates."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self.names = frozenset(patterns)
        self.expressions = [re.compile(p[3:]) for p in self.names if p.startswith("re:")]

    def matches(self, candidate: _Candidate) -> bool:
        """Whether a pattern names it, or what encloses it."""
        wanted = self.names
        for several in (candidate.classes, candidate.parts):
            for each in several:
                if not wanted.isdisjoint(each):
                    return True
        if not wanted.isdisjoint(candidate.names):
            return True
        if not self.expressions:
            return False
        texts = frozenset(candidate.names).union(*candidate.parts)
        return any(e.fullmatch(text) for e in self.expressions for text in texts)

    def selects(self, candidate: _Candidate) -> bool:
        """The same, but for biases and norms, which only their own full names select."""
        if candidate.plain:
            return not self.names.isdisjoint(candidate.names)
        return self.matches(candidate)


def _nothing_matched(
    wanted: tuple[str, ...], unwanted: tuple[str, ...], candidates: list[_Candidate]
) -> str:
    if not candidates:
        return "the model has no parameters; expected at least one that the targets name"
    classes = sorted({type(c.owner).__name__ for c in candidates if not c.plain})
    kept = f", less {unwanted}," if unwanted else ""
    return (
        f"targets {wanted}{kept} match no parameter; the model has weights in modules of class "
        f"{', '.join(classes) or '(none)'}, its first parameter is {candidates[0].names[0]!r}"
    )


def _refuse_computed(candidate: _Candidate, wanted: tuple[str, ...]) -> None:
    """Refuse what a weight is computed from: its zeros need not be zeros of the weight.

    Of a weight norm the length of each row would be cut together with its direction, and a row
    without a direction is NaN. Who names such a parameter in full knows what it is.
    """
    if not _is_computed_from(candidate) or any(name in wanted for name in candidate.names):
        return
    raise InvalidInput(
        f"{candidate.names[0]} is what a weight is computed from (a weight norm or another "
        "parametrization), so that zeros in it need not be zeros of the weight; make the weight "
        "plain (torch.nn.utils.parametrize.remove_parametrizations), ignore the module, or give "
        "the parameter's full name as a target"
    )


def _is_computed_from(candidate: _Candidate) -> bool:
    """Whether torch.nn.utils.parametrize, or the older hooks, make a weight of this parameter."""
    if any("ParametrizationList" in classes for classes in candidate.classes):
        return True
    hooks = candidate.owner._forward_pre_hooks.values()
    if not hooks:
        return False
    made = [getattr(hook, "name", "") for hook in hooks if type(hook).__name__ in _OLDER_NORMS]
    sources = {f"{weight}_{part}" for weight in made for part in ("g", "v", "orig")}
    return any(name.rpartition(".")[2] in sources for name in candidate.names)


def _refuse_unusable(candidate: _Candidate) -> None:
    name, parameter = candidate.names[0], candidate.parameter
    if isinstance(parameter, nn.parameter.UninitializedParameter):
        raise InvalidInput(f"{name} has no shape yet; run the lazy module once first")
    if parameter.is_meta:
        raise InvalidInput(f"{name} is on the meta device; load its values first")
    if parameter.dtype not in _DTYPES:
        raise InvalidInput(
            f"{name} has dtype {parameter.dtype}; expected float16, bfloat16, float32 or float64"
        )
