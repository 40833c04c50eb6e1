"""One network on the device with everything that a training step touches, made once and used often.

A whole step (crops and flips from the bytes on the device, forward, backward, SGD) is one function
without a single decision on the host, so on a GPU it is one CUDA graph: to train, the host replays
it. What changes from step to step (which images, the rate) is read from tables on the device at a
counter that the step itself moves on. What changes from run to run (parameters, masks, seeds) is
written into the same memory, so nothing is captured twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from experiments.cifar import HELD_OUT, Images, Loader, epoch_draws, held_out
from experiments.networks import NETWORKS
from groupsparse import prune
from groupsparse.prune.targets import DEFAULT_TARGETS

SPLITS = ("final", "search")


@dataclass(frozen=True)
class Settings:
    """How every network is trained; the same for all methods."""

    batch: int = 128
    momentum: float = 0.9
    decay: float = 5e-4
    smoothing: float = 0.0
    nesterov: bool = True
    fused: bool = True  # on a GPU: batch norm, ReLU and pooling by kernels of our own


class Data:
    """The whole set on one device, split in two ways.

    ``final``: all training images, accuracy on the test set. ``search``: without the held-out
    images, accuracy on those.
    """

    def __init__(
        self,
        train: Images,
        test: Images,
        device: torch.device,
        *,
        held: int = HELD_OUT,
        check_batch: int = 2500,
    ) -> None:
        rest, kept = held_out(len(train), held)
        self.train, self.device, self.check_batch = train.to(device), device, check_batch
        self.loader = Loader(self.train, self.train, 1, 0)
        self.rest = rest
        self.checks = {"final": test.to(device), "search": train[kept].to(device)}

    def count(self, split: str) -> int:
        """How many training images a split has."""
        return len(self.train) if split == "final" else len(self.rest)

    def draws(self, split: str, batch: int, seed: int, number: int) -> Tensor:
        """What the steps of one epoch draw, all of it from (seed, epoch)."""
        draws = epoch_draws(self.count(split), batch, seed, number)
        if split == "search":
            draws[:, 0] = self.rest[draws[:, 0]]
        return draws

    def check(self, split: str) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the images that a split measures accuracy on, as they are."""
        images = self.checks[split]
        for first in range(0, len(images), self.check_batch):
            part = images[first : first + self.check_batch]
            yield self.loader.normalised(part.pixels), part.labels


