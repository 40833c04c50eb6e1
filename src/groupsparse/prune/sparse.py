"""Linear layers that skip their zeros: compressed rows instead of a dense matrix, for inference."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import InvalidInput
from .competing import checked_sparsity
from .targets import Pattern, Target, select

_ROUNDS = 30
# A swap has to win clearly: below this the difference is noise, and the dense layer is simpler.
_CLEARLY = 0.9


class _Shown:
    """A compressed layer's matrix, for code that looks at ``layer.weight`` before it calls.

    It tells dtype, device and shape, and becomes dense where somebody computes with it. PyTorch's
    fused encoder layers take the weights out of their Linear layers, unless one of them is no plain
    tensor, as this: then they call the layers.
    """

    def __init__(self, layer: CSRLinear) -> None:
        self._layer = layer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._layer.matrix(), name)

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], _: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        named = {name: _dense(value) for name, value in (kwargs or {}).items()}
        return function(*map(_dense, args), **named)


def _dense(given: Any) -> Any:
    return given.to_dense() if isinstance(given, _Shown) else given


class CSRLinear(nn.Module):
    """``y = W x + b`` with W in compressed sparse rows, for inference.

    Its parameters are buffers: nothing here can be trained. `dense_linear` takes it back.
    """

    crow: Tensor
    column: Tensor
    values: Tensor
    bias: Tensor | None

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
            compressed = linear.weight.detach().to_sparse_csr()
        self.register_buffer("crow", compressed.crow_indices().to(torch.int32))
        self.register_buffer("column", compressed.col_indices().to(torch.int32))
        self.register_buffer("values", compressed.values())
        self.register_buffer("bias", None if linear.bias is None else linear.bias.detach())

    def matrix(self) -> Tensor:
        """W as a sparse tensor over the buffers' memory."""
        shape = (self.out_features, self.in_features)
        return torch.sparse_csr_tensor(
            self.crow,
            self.column,
            self.values,
            shape,
            device=self.values.device,
            check_invariants=False,
        )

    @property
    def weight(self) -> Any:
        """W, for code that looks at a layer's dtype, device or shape before it calls the layer."""
        return _Shown(self)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-1:] != (self.in_features,):
            raise InvalidInput(
                f"an input has shape {tuple(x.shape)}; its last axis has to be {self.in_features}"
            )
        if not torch.is_autocast_enabled(x.device.type):
            return self._product(x)
        # Sparse products know no bfloat16 on a CPU, which is what autocast would make of them.
        with torch.autocast(x.device.type, enabled=False):
            return self._product(x.to(self.values.dtype))

    def _product(self, x: Tensor) -> Tensor:
        columns = x.reshape(-1, self.in_features).t()
        product = (self.matrix() @ columns).t()
        if self.bias is not None:
            product = product + self.bias
        return product.reshape(*x.shape[:-1], self.out_features)

    def to_linear(self) -> nn.Linear:
        """The ordinary layer."""
        linear = nn.Linear(
            self.in_features,
            self.out_features,
            bias=self.bias is not None,
            device=self.values.device,
            dtype=self.values.dtype,
        )
        with torch.no_grad():
            linear.weight.copy_(self.matrix().to_dense())
            if self.bias is not None:
                linear.bias.copy_(self.bias)
        return linear

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"values={self.values.numel()}"
        )


