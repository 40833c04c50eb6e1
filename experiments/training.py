"""A trainer that goes on where it was killed.

On a GPU a step is bfloat16, channels last, and forward and backward are one CUDA graph. The
optimizer steps outside of it, so that pruning attaches to it as to any other.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy


class Batches(Protocol):
    """What the trainer needs of the data: draws for each step, and batches made from them."""

    device: torch.device

    def __len__(self) -> int: ...

    def epoch(self, number: int) -> Iterator[Tensor]: ...

    def make(self, draw: Tensor) -> tuple[Tensor, Tensor]: ...

    def check(self, batch: int) -> Iterator[tuple[Tensor, Tensor]]: ...


def stepwise(rate: float, milestones: Sequence[int]) -> Callable[[int], float]:
    """Return the paper's schedule: a tenth of the rate after each milestone epoch."""
    return lambda epoch: rate * 0.1 ** sum(epoch >= milestone for milestone in milestones)


@dataclass
class Trainer:
    """SGD over epochs; what is attached to the optimizer is saved and restored with it.

    ``attached`` holds inducers or pruners by name. ``graph`` replays forward and backward as one
    CUDA graph; ``precision`` is the dtype of autocast, None for plain float32.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loader: Batches
    rate: Callable[[int], float]
    precision: torch.dtype | None = None
    graph: bool = False
    attached: Mapping[str, Any] = field(default_factory=dict)
    epoch: int = 0
    curve: list[dict[str, float]] = field(default_factory=list)
    _replay: tuple[torch.cuda.CUDAGraph, Tensor, Tensor] | None = None

    def run(self, epochs: int, checkpoint: Path | None = None) -> None:
        """Train up to ``epochs``, from the checkpoint if there is one; write one per epoch."""
        if checkpoint is not None and checkpoint.exists():
            self.load(checkpoint)
        while self.epoch < epochs:
            began = time.perf_counter()
            loss = self.train_epoch()
            accuracy = self.accuracy()
            seconds = time.perf_counter() - began
            self.curve.append({"loss": loss, "accuracy": accuracy, "seconds": round(seconds, 3)})
            if checkpoint is not None:
                self.save(checkpoint)

    def train_epoch(self) -> float:
        """Run one epoch; return the mean loss."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate(self.epoch)
        self.model.train()
        total = torch.zeros((), device=self.loader.device)
        for draw in self.loader.epoch(self.epoch):
            total += self._step(draw)
        self.epoch += 1
        return float(total) / max(len(self.loader), 1)

    def _step(self, draw: Tensor) -> Tensor:
        if not self.graph:
            loss = self._loss_and_gradients(draw)
        else:
            if self._replay is None:
                self._replay = self._captured(draw)
            replay, inputs, loss = self._replay
            inputs.copy_(draw)
            replay.replay()
        self.optimizer.step()
        return loss

    def _loss_and_gradients(self, draw: Tensor) -> Tensor:
        x, y = self.loader.make(draw)
        x = x.contiguous(memory_format=torch.channels_last)
        # Within a graph autocast may not keep casts from an earlier call.
        with torch.autocast(
            x.device.type, self.precision, self.precision is not None, cache_enabled=False
        ):
            loss = cross_entropy(self.model(x), y)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        return loss.detach()

    def _captured(self, draw: Tensor) -> tuple[torch.cuda.CUDAGraph, Tensor, Tensor]:
        """Record one step. Warming up moves running averages, which are put back."""
        before = {name: buffer.clone() for name, buffer in self.model.named_buffers()}
        inputs = draw.clone()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self._loss_and_gradients(inputs)
        torch.cuda.current_stream().wait_stream(side)
        self.optimizer.zero_grad(set_to_none=True)  # so that gradients live in the graph's memory
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loss = self._loss_and_gradients(inputs)
        for name, buffer in self.model.named_buffers():
            buffer.copy_(before[name])
        return graph, inputs, loss

    @torch.no_grad()
    def accuracy(self, batch: int = 1000) -> float:
        """Return the percentage of the loader's check images that are classified correctly."""
        self.model.eval()
        right, count = torch.zeros((), device=self.loader.device), 0
        for x, y in self.loader.check(batch):
            x = x.contiguous(memory_format=torch.channels_last)
            with torch.autocast(x.device.type, self.precision, self.precision is not None):
                right += (self.model(x).argmax(1) == y).sum()
            count += len(y)
        return 100.0 * float(right) / count

    def save(self, path: Path) -> None:
        """Write everything that a resumed run needs, whole or not at all."""
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "attached": {name: each.state_dict() for name, each in self.attached.items()},
            "epoch": self.epoch,
            "curve": self.curve,
        }
        beside = path.with_name(f".{path.name}.{os.getpid()}.part")
        torch.save(state, beside)
        beside.replace(path)

    def load(self, path: Path) -> None:
        """Continue from what `save` wrote."""
        state = torch.load(path, weights_only=True, map_location=self.loader.device)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        for name, each in self.attached.items():
            each.load_state_dict(state["attached"][name])
        self.epoch, self.curve = state["epoch"], state["curve"]
