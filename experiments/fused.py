"""Batch norm, ReLU and 2 × 2 pooling in one pass over memory, and all casts of a step in one.

A training step of VGG-16 mostly moves memory: PyTorch reads and writes an activation once for every
layer. Here the two passes that batch norm needs are all there are: one for its statistics, one that
normalises, cuts at zero and, where a pool follows, keeps the largest of each window. The way back
is the same: one pass for the two sums of each channel, one for the gradient. What lies between the
layers of a block is never written, but computed again from the block's input.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
import triton
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import max_pool2d, relu

from experiments.fused_kernels import (
    combine_gradients,
    combine_moments,
    sum_gradients,
    sum_moments,
    write_gradient,
    write_output,
)
from experiments.networks import BasicBlock

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
WARPS = 4
TILE, POOLED_TILE = 64, 16  # units in a tile: with four rows each, as many bytes
STAGES = 3  # tiles whose loads are under way at once in the loops of the sums
PROGRAMS = 528  # of a pass that sums: four on each multiprocessor of an H200
MOST_SPLITS = 512
COMBINED = 8  # channels of one program that adds up: their float32 fill a sector of 32 bytes


class _Shape:
    """How the passes over one activation are cut into programs."""

    def __init__(self, x: Tensor, pool: bool) -> None:
        count, self.channels, height, width = x.shape
        self.rows, self.half = count * height * width, max(width // 2, 1)
        self.units = self.rows // 4 if pool else self.rows
        self.tile = POOLED_TILE if pool else TILE
        self.width = min(64, triton.next_power_of_2(self.channels))
        self.blocks = triton.cdiv(self.channels, self.width)

    def split(self, count: int, tile: int) -> tuple[int, int]:
        """Cut so many units for a sum: how many each program gets, and how many programs."""
        most = min(max(PROGRAMS // self.blocks, 1), MOST_SPLITS)
        chunk = triton.cdiv(triton.cdiv(count, tile), most) * tile
        return chunk, triton.cdiv(count, chunk)

    def summing(self, splits: int) -> tuple[tuple[int], dict[str, int]]:
        """Grid and constants of a kernel that adds up; few sizes, so that few are compiled."""
        constants = {"SPLITS": 64 if splits <= 64 else MOST_SPLITS, "WIDTH": COMBINED}
        return (triton.cdiv(self.channels, COMBINED),), constants


class _NormReLU(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, running_mean: Tensor,
        running_var: Tensor, momentum: float, eps: float, pool: bool,
    ) -> Tensor:  # fmt: skip
        shape = _Shape(x, pool)
        chunk, splits = shape.split(shape.rows, TILE)
        parts = torch.empty(2, splits, shape.channels, device=x.device)
        mean, deviation = torch.empty(2, shape.channels, device=x.device)
        sum_moments[splits, shape.blocks](
            x, parts, shape.rows, shape.channels, chunk, splits,
            TILE=TILE, WIDTH=shape.width, STAGES=STAGES, num_warps=WARPS,
        )  # fmt: skip
        grid, constants = shape.summing(splits)
        combine_moments[grid](
            parts, mean, deviation, running_mean, running_var, shape.rows, shape.channels,
            chunk, splits, momentum, eps, **constants, num_warps=WARPS,
        )  # fmt: skip
        count, channels, height, width = x.shape
        size = (count, channels, height // 2, width // 2) if pool else x.shape
        y = torch.empty(size, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
        write_output[triton.cdiv(shape.units, shape.tile), shape.blocks](
            x, y, mean, deviation, weight, bias, shape.units, shape.channels, shape.half,
            TILE=shape.tile, WIDTH=shape.width, POOL=pool, num_warps=WARPS,
        )  # fmt: skip
        ctx.save_for_backward(x, weight, bias, mean, deviation)
        ctx.pool = pool
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        x, weight, bias, mean, deviation = ctx.saved_tensors
        dy = gradients[0].contiguous(memory_format=torch.channels_last)
        shape = _Shape(x, ctx.pool)
        chunk, splits = shape.split(shape.units, shape.tile)
        parts = torch.empty(2, splits, shape.channels, device=x.device)
        dweight, dbias, level, slope = torch.empty(4, shape.channels, device=x.device)
        sum_gradients[splits, shape.blocks](
            x, dy, parts, mean, deviation, weight, bias,
            shape.units, shape.channels, shape.half, chunk, splits,
            TILE=shape.tile, WIDTH=shape.width, POOL=ctx.pool, STAGES=STAGES, num_warps=WARPS,
        )  # fmt: skip
        grid, constants = shape.summing(splits)
        combine_gradients[grid](
            parts, deviation, weight, dweight, dbias, level, slope,
            shape.rows, shape.channels, splits, **constants, num_warps=WARPS,
        )  # fmt: skip
        dx = torch.empty_like(x)
        write_gradient[triton.cdiv(shape.units, shape.tile), shape.blocks](
            x, dy, dx, mean, deviation, weight, bias, level, slope,
            shape.units, shape.channels, shape.half,
            TILE=shape.tile, WIDTH=shape.width, POOL=ctx.pool, num_warps=WARPS,
        )  # fmt: skip
        return dx, dweight, dbias, None, None, None, None, None


def batch_norm_relu(
    x: Tensor, weight: Tensor, bias: Tensor, running_mean: Tensor, running_var: Tensor,
    momentum: float, eps: float, *, pool: bool = False,
) -> Tensor:  # fmt: skip
    """Return ReLU of batch norm, in training; ``pool``: also the largest of each 2 × 2 window.

    ``x`` is channels-last and in bfloat16 or float32, everything else in float32. The running
    averages are updated in place.
    """
    y: Tensor = _NormReLU.apply(x, weight, bias, running_mean, running_var, momentum, eps, pool)
    return y


def fits(norm: nn.BatchNorm2d, x: Tensor) -> bool:
    """Whether a layer's training step can take the kernels."""
    return (
        norm.training
        and norm.affine
        and norm.track_running_stats
        and norm.momentum is not None
        and norm.weight.dtype == torch.float32
        and x.dtype == torch.bfloat16
        and (x.is_cuda or INTERPRETED)
        and x.shape[1] % 8 == 0
        and x.numel() // x.shape[1] > 1
        and x.numel() < 2**31
        and x.is_contiguous(memory_format=torch.channels_last)
    )