def sparse_linear(
    model: nn.Module,
    *,
    batch: int = 1,
    min_sparsity: float | None = None,
    targets: Iterable[Pattern] | Pattern = ("Linear",),
    ignore: Iterable[Pattern] | Pattern = (),
) -> list[str]:
    """Swap Linear layers for compressed ones where that is faster on this CPU; for inference.

    Parameters
    ----------
    model : torch.nn.Module
        Changed in place. A model that is itself a Linear cannot be swapped: put it in a Sequential.
    batch : int
        How many inputs a call will bring; both kinds are timed on that many.
    min_sparsity : float, optional
        Do not measure: swap every layer with at least this fraction of zeros.
    targets, ignore : tuple of str or module classes
        Which layers are considered; see `select`. Only modules of class Linear itself are swapped.

    Returns
    -------
    list of str
        The names of the layers that were swapped.

    Examples
    --------
    >>> import torch
    >>> from groupsparse import prune
    >>> model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU())
    >>> masks = prune.cut(model, sparsity=0.95)
    >>> x = torch.randn(3, 64)
    >>> with torch.no_grad():
    ...     before = model(x)
    ...     names = prune.sparse_linear(model, min_sparsity=0.9)
    ...     after = model(x)
    >>> names, torch.allclose(before, after, atol=1e-6)
    (['0'], True)
    """
    if isinstance(model, nn.Linear):
        raise InvalidInput("the model is one Linear; wrap it: torch.nn.Sequential(layer)")
    if batch < 1:
        raise InvalidInput(f"batch is {batch}; expected at least 1")
    if min_sparsity is not None:
        min_sparsity = checked_sparsity(min_sparsity, "min_sparsity")
    owners = {id(t.owner): t for t in select(model, targets, ignore) if _swappable(t)}
    swaps: dict[int, CSRLinear] = {}
    for key, target in owners.items():
        assert isinstance(target.owner, nn.Linear)
        if _worth_it(target.owner, batch, min_sparsity):
            swaps[key] = CSRLinear(target.owner)
    return _replace(model, lambda child: swaps.get(id(child)))


def dense_linear(model: nn.Module) -> list[str]:
    """Take `sparse_linear` back: compressed layers become ordinary ones, of the same values.

    Parameters
    ----------
    model : torch.nn.Module
        Changed in place.

    Returns
    -------
    list of str
        The names of the layers that were taken back.

    Examples
    --------
    >>> import torch
    >>> from groupsparse import prune
    >>> model = torch.nn.Sequential(torch.nn.Linear(8, 2))
    >>> prune.sparse_linear(model, min_sparsity=0.0), prune.dense_linear(model)
    (['0'], ['0'])
    """
    found = [module for module in model.modules() if isinstance(module, CSRLinear)]
    back = {id(module): module.to_linear() for module in found}
    return _replace(model, lambda child: back.get(id(child)))


def _replace(model: nn.Module, other: Callable[[nn.Module], nn.Module | None]) -> list[str]:
    """Put other modules in the place of those for which there are any; the names that changed."""
    changed: list[str] = []
    for path, parent in list(model.named_modules()):
        for name, child in list(parent._modules.items()):  # named_children skips second uses
            replacement = None if child is None else other(child)
            if child is not None and replacement is not None:
                replacement.train(child.training)
                setattr(parent, name, replacement)
                changed.append(f"{path}.{name}".lstrip("."))
    return changed


def _swappable(target: Target) -> bool:
    return type(target.owner) is nn.Linear and target.parameter is target.owner.weight


def _worth_it(linear: nn.Linear, batch: int, min_sparsity: float | None) -> bool:
    weight = linear.weight.detach()
    if min_sparsity is not None:
        return int(weight.count_nonzero()) <= (1.0 - min_sparsity) * weight.numel()
    if weight.device.type != "cpu":
        return False
    x = torch.randn(batch, linear.in_features, dtype=weight.dtype, device=weight.device)
    compressed = CSRLinear(linear)
    with torch.inference_mode():
        try:
            compressed(x)
            linear(x)
        except RuntimeError:  # builds of PyTorch without a sparse library, or dtypes it lacks
            return False
        dense, sparse = _fastest(lambda: linear(x), lambda: compressed(x))
    return sparse < _CLEARLY * dense


def _fastest(*calls: Callable[[], object]) -> list[float]:
    """The fewest seconds of each, taking turns: what a busy machine adds is not the layer's."""
    seconds: list[list[float]] = [[] for _ in calls]
    for _ in range(_ROUNDS):
        for call, times in zip(calls, seconds, strict=True):
            began = time.perf_counter()
            call()
            times.append(time.perf_counter() - began)
    return [min(times) for times in seconds]
