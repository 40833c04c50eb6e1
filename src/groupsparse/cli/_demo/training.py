"""A small network for the digits: how it looks, how it is trained, what it gets right."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .digits import SIDE, load

BATCH = 64
TEST_SHARE = 0.25


@dataclass(frozen=True)
class Data:
    """Images and labels to train on, and others to be examined on."""

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor

    def steps(self, epochs: int) -> int:
        """How many optimizer steps that many passes over the training images take."""
        return epochs * -(-len(self.x) // BATCH)


def data() -> Data:
    """The digits, a quarter of them kept aside."""
    from sklearn.model_selection import train_test_split

    x, x_test, y, y_test = train_test_split(
        *load(), test_size=TEST_SHARE, random_state=0, stratify=load()[1]
    )
    images = [torch.tensor(a, dtype=torch.float32).view(-1, 1, SIDE, SIDE) for a in (x, x_test)]
    return Data(images[0], torch.tensor(y), images[1], torch.tensor(y_test))


def network(seed: int) -> nn.Sequential:
    """Two convolutions and two fully connected layers, about 38 000 parameters."""
    torch.manual_seed(seed)
    return nn.Sequential(
        OrderedDict(
            convolution1=nn.Conv2d(1, 16, 3, padding=1),
            norm1=nn.BatchNorm2d(16),
            relu1=nn.ReLU(),
            convolution2=nn.Conv2d(16, 32, 3, padding=1),
            norm2=nn.BatchNorm2d(32),
            relu2=nn.ReLU(),
            pool=nn.MaxPool2d(2),
            flat=nn.Flatten(),
            linear1=nn.Linear(512, 64),
            relu3=nn.ReLU(),
            linear2=nn.Linear(64, 10),
        )
    )


def sgd(model: nn.Module, rate: float) -> torch.optim.SGD:
    """The usual optimizer."""
    return torch.optim.SGD(
        model.parameters(), lr=rate, momentum=0.9, nesterov=True, weight_decay=5e-4
    )


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, given: Data, epochs: int, seed: int
) -> None:
    """A plain training loop: it knows nothing of pruning."""
    order = torch.Generator().manual_seed(seed)
    rate = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=optimizer.param_groups[0]["lr"], total_steps=given.steps(epochs)
    )
    model.train()
    for _ in range(epochs):
        for batch in torch.split(torch.randperm(len(given.x), generator=order), BATCH):
            optimizer.zero_grad()
            guess = model(_shifted(given.x[batch], order))
            nn.functional.cross_entropy(guess, given.y[batch]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            rate.step()


@torch.no_grad()
def accuracy(model: nn.Module, given: Data) -> float:
    """How many in a hundred of the images that were kept aside are named correctly."""
    model.eval()
    right = model(given.x_test).argmax(1) == given.y_test
    return 100.0 * float(right.double().mean())


def _shifted(images: Tensor, generator: torch.Generator) -> Tensor:
    """The images, each batch moved by up to one pixel: there are few of them."""
    top, left = torch.randint(0, 3, (2,), generator=generator).tolist()
    padded = nn.functional.pad(images, (1, 1, 1, 1))
    return padded[:, :, top : top + SIDE, left : left + SIDE]
