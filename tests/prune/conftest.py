"""Small models that the pruning tests share."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from torch import nn

MISSING = [name for name in ("torch", "safetensors") if find_spec(name) is None]
collect_ignore_glob = ["test_*.py"] if MISSING else []


def pytest_report_header() -> list[str]:
    return [f"tests/prune skipped: no {name}, extra [torch]" for name in MISSING]


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """These networks are too small for two threads, which on a busy machine wait for each other."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _seed() -> None:
    import torch

    torch.manual_seed(0)


@pytest.fixture
def convnet() -> nn.Module:
    """Two convolutions, a norm and a head: 8·3·9 + 16·8·9 + 16·10 = 1528 weights."""
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 10),
    )


@pytest.fixture
def mlp() -> nn.Module:
    """A network without convolutions, with 64·32 + 32·10 weights."""
    from torch import nn

    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
