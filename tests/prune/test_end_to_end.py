"""The paper's two strategies on real digits, trained here and now: the claim, in small.

The images are scikit-learn's 1797 scanned digits. Accuracies are averages over three seeds, on the
quarter of the images that nothing was trained on.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from groupsparse import prune

pytest.importorskip("sklearn", reason="the digits come with scikit-learn, extra [sklearn]")

SEEDS = (0, 1, 2)
EPOCHS, FINETUNE, BATCH = 25, 15, 64
ZEROS = 0.9

Split = tuple[Tensor, Tensor, Tensor, Tensor]


@pytest.fixture(scope="module")
def digits() -> Split:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits(return_X_y=True)
    x, x_test, y, y_test = train_test_split(
        images, labels, test_size=0.25, random_state=0, stratify=labels
    )

    def pictures(flat: Any) -> Tensor:
        return torch.tensor(flat / 16.0, dtype=torch.float32).view(-1, 1, 8, 8)

    return pictures(x), torch.tensor(y), pictures(x_test), torch.tensor(y_test)


def network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(1024, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def sgd(model: nn.Module, rate: float) -> torch.optim.SGD:
    return torch.optim.SGD(
        model.parameters(), lr=rate, momentum=0.9, nesterov=True, weight_decay=5e-4
    )


def steps(epochs: int, images: Tensor) -> int:
    return epochs * -(-len(images) // BATCH)


def shifted(images: Tensor, generator: torch.Generator) -> Tensor:
    """The images, each batch moved by up to one pixel: there are few of them."""
    top, left = torch.randint(0, 3, (2,), generator=generator).tolist()
    return nn.functional.pad(images, (1, 1, 1, 1))[:, :, top : top + 8, left : left + 8]


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, digits: Split, epochs: int, seed: int
) -> None:
    x, y, _, _ = digits
    order = torch.Generator().manual_seed(seed)
    rate = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=optimizer.param_groups[0]["lr"], total_steps=steps(epochs, x)
    )
    for _ in range(epochs):
        for batch in torch.randperm(len(x), generator=order).split(BATCH):
            optimizer.zero_grad()
            cross_entropy(model(shifted(x[batch], order)), y[batch]).backward()
            optimizer.step()
            rate.step()


@torch.no_grad()
def accuracy(model: nn.Module, digits: Split) -> float:
    """In percent, on images that were not trained on."""
    model.eval()
    return 100.0 * float((model(digits[2]).argmax(1) == digits[3]).double().mean())


def finetuned(model: nn.Module, masks: prune.Masks, digits: Split, seed: int) -> float:
    optimizer = sgd(model.train(), rate=0.1)
    with masks.frozen(model, optimizer):
        train(model, optimizer, digits, FINETUNE, seed)
    assert prune.Masks.of(model).sparsity == pytest.approx(ZEROS, abs=1e-5)
    return accuracy(model, digits)


@pytest.fixture(scope="module")
def results(digits: Split, tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    """Average accuracy of every method."""
    found: dict[str, list[float]] = {}
    for seed in SEEDS:
        dense = network(seed)
        train(dense, sgd(dense, rate=0.05), digits, EPOCHS, seed)

        induced = network(seed)
        optimizer, total = sgd(induced, rate=0.05), steps(EPOCHS, digits[0])
        with prune.Inducer(
            induced,
            prune.Plan(hoyer=0.8),
            optimizer,
            every=5,
            start=total // 5,
            stop=total * 7 // 10,
            schedule=prune.cubic(),
        ):
            train(induced, optimizer, digits, EPOCHS, seed)
        masks = prune.cut(induced, sparsity=ZEROS)

        single, drawn = copy.deepcopy(dense), copy.deepcopy(dense)
        prune.project_(single, prune.Plan(hoyer=0.8))
        for name, value in {
            "dense": accuracy(dense, digits),
            "induced": finetuned(induced, masks, digits, seed),
            "single-shot": finetuned(single, prune.cut(single, sparsity=ZEROS), digits, seed),
            "random": finetuned(drawn, prune.baselines.random(drawn, ZEROS), digits, seed),
        }.items():
            found.setdefault(name, []).append(value)
    path = tmp_path_factory.mktemp("digits") / "small.safetensors"
    prune.save(induced, path)
    again = prune.load(network(99), path)
    found["file"] = [float(path.stat().st_size)]
    found["from file"] = [accuracy(again, digits) - accuracy(induced, digits)]
    return {name: sum(values) / len(values) for name, values in found.items()}


def test_the_dense_network_is_good(results: dict[str, float]) -> None:
    assert results["dense"] >= 97.0


@pytest.mark.parametrize("method", ["induced", "single-shot"])
def test_nine_in_ten_zeros_cost_less_than_a_point(results: dict[str, float], method: str) -> None:
    assert results[method] >= results["dense"] - 1.0


@pytest.mark.parametrize("method", ["induced", "single-shot"])
def test_it_is_better_than_chance(results: dict[str, float], method: str) -> None:
    assert results[method] > results["random"]


def test_the_file_is_small_and_complete(results: dict[str, float]) -> None:
    assert results["from file"] == 0.0
    assert results["file"] < 0.15 * sum(p.nbytes for p in network(0).parameters())
