"""Pruning before training: SNIP, GraSP and SynFlow, each a score and a cut."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ...errors import InvalidInput
from ..competing import checked_sparsity
from ..cutting import cut_by, lowest
from ..masks import Masks
from ..sharding import is_sharded
from ..targets import DEFAULT_TARGETS, Pattern, Target, bare, clean_name, select

Loss = Callable[[nn.Module], Tensor]


def snip(
    model: nn.Module,
    sparsity: float,
    loss: Loss,
    *,
    scope: str = "model",
    floor: int = 0,
    targets: Iterable[Pattern] | Pattern = DEFAULT_TARGETS,
    ignore: Iterable[Pattern] | Pattern = (),
) -> Masks:
    """Keep the connections that the loss is most sensitive to: |θ · ∂L/∂θ| (Lee et al., 2019).

    Parameters
    ----------
    model, sparsity, scope, floor, targets, ignore
        As in `cut`.
    loss : callable
        Takes the model and returns the loss on a batch. Buffers (running averages) and gradients
        are afterwards as they were. Parameters that it does not use have score 0.

    Returns
    -------
    Masks
        Where the zeros are.

    Examples
    --------
    >>> import torch
    >>> from groupsparse import prune
    >>> model, x, y = torch.nn.Linear(10, 10), torch.randn(8, 10), torch.randn(8, 10)
    >>> loss = lambda model: (model(x) - y).square().mean()
    >>> prune.baselines.snip(model, 0.9, loss).zeros
    90
    """
    found = _whole(select(model, targets, ignore))
    scores = snip_scores(model, found, loss)
    return cut_by(found, scores, sparsity, scope=scope, floor=floor)


def snip_scores(model: nn.Module, found: list[Target], loss: Loss) -> dict[str, Tensor]:
    """|θ · ∂L/∂θ| of every entry."""
    with _buffers_kept(model), torch.enable_grad(), _differentiable(found):
        parameters = [target.parameter for target in found]
        value = _checked(loss(model))
        gradients = torch.autograd.grad(value, parameters, materialize_grads=True)
    return {t.name: _times(t, g).abs() for t, g in zip(found, gradients, strict=True)}


def grasp(
    model: nn.Module,
    sparsity: float,
    loss: Loss,
    *,
    scope: str = "model",
    floor: int = 0,
    targets: Iterable[Pattern] | Pattern = DEFAULT_TARGETS,
    ignore: Iterable[Pattern] | Pattern = (),
) -> Masks:
    """Keep the gradient flow ‖∂L/∂θ‖²: entries with the lowest θ · Hg go (Wang et al., 2020).

    Removing an entry changes the gradient flow by −2 θ · Hg to first order, so the entries whose
    removal raises it most go first. The paper divides the logits by a temperature of 200 within the
    loss.

    Parameters
    ----------
    model, sparsity, loss, scope, floor, targets, ignore
        As in `snip`; the loss is differentiated twice.

    Returns
    -------
    Masks
        Where the zeros are.

    Examples
    --------
    >>> import torch
    >>> from groupsparse import prune
    >>> model, x, y = torch.nn.Linear(10, 10), torch.randn(8, 10), torch.randn(8, 10)
    >>> loss = lambda model: (model(x) - y).square().mean()
    >>> prune.baselines.grasp(model, 0.9, loss).zeros
    90
    """
    found = _whole(select(model, targets, ignore))
    scores = grasp_scores(model, found, loss)
    return cut_by(found, scores, sparsity, scope=scope, floor=floor)


def grasp_scores(model: nn.Module, found: list[Target], loss: Loss) -> dict[str, Tensor]:
    """θ · Hg of every entry, with g the gradient of the loss and H its Hessian."""
    parameters = [target.parameter for target in found]
    with _buffers_kept(model), torch.enable_grad(), _differentiable(found):
        gradients = torch.autograd.grad(
            _checked(loss(model)), parameters, create_graph=True, materialize_grads=True
        )
        flow = torch.stack([(g.detach() * g).sum() for g in gradients]).sum()
        if flow.requires_grad:
            products = torch.autograd.grad(flow, parameters, materialize_grads=True)
        else:  # the loss is linear in all of them
            products = tuple(torch.zeros_like(parameter) for parameter in parameters)
    return {t.name: _times(t, p) for t, p in zip(found, products, strict=True)}


def _checked(value: Tensor) -> Tensor:
    """The loss, if it is one number that was computed from the model."""
    if not isinstance(value, Tensor) or value.numel() != 1:
        told = tuple(value.shape) if isinstance(value, Tensor) else repr(value)
        raise InvalidInput(f"the loss is {told}; expected a tensor with one number")
    if not value.requires_grad:
        raise InvalidInput(
            "the loss depends on no parameter that is to be pruned; expected one that is computed "
            "from the model that loss is given, without detach or no_grad"
        )
    return value


def _times(target: Target, factor: Tensor) -> Tensor:
    """θ times something, at least in float32: the products of halves vanish in float16."""
    parameter = target.parameter.detach()
    return parameter.to(torch.promote_types(parameter.dtype, torch.float32)) * factor


def synflow(
    model: nn.Module,
    sparsity: float,
    example: Tensor,
    *,
    rounds: int = 100,
    scope: str = "model",
    floor: int = 0,
    targets: Iterable[Pattern] | Pattern = DEFAULT_TARGETS,
    ignore: Iterable[Pattern] | Pattern = (),
) -> Masks:
    """Keep the synaptic flow |θ · ∂R/∂θ| with R = 1ᵀ f_|θ|(1), without data (Tanaka et al., 2020).

    The remaining fraction falls exponentially over the rounds, which is what keeps every layer
    connected. Works on absolute values in float64 and in evaluation mode; the model itself is only
    changed by the final cut.

    Parameters
    ----------
    model, sparsity, scope, floor, targets, ignore
        As in `cut`.
    example : torch.Tensor
        One input of the model; only its shape and device are used. Token numbers (int32, int64)
        are taken as they are.
    rounds : int
        How often the scores are computed anew.

    Returns
    -------
    Masks
        Where the zeros are.

    Examples
    --------
    >>> import torch
    >>> from groupsparse import prune
    >>> layers = torch.nn.Linear(10, 10), torch.nn.ReLU(), torch.nn.Linear(10, 2)
    >>> model = torch.nn.Sequential(*layers)
    >>> prune.baselines.synflow(model, 0.9, torch.zeros(1, 10), rounds=10).zeros
    108
    """
    sparsity = checked_sparsity(sparsity)
    if rounds < 1:
        raise InvalidInput(f"rounds is {rounds}; expected at least 1")
    found = _whole(select(model, targets, ignore))
    kept: dict[str, Tensor] = {}
    scores: dict[str, Tensor] = {}
    for done in range(1, rounds + 1):
        scores = synflow_scores(model, found, example, kept)
        share = 1.0 - (1.0 - sparsity) ** (done / rounds) if done < rounds else sparsity
        gone = lowest(found, scores, share, scope=scope, floor=floor)
        kept = {target.name: ~where for target, where in gone}
    return cut_by(found, scores, sparsity, scope=scope, floor=floor)


def synflow_scores(
    model: nn.Module, found: list[Target], example: Tensor, kept: dict[str, Tensor] | None = None
) -> dict[str, Tensor]:
    """|θ · ∂R/∂θ| of every entry, where those that are not kept count as zero."""
    inner = bare(model)
    state: dict[str, Tensor] = {}
    for name, value in [*inner.named_parameters(), *inner.named_buffers()]:
        positive = value.detach().abs()
        state[name] = positive.double() if positive.is_floating_point() else positive
        if kept and clean_name(name) in kept:
            state[name] = state[name] * kept[clean_name(name)]
    own = {clean_name(name): name for name in state}
    leaves = [state[own[target.name]].requires_grad_() for target in found]
    training = {module: module.training for module in inner.modules()}
    inner.eval()
    try:
        with torch.enable_grad():
            output = functional_call(inner, state, (_ones(example),))
            flows = torch.autograd.grad(output.sum(), leaves, materialize_grads=True)
    finally:
        for module, mode in training.items():
            module.training = mode
    return {
        t.name: (leaf.detach() * flow).abs()
        for t, leaf, flow in zip(found, leaves, flows, strict=True)
    }


def _ones(example: Tensor) -> Tensor:
    if example.dtype in (torch.int32, torch.int64):
        return example
    return torch.ones_like(example, dtype=torch.float64)


def _whole(found: list[Target]) -> list[Target]:
    for target in found:
        if is_sharded(target.parameter):
            raise InvalidInput(
                f"{target.name} is sharded; compute scores that need gradients before fully_shard"
            )
    return found


@contextmanager
def _buffers_kept(model: nn.Module) -> Iterator[None]:
    """Put buffers back that a forward pass changes, such as running averages."""
    before = {name: buffer.detach().clone() for name, buffer in model.named_buffers()}
    try:
        yield
    finally:
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                buffer.copy_(before[name])


@contextmanager
def _differentiable(found: list[Target]) -> Iterator[None]:
    """Let frozen parameters have gradients for a moment."""
    wanted = [target.parameter.requires_grad for target in found]
    try:
        for target in found:
            target.parameter.requires_grad_(True)
        yield
    finally:
        for target, want in zip(found, wanted, strict=True):
            target.parameter.requires_grad_(want)
