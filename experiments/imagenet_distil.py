"""What a pruned ResNet-50 can do on the small sets: recalibration, distillation, accuracy.

There are 1000 images to learn from, so the dense network is the teacher: the pruned one shall give
the same probabilities to the same view of an image. All pruned networks see the same views.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import kl_div, log_softmax

from experiments.cifar import Images
from experiments.imagenet_sets import centre, network_input, random_views
from groupsparse import prune


@dataclass(frozen=True)
class Arithmetic:
    """The dtypes of autocast, None for float32. Parameters are float32 in any case."""

    learning: torch.dtype | None = None
    answering: torch.dtype | None = None

    @classmethod
    def of(cls, device: torch.device) -> Arithmetic:
        """On a GPU float16 for answers, which is finer, bfloat16 for gradients, which is wider."""
        return cls(torch.bfloat16, torch.float16) if device.type == "cuda" else cls()


def _autocast(x: Tensor, dtype: torch.dtype | None) -> torch.autocast:
    # Within a graph autocast may not keep casts from an earlier call; elsewhere it has no use.
    return torch.autocast(x.device.type, dtype, dtype is not None, cache_enabled=False)


@torch.no_grad()
def accuracy(
    model: nn.Module, images: Images, arithmetic: Arithmetic, batch: int = 260
) -> dict[str, float]:
    """Return top-1 and top-5 accuracy in percent on the centres of the images."""
    model.eval()
    right = torch.zeros(2, device=images.pixels.device)
    finite = torch.ones((), dtype=torch.bool, device=images.pixels.device)
    for first in range(0, len(images), batch):
        part = images[first : first + batch]
        x = network_input(centre(part.pixels))
        with _autocast(x, arithmetic.answering):
            logits = model(x)
        finite &= torch.isfinite(logits).all()
        hits = logits.float().topk(5).indices == part.labels[:, None]
        right += torch.stack([hits[:, 0].sum(), hits.any(1).sum()])
    if not bool(finite):  # an overflow would otherwise pass for a bad network
        raise FloatingPointError("the network answered with numbers that are not finite")
    top1, top5 = (100.0 * right / len(images)).tolist()
    return {"top1": top1, "top5": top5}


@torch.no_grad()
def recalibrate(model: nn.Module, images: Images, arithmetic: Arithmetic, batch: int = 250) -> None:
    """Measure the running averages of batch norm anew, as plain averages over all batches."""
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    before = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None
    model.train()
    for first in range(0, len(images), batch):
        x = network_input(centre(images[first : first + batch].pixels))
        with _autocast(x, arithmetic.answering):
            model(x)
    model.eval()
    for norm, momentum in zip(norms, before, strict=True):
        norm.momentum = momentum


@dataclass(frozen=True)
class Lessons:
    """The views of all epochs, as bytes, and the dense network's answers to them."""

    views: list[Tensor]
    answers: list[Tensor]

    @classmethod
    @torch.no_grad()
    def by(
        cls,
        teacher: nn.Module,
        images: Images,
        arithmetic: Arithmetic,
        *,
        epochs: int,
        batch: int,
        seed: int,
    ) -> Lessons:
        """Ask the teacher, as it is, about every view once."""
        teacher.eval()
        batches = partial(random_views, images, batch, seed)
        views = [view for epoch in range(epochs) for view in batches(epoch)]
        answers = []
        for view in views:
            x = network_input(view)
            with _autocast(x, arithmetic.answering):
                answers.append(teacher(x).float())
        return cls(views, answers)

    def __len__(self) -> int:
        return len(self.views)


class Student:
    """Loss and gradients of a model on one batch of lessons.

    On a GPU they are one CUDA graph, recorded once: every run changes the same parameters in place,
    and three thousand launches a step would take longer than what they launch.
    """

    def __init__(self, model: nn.Module, arithmetic: Arithmetic, temperature: float = 2.0) -> None:
        self.model, self.arithmetic, self.temperature = model, arithmetic, temperature
        self._recorded: tuple[torch.cuda.CUDAGraph, Tensor, Tensor, Tensor] | None = None

    def learn(self, view: Tensor, answers: Tensor) -> Tensor:
        """Set the gradients; return the loss."""
        if self._recorded is None:
            for parameter in self.model.parameters():
                parameter.grad = None
            return self._learn(view, answers)
        graph, own_view, own_answers, loss = self._recorded
        own_view.copy_(view)
        own_answers.copy_(answers)
        graph.replay()
        return loss.clone()

    def record(self, view: Tensor, answers: Tensor) -> None:
        """Record the graph for batches like this one. Gradients are in its memory from now on."""
        before = {name: buffer.clone() for name, buffer in self.model.named_buffers()}
        training, side = self.model.training, torch.cuda.Stream()
        own = view.clone(), answers.clone()
        self.model.train()
        side.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(side):
                for _ in range(2):
                    self._learn(*own)
            torch.cuda.synchronize()
            for parameter in self.model.parameters():
                parameter.grad = None
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                loss = self._learn(*own)
            self._recorded = graph, *own, loss
        except Exception as error:  # slow is better than nothing
            torch.cuda.set_stream(torch.cuda.default_stream())
            print(f"no graph: {type(error).__name__}: {error}", flush=True)
        self.model.train(training)
        for name, buffer in self.model.named_buffers():
            buffer.copy_(before[name])

    def _learn(self, view: Tensor, answers: Tensor) -> Tensor:
        x = network_input(view)
        with _autocast(x, self.arithmetic.learning):
            logits = self.model(x)
        loss = divergence(logits.float(), answers, self.temperature)
        loss.backward()
        return loss.detach()


def distil(student: Student, masks: prune.Masks, lessons: Lessons, *, rate: float) -> list[float]:
    """Train the survivors of a pruned model on the lessons; return the losses, one per step."""
    model = student.model
    optimizer = torch.optim.Adam(model.parameters(), rate, fused=lessons.views[0].is_cuda)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, partial(_share, len(lessons)))
    model.train()
    losses = []
    with masks.frozen(model, optimizer):
        for view, answers in zip(lessons.views, lessons.answers, strict=True):
            losses.append(student.learn(view, answers))
            optimizer.step()
            schedule.step()
    model.eval()
    values: list[float] = torch.stack(losses).tolist()  # one wait for the GPU
    return values


def divergence(logits: Tensor, answers: Tensor, temperature: float) -> Tensor:
    """Return how far probabilities are from the teacher's: T² KL, which keeps gradients' size."""
    own, wanted = (log_softmax(t / temperature, dim=1) for t in (logits, answers))
    return temperature**2 * kl_div(own, wanted, reduction="batchmean", log_target=True)


def _share(steps: int, step: int) -> float:
    """A tenth of the steps to warm up, then half a cosine down to nothing."""
    warm = max(steps // 10, 1)
    if step < warm:
        return (step + 1) / warm
    return 0.5 * (1.0 + math.cos(math.pi * (step - warm) / max(steps - warm, 1)))
