"""Training over several processes that goes on at the step where it was killed.

The first process writes checkpoints, every process reads them. Batches and augmentation follow from
(seed, epoch, step), so the model, the optimizer and a step are all that has to be kept.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from experiments.imagenet_folder import Folder, Shuffled, loader, normalised, validation_batches


@dataclass(frozen=True)
class Processes:
    """This process among those that torchrun started, or alone."""

    rank: int
    count: int
    device: torch.device

    @classmethod
    def join(cls) -> Processes:
        """Meet the others, if torchrun started any; one GPU each where there are GPUs."""
        gpu = torch.cuda.is_available()
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if gpu else None
        if device is not None:
            torch.cuda.set_device(device)
        if "WORLD_SIZE" not in os.environ:
            return cls(0, 1, device or torch.device("cpu"))
        dist.init_process_group("nccl" if gpu else "gloo")
        return cls(dist.get_rank(), dist.get_world_size(), device or torch.device("cpu"))

    def leave(self) -> None:
        """Say good-bye."""
        if dist.is_initialized():
            dist.destroy_process_group()

    def wrap(self, model: nn.Module) -> nn.Module:
        """Return the model as it is trained: gradients are averaged where there are several."""
        if self.count == 1:
            return model
        devices = [self.device.index] if self.device.type == "cuda" else None
        return DistributedDataParallel(model, device_ids=devices)

    def total(self, tensor: Tensor) -> Tensor:
        """Return the sum over all processes."""
        if self.count > 1:
            dist.all_reduce(tensor)
        return tensor

    def same_buffers(self, model: nn.Module) -> None:
        """Give every process the running averages of the first, which are those that are kept."""
        if self.count > 1:
            for buffer in model.buffers():
                dist.broadcast(buffer, 0)


class Data:
    """The two folders as batches on this process's device."""

    def __init__(
        self, root: Path, processes: Processes, *, size: int, batch: int, seed: int, workers: int
    ) -> None:
        train, check = Folder(root / "train", size, seed), Folder(root / "val", size)
        if train.classes != check.classes:
            raise SystemExit("train/ and val/ do not hold the same classes")
        self.classes, self.device = len(train.classes), processes.device
        self.order = Shuffled(len(train), batch, seed, processes.rank, processes.count)
        self._train = loader(train, self.order, workers)
        parts = validation_batches(len(check), batch, processes.rank, processes.count)
        self._check = loader(check, parts, workers)
        self.checked = len(check)

    def __len__(self) -> int:
        return len(self.order)

    def train(self, epoch: int, first: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield an epoch's batches from a step on."""
        self.order.start_at(epoch, first)
        yield from self._moved(self._train)

    def check(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield this process's part of the validation images."""
        yield from self._moved(self._check)

    def _moved(self, batches: Any) -> Iterator[tuple[Tensor, Tensor]]:
        for pixels, labels in batches:
            moved = pixels.to(self.device, non_blocking=True)
            yield normalised(moved), labels.to(self.device, non_blocking=True)


@dataclass
class Phase:
    """One optimizer's part of the training, in steps; what is attached is kept with it.

    ``rate`` gives the learning rate at a number of epochs, which is a fraction within one.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    data: Data
    processes: Processes
    rate: Callable[[float], float]
    precision: torch.dtype | None
    checkpoint: Path
    save_every: int = 2000
    attached: Mapping[str, Any] = field(default_factory=dict)
    step: int = 0
    loss: float = 0.0
    curve: list[dict[str, float]] = field(default_factory=list)

    def run(self, epochs: int) -> None:
        """Train up to so many epochs, from the checkpoint if there is one."""
        if self.checkpoint.exists():
            self.load()
        trained = self.processes.wrap(self.model)
        while self.step < epochs * len(self.data):
            began = time.perf_counter()
            self._epoch(trained)
            point = {"loss": self.loss / len(self.data), **self.accuracy()}
            self.curve.append(point | {"seconds": round(time.perf_counter() - began, 3)})
            self.loss = 0.0
            self.save()
            if self.processes.rank == 0:
                print(f"{self.checkpoint.stem} {len(self.curve)}/{epochs} {point}", flush=True)

    def _epoch(self, trained: nn.Module) -> None:
        """Do what is left of an epoch; the loss that is reported is the first process's."""
        trained.train()
        epoch, first = divmod(self.step, len(self.data))
        total = torch.tensor(self.loss, dtype=torch.float64, device=self.processes.device)
        for x, y in self.data.train(epoch, first):
            for group in self.optimizer.param_groups:
                group["lr"] = self.rate(self.step / len(self.data))
            with self._autocast(x):
                loss = cross_entropy(trained(x), y)
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self.optimizer.step()
            total += loss.detach()
            self.step += 1
            if self.step % self.save_every == 0 and self.step % len(self.data):
                self.loss = float(total)
                self.save()
        self.loss = float(total)

    @torch.no_grad()
    def accuracy(self) -> dict[str, float]:
        """Return top-1 and top-5 accuracy on the validation images, in percent."""
        self.processes.same_buffers(self.model)
        self.model.eval()
        right = torch.zeros(2, dtype=torch.float64, device=self.processes.device)
        for x, y in self.data.check():
            with self._autocast(x):
                logits = self.model(x)
            best = logits.float().topk(min(5, logits.shape[1])).indices == y[:, None]
            right += torch.stack([best[:, 0].sum(), best.any(1).sum()])
        top1, top5 = (100 * self.processes.total(right) / self.data.checked).tolist()
        return {"top1": top1, "top5": top5}

    def _autocast(self, x: Tensor) -> torch.autocast:
        return torch.autocast(x.device.type, self.precision, self.precision is not None)

    def save(self) -> None:
        """Write everything that a restart needs, whole or not at all."""
        if self.processes.rank:
            return
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "attached": {name: each.state_dict() for name, each in self.attached.items()},
            "step": self.step,
            "loss": self.loss,
            "curve": self.curve,
        }
        beside = self.checkpoint.with_name(f".{self.checkpoint.name}.part")
        torch.save(state, beside)
        beside.replace(self.checkpoint)

    def load(self) -> None:
        """Go on from what `save` wrote."""
        state = torch.load(self.checkpoint, weights_only=True, map_location=self.processes.device)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        for name, each in self.attached.items():
            each.load_state_dict(state["attached"][name])
        self.step, self.loss, self.curve = state["step"], state["loss"], state["curve"]
