"""Zeros that no optimizer brings back: two hooks on each optimizer, none on the model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .gpu.masking import Sweep
from .hooks import Hooks, as_optimizers, refuse_strangers
from .packing import PackedMask, zero_all_
from .sharding import local


class Frozen(Hooks):
    """The hooks that keep masked entries at zero; made by ``Masks.frozen``.

    With a gradient of zero, a value of zero and cleared memory, weight decay, momentum and Adam
    have nothing to work with. The second hook is for the optimizers that mix entries (Muon, SOAP),
    add noise, or compute gradients of their own within the step.
    """

    def __init__(
        self,
        optimizer: Optimizer | Iterable[Optimizer],
        pairs: Sequence[tuple[nn.Parameter, PackedMask]] = (),
    ) -> None:
        super().__init__(as_optimizers(optimizer))
        self._pairs: list[tuple[nn.Parameter, PackedMask]] = []
        # How gradients and parameters of each optimizer lie.
        self._sweeps: defaultdict[tuple[int, str], Sweep] = defaultdict(Sweep)
        if pairs:
            self.hold(pairs)
        for each in self._optimizers:
            self._handles.append(each.register_step_pre_hook(self._before))
            self._handles.append(each.register_step_post_hook(self._after))

    def hold(self, pairs: Sequence[tuple[nn.Parameter, PackedMask]]) -> None:
        """Hold these zeros from now on, instead of those before."""
        refuse_strangers(self._optimizers, [parameter for parameter, _ in pairs])
        self._pairs = [(parameter, mask.to(parameter.device)) for parameter, mask in pairs]
        for each in self._optimizers:
            self._clear_memory(each)

    @property
    def active(self) -> bool:
        """Whether the hooks are in place."""
        return bool(self._handles)

    @torch.no_grad()
    def _before(self, optimizer: Optimizer, *_: Any) -> None:
        held = [(parameter.grad, mask) for parameter, mask in self._of(optimizer)]
        pairs = [(local(g), mask) for g, mask in held if g is not None and not g.is_sparse]
        zero_all_(pairs, self._sweeps[id(optimizer), "gradients"])

    @torch.no_grad()
    def _after(self, optimizer: Optimizer, *_: Any) -> None:
        pairs = [(local(parameter), mask) for parameter, mask in self._of(optimizer)]
        zero_all_(pairs, self._sweeps[id(optimizer), "parameters"])

    @torch.no_grad()
    def _clear_memory(self, optimizer: Optimizer) -> None:
        for parameter, mask in self._of(optimizer):
            for memory in optimizer.state.get(parameter, {}).values():
                if not isinstance(memory, Tensor) or not memory.is_floating_point():
                    continue  # of quantised moments nobody here knows which code is zero
                if memory.shape == parameter.shape:
                    mask.zero_(local(memory))

    def _of(self, optimizer: Optimizer) -> Iterable[tuple[nn.Parameter, PackedMask]]:
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        return [pair for pair in self._pairs if id(pair[0]) in held]