class Slot:
    """A network, its momentum, its masks and its step.

    ``regularised`` also prepares the step with DeepHoyer's regulariser in the loss.
    """

    def __init__(
        self, network: str, data: Data, settings: Settings, *, regularised: bool = False
    ) -> None:
        self.network, self.data, self.settings = network, data, settings
        self.device = data.device
        self.on_gpu = self.device.type == "cuda"
        self.model = NETWORKS[network]().to(self.device, memory_format=torch.channels_last)
        for module in self.model.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.num_batches_tracked = None  # a kernel in every layer, and nobody reads it
        self.answers, self.fused = self._training_pass()
        self.parameters = list(self.model.parameters())
        self.momenta = [torch.zeros_like(p) for p in self.parameters]
        places = {id(p): i for i, p in enumerate(self.parameters)}
        targets = prune.select(self.model, DEFAULT_TARGETS)
        self.places = {target.name: places[id(target.parameter)] for target in targets}
        self.masks = {
            name: torch.ones_like(self.parameters[place], requires_grad=False)
            for name, place in self.places.items()
        }
        longest = data.count("final") // settings.batch
        self.table = torch.zeros(longest, 4, settings.batch, dtype=torch.int64, device=self.device)
        self.rates = torch.zeros(longest, device=self.device)
        self.counter = torch.zeros(1, dtype=torch.int64, device=self.device)
        self.loss = torch.zeros((), device=self.device)
        self.right = torch.zeros((), dtype=torch.int64, device=self.device)
        self.strength = torch.zeros((), device=self.device)
        self.regulariser = prune.baselines.DeepHoyer(self.model, 1.0) if regularised else None
        self.stream = torch.cuda.Stream() if self.on_gpu else None
        self._graphs: dict[str, torch.cuda.CUDAGraph] = {}
        self._all: list[torch.cuda.CUDAGraph] = []
        self.trouble: dict[str, str] = {}  # what could not be recorded, and why

    def _training_pass(self) -> tuple[Callable[[Tensor], Tensor], bool]:
        """What a step calls for the model's answers, and whether it takes the fused kernels."""
        if self.on_gpu and self.settings.fused and isinstance(self.model, torch.nn.Sequential):
            try:
                from experiments.fused import training_pass  # needs Triton
            except ImportError:
                return self.model, False
            return training_pass(self.model), True
        return self.model, False

    @contextmanager
    def active(self) -> Iterator[None]:
        """Everything inside is queued on this slot's stream."""
        with torch.cuda.stream(self.stream) if self.stream is not None else nullcontext():
            yield

    def wait(self) -> None:
        """Until all that was queued is done."""
        if self.stream is not None:
            self.stream.synchronize()

    # What a run brings and takes away.

    @torch.no_grad()
    def start(self, state: Mapping[str, Tensor]) -> None:
        """Take the parameters of a state; forget the run before."""
        own = self.model.state_dict()
        for name, value in state.items():
            if name in own:
                own[name].copy_(value)
        for momentum in self.momenta:
            momentum.zero_()
        for mask in self.masks.values():
            mask.fill_(1.0)

    def fresh(self, seed: int) -> dict[str, Tensor]:
        """Parameters drawn from the seed, the same ones on every device."""
        before = torch.default_generator.get_state()
        torch.default_generator.manual_seed(seed)
        try:
            drawn = NETWORKS[self.network]().state_dict()
        finally:
            torch.default_generator.set_state(before)
        return {name: value.to(self.device) for name, value in drawn.items()}

    def state(self) -> dict[str, Tensor]:
        """A copy of parameters and running averages."""
        return {name: value.clone() for name, value in self.model.state_dict().items()}

    @torch.no_grad()
    def hold(self, masks: prune.Masks) -> None:
        """Keep these zeros from now on, in the parameters and in the momentum."""
        for name, place in self.places.items():
            self.masks[name].copy_(masks[name])
            self.parameters[place].mul_(self.masks[name])
            self.momenta[place].mul_(self.masks[name])

    @torch.no_grad()
    def project_momentum(self) -> None:
        """Forget the momentum of entries that are zero now."""
        for place in self.places.values():
            self.momenta[place].mul_(self.parameters[place] != 0)

    def zeros(self) -> dict[str, int]:
        """How many zeros each layer has, exactly."""
        counts = [self.parameters[place].count_nonzero() for place in self.places.values()]
        nonzero = torch.stack(counts).tolist()
        sizes = [self.parameters[place].numel() for place in self.places.values()]
        return {n: s - k for n, s, k in zip(self.places, sizes, nonzero, strict=True)}

    def loss_on(self, count: int, seed: int, temperature: float = 1.0) -> Callable[..., Tensor]:
        """The loss of a model on so many training images, for SNIP and GraSP."""
        draw = self.data.draws("search", count, seed, 0)[0].to(self.device)
        x, y = self.data.loader.make(draw)
        return lambda model: cross_entropy(model(x) / temperature, y)

    # A step, and an epoch of them.

    def _step(self, regularised: bool) -> None:
        draw = self.table.index_select(0, self.counter)[0]
        x, y = self.data.loader.make(draw)
        x = x.contiguous(memory_format=torch.channels_last)
        with self._precision():
            loss = cross_entropy(self.answers(x), y, label_smoothing=self.settings.smoothing)
        total = loss
        if regularised:
            assert self.regulariser is not None
            total = loss + self.strength * self.regulariser()
        gradients = [
            _laid_out_like(g, p)
            for g, p in zip(
                torch.autograd.grad(total, self.parameters), self.parameters, strict=True
            )
        ]
        with torch.no_grad():
            # A value of zero, a momentum of zero and a gradient of zero stay zero under SGD.
            own = [gradients[place] for place in self.places.values()]
            torch._foreach_mul_(own, list(self.masks.values()))
            torch._fused_sgd_(
                self.parameters,
                gradients,
                self.momenta,
                weight_decay=self.settings.decay,
                momentum=self.settings.momentum,
                lr=self.rates.index_select(0, self.counter).squeeze(0),
                dampening=0.0,
                nesterov=self.settings.nesterov,
                maximize=False,
                is_first_step=False,
                grad_scale=None,
                found_inf=None,
            )
            self.loss.add_(loss.detach())
            self.counter.add_(1)

    @torch.no_grad()
    def _check(self, split: str) -> None:
        self.right.zero_()
        for x, y in self.data.check(split):
            with self._precision():
                answers = self.model(x.contiguous(memory_format=torch.channels_last)).argmax(1)
            self.right.add_((answers == y).sum())

    def _precision(self) -> Any:
        # Within a graph autocast may not keep casts from an earlier call.
        return torch.autocast(
            self.device.type, torch.bfloat16, enabled=self.on_gpu, cache_enabled=False
        )

    def prepare(self, splits: Sequence[str] = SPLITS) -> None:
        """On a GPU: record the graphs. Nothing else may use the GPU meanwhile.

        What cannot be recorded is launched kernel by kernel instead, and `trouble` says why: slow,
        but a session on a machine that is gone in minutes goes on.
        """
        if not self.on_gpu:
            return
        work: dict[str, Callable[[], None]] = {"plain": partial(self._step, False)}
        if self.regulariser is not None:
            work["regularised"] = partial(self._step, True)
        work |= {split: partial(self._check, split) for split in splits}
        for name, call in work.items():
            try:
                self._record(name, call)
            except Exception as error:
                self.trouble[name] = f"{type(error).__name__}: {error}"
                # The old stream may be current still, and think that it records.
                torch.cuda.set_stream(torch.cuda.default_stream())
                self.stream = torch.cuda.Stream()

    def _record(self, name: str, work: Callable[[], None]) -> None:
        training = name not in SPLITS
        self.model.train(training)
        # Trying out algorithms takes a while, and pays where there are many steps.
        torch.backends.cudnn.benchmark = training
        self.counter.zero_()
        torch.cuda.synchronize()
        with self.active():
            work()  # chooses the algorithms, which cannot be done while recording
        torch.cuda.synchronize()
        self.counter.zero_()
        graph = torch.cuda.CUDAGraph()
        self._all.append(graph)  # where recording fails the allocator may still ask for it
        # Graphs of one slot never run at the same time as each other, those of others do: each
        # has memory of its own.
        with torch.cuda.graph(graph, stream=self.stream):
            work()
        self._graphs[name] = graph

    @property
    def recorded(self) -> bool:
        """Whether a plain step is one graph."""
        return "plain" in self._graphs

    def load_epoch(self, split: str, seed: int, number: int, rates: Sequence[float]) -> int:
        """Write the tables of one epoch; return how many steps it has."""
        draws = self.data.draws(split, self.settings.batch, seed, number)
        steps = len(draws)
        self.table[:steps].copy_(draws)
        self.rates[:steps].copy_(torch.tensor(rates))
        self.counter.zero_()
        self.loss.zero_()
        return steps

    def step(self, regularised: bool = False) -> None:
        """Train on the next batch of the table."""
        graph = self._graphs.get("regularised" if regularised else "plain")
        if graph is not None:
            graph.replay()
        else:
            self.model.train()
            self._step(regularised)

    def accuracy(self, split: str) -> float:
        """The percentage of a split's check images that are classified correctly."""
        graph = self._graphs.get(split)
        if graph is not None:
            graph.replay()
        else:
            self.model.eval()
            self._check(split)
        return 100.0 * int(self.right) / len(self.data.checks[split])


def _laid_out_like(gradient: Tensor, parameter: Tensor) -> Tensor:
    """The fused optimizer wants both in the same memory order."""
    if gradient.stride() == parameter.stride():
        return gradient
    return torch.empty_like(parameter).copy_(gradient)