def norm_relu(norm: nn.BatchNorm2d, x: Tensor, pool: bool = False) -> Tensor:
    """Apply the layer, ReLU and perhaps a pool, by the kernels where they fit."""
    if not fits(norm, x):
        y = relu(norm(x))
        return max_pool2d(y, 2) if pool else y
    assert norm.running_mean is not None
    assert norm.running_var is not None
    assert norm.momentum is not None
    at_once = pool and x.shape[2] % 2 == 0 and x.shape[3] % 2 == 0
    y = batch_norm_relu(
        x, norm.weight, norm.bias, norm.running_mean, norm.running_var, norm.momentum, norm.eps,
        pool=at_once,
    )  # fmt: skip
    return max_pool2d(y, 2) if pool and not at_once else y


class _Lowered(torch.autograd.Function):
    """All of a step's casts to bfloat16 as one kernel, and those of the gradients back."""

    @staticmethod
    def forward(ctx: Any, *parameters: Tensor) -> Any:
        low = [torch.empty_like(p, dtype=torch.bfloat16) for p in parameters]
        torch._foreach_copy_(low, list(parameters))
        ctx.save_for_backward(*parameters)
        return tuple(low)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        high = [torch.empty_like(p) for p in ctx.saved_tensors]
        torch._foreach_copy_(high, list(gradients))
        return tuple(high)


def _halves(layer: nn.Module) -> bool:
    if not isinstance(layer, nn.MaxPool2d) or layer.return_indices or layer.ceil_mode:
        return False
    found = (layer.kernel_size, layer.stride, layer.padding, layer.dilation)
    return found in ((2, 2, 0, 1), ((2, 2), (2, 2), (0, 0), (1, 1)))


class _Layers(nn.Module):
    """The layers of a network one after the other, some of them at once."""

    def __init__(self, model: nn.Sequential) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        layers = [*self.model, nn.Identity(), nn.Identity()]
        place = 0
        while place < len(layers) - 2:
            layer, after, last = layers[place : place + 3]
            place += 1
            if isinstance(layer, nn.BatchNorm2d) and isinstance(after, nn.ReLU):
                pool = _halves(last)
                x = norm_relu(layer, x, pool)
                place += 1 + pool
            elif isinstance(layer, BasicBlock):
                x = layer(x, norm_relu)
            else:
                x = layer(x)
        return x


def training_pass(model: nn.Sequential) -> Callable[[Tensor], Tensor]:
    """Return what gives the model's answers in a training step under autocast to bfloat16.

    The model stays as it is and keeps its parameters; so do its averages, which are updated.
    """
    layers = _Layers(model)
    kinds = (nn.Conv2d, nn.Linear)
    own = {
        f"{name}.{kind}": parameter
        for name, layer in layers.named_modules()
        if isinstance(layer, kinds)
        for kind, parameter in layer.named_parameters(recurse=False)
    }

    def answers(x: Tensor) -> Tensor:
        low = dict(zip(own, _Lowered.apply(*own.values()), strict=True))
        y: Tensor = functional_call(layers, low, (x,))
        return y

    return answers
