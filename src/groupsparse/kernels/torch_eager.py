"""The eager PyTorch kernel: any device, no compiler, and a second opinion on the others.

The formulas are those of the reference kernel, in float64 where the device has it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ..layout import BIG, Block
from . import NotFinite, OutOfRange
from .reference import LARGEST_SQUARE, SMALLEST_SQUARE, ReferenceKernel

Tensor = torch.Tensor


class TorchKernel(ReferenceKernel):
    """See :class:`groupsparse.kernels.Kernel`."""

    name = "torch"

    def _part(self, block: Block) -> Any:
        return _Part(block)


def working_dtype(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "mps" else torch.float64


class _Part:
    def __init__(self, block: Block) -> None:
        self.block = block
        self.values = as_tensor(block.values)
        self.dtype = working_dtype(self.values.device)
        self.magnitude = self.values.abs().to(self.dtype)
        self.weight = None if block.weights is None else self._tensor(block.weights)
        self.beta, self.rate = self._tensor(block.beta), self._tensor(block.rate)

    def _tensor(self, x: Any) -> Tensor:
        return as_tensor(np.asarray(x) if isinstance(x, float) else x).to(
            device=self.values.device, dtype=self.dtype
        )

    def _sums(self, mu: float) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Threshold, excess and the three sums at μ."""
        t = (mu * self.rate).clamp(max=BIG if self.dtype == torch.float64 else 1e30)
        spread = t.unsqueeze(1) if t.ndim else t
        w = self.weight
        d = (self.magnitude - (spread if w is None else spread * w)).clamp_(min=0.0)
        q = (d * d).sum(1)
        if w is None:
            return t, d, d.sum(1), q, (d > 0.0).sum(1).to(self.dtype)
        return t, d, (d * w).sum(1), q, (w * w * (d > 0.0)).sum(1)

    def begin(self) -> tuple[float, float]:
        _, _, _, q, _ = self._sums(0.0)
        smallest = q[self.magnitude.amax(1) > 0.0]
        largest = float(q.max())
        if not largest < LARGEST_SQUARE or bool((smallest < SMALLEST_SQUARE).any()):
            raise OutOfRange if bool(self.magnitude.isfinite().all()) else NotFinite
        return self.evaluate(0.0)

    def evaluate(self, mu: float) -> tuple[float, float]:
        t, _, s, q, n = self._sums(mu)
        live = q > 0.0
        inverse = torch.where(live, q, 1.0).rsqrt()
        term = torch.where(live, s * inverse, self._corner(t)[1])
        slope = torch.where(live, (term * term - n) * inverse, 0.0)
        return float((term * self.beta).sum()), float((slope * self.beta * self.rate).sum())

    def _corner(self, t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Where the 1-sparse answer of each vector sits, its weight and its magnitude."""
        if self.weight is None:
            top, at = self.magnitude.max(1)
            return at, torch.ones_like(top), top
        weight = self.weight.expand_as(self.magnitude)
        spread = t.unsqueeze(1) if t.ndim else t
        depth = self.magnitude - spread * (weight - weight.amin(1, keepdim=True))
        best = depth == depth.amax(1, keepdim=True)
        best |= self.magnitude.amax(1, keepdim=True) == 0.0
        at = torch.where(best, weight, torch.inf).argmin(1)
        index = at.unsqueeze(1)
        return at, weight.gather(1, index).squeeze(1), self.magnitude.gather(1, index).squeeze(1)

    def upper(self) -> float:
        if self.weight is None:
            return _just_above(self.magnitude.amax(1) / self.rate)
        weight = self.weight.expand_as(self.magnitude)
        least = weight.amin(1, keepdim=True)
        keeper = torch.where(weight == least, self.magnitude, -torch.inf).amax(1, keepdim=True)
        lead = (self.magnitude - torch.where(least > 0.0, keeper, 0.0)).clamp(min=0.0)
        overtaken = (lead / torch.where(weight > least, weight - least, torch.inf)).amax(1)
        emptied = torch.where(least > 0.0, keeper / least, 0.0).squeeze(1)
        return _just_above(torch.maximum(overtaken, emptied) / self.rate)

    def objective(self, mu: float) -> tuple[float, float]:
        t, _, s, q, _ = self._sums(mu)
        live, root = q > 0.0, q.sqrt()
        _, weight, magnitude = self._corner(t)
        primal = torch.where(live, (q + t * s) / torch.where(live, root, 1.0), magnitude)
        scale = self.beta / self.rate
        value = torch.where(live, root * scale, magnitude * scale - mu * self.beta * weight)
        return float((primal * scale).sum()), float(value.sum())

    def longest(self, mu: float) -> float:
        t, _, s, q, _ = self._sums(mu)
        return float(torch.where(q > 0.0, (q + t * s) / q.sqrt(), 0.0).max())

    def write(self, mu: float) -> None:
        t, d, s, q, _ = self._sums(mu)
        live = q > 0.0
        factor = torch.where(live, 1.0 + t * s / torch.where(live, q, 1.0), 0.0)
        z = d.mul_(factor.unsqueeze(1))
        at, _, magnitude = self._corner(t)
        z.scatter_add_(1, at.unsqueeze(1), torch.where(live, 0.0, magnitude).unsqueeze(1))
        out = as_tensor(self.block.out)
        out.copy_(z.copysign_(self.values).add_(0.0))  # adding 0 turns -0.0 into 0.0


def as_tensor(x: Any) -> Tensor:
    """A tensor over the same memory; NumPy arrays that PyTorch cannot share are copied."""
    if isinstance(x, np.ndarray) and (not x.flags.writeable or min(x.strides, default=0) < 0):
        x = x.copy()
    return torch.as_tensor(x)


def _just_above(mu: Tensor) -> float:
    return float(mu.max()) * (1.0 + 2.0**-50)
