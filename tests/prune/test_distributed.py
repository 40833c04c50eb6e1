"""Two real processes (gloo): DDP and FSDP2 train, project, cut, freeze, save and load.

Each process also does the same alone, and what the two do together has to be that.
"""

from __future__ import annotations

import copy
import math
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from groupsparse import InvalidInput, NonFiniteInput, prune
from groupsparse.prune.sharding import gather
from tests.processes import spawn

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="this PyTorch has no distributed")

STEPS = 6


class Network(nn.Module):
    """Odd numbers of filters, and one layer with fewer of them than there are processes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(
            nn.Conv2d(3, 7, 3, padding=1), nn.ReLU(), nn.Conv2d(7, 12, 3), nn.ReLU()
        )
        self.neck = nn.Linear(12, 1)  # one filter: a process holds nothing of it
        self.head = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        features = self.body(x).mean(dim=(2, 3))
        return self.head(features) * self.neck(features)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = STEPS) -> None:
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        x = torch.randn(8, 3, 8, 8, generator=generator)
        y = torch.randint(0, 5, (8,), generator=generator)
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)


def pipeline(model: nn.Module, plan: prune.Plan) -> tuple[prune.Masks, prune.Inducer]:
    """Induce, cut, finetune."""
    optimizer = sgd(model)
    with prune.Inducer(model, plan, optimizer, every=2) as inducer:
        train(model, optimizer)
    masks = prune.cut(model, sparsity=0.8, floor=1)
    with masks.frozen(model, optimizer):
        train(model, optimizer)
    return masks, inducer


def whole(model: nn.Module) -> dict[str, Tensor]:
    return {name: gather(p).clone() for name, p in model.named_parameters()}


def close(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    assert len(first) == len(second)
    for one, two in zip(first.values(), second.values(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-6)
        assert torch.equal(one == 0, two == 0)


def same_on_all_ranks(tensors: dict[str, Tensor]) -> None:
    for tensor in tensors.values():
        copies = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
        dist.all_gather(copies, tensor.contiguous())
        assert all(torch.equal(copies[0], other) for other in copies)


def ddp(folder: Path) -> None:
    alone, together = Network(), nn.parallel.DistributedDataParallel(Network())
    plan = prune.Plan(0.7)
    expected, _ = pipeline(alone, plan)
    masks, inducer = pipeline(together, plan)
    assert inducer.steps == STEPS
    assert masks == expected  # names without "module."
    close(whole(alone), whole(together))
    same_on_all_ranks(whole(together))
    path = folder / "ddp.safetensors"
    if dist.get_rank() == 0:
        prune.save(together, path)
    dist.barrier()
    loaded = nn.parallel.DistributedDataParallel(Network())
    prune.load(loaded, path)
    assert all(map(torch.equal, whole(loaded).values(), whole(together).values()))


def sharded(model: nn.Module) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    for layer in model.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            fully_shard(layer)
    fully_shard(model)
    return model


def fsdp(folder: Path) -> None:
    for plan in (prune.Plan(0.7), prune.Plan.paper(0.7), prune.Plan(0.7, vectors="kernel")):
        alone, together = Network(), sharded(Network())
        expected, _ = pipeline(alone, plan)
        masks, inducer = pipeline(together, plan)
        close(whole(alone), whole(together))
        same_on_all_ranks(whole(together))
        assert math.isclose(inducer.projections[0].hoyer, 0.7, abs_tol=1e-6)
        counts = torch.tensor([masks.zeros, masks.entries])
        dist.all_reduce(counts)
        assert counts.tolist() == [expected.zeros, expected.entries]
        assert list(masks) == list(expected)
        found, alone_found = prune.report(together), prune.report(alone)
        assert found.total.zeros == alone_found.total.zeros
        assert [row.shape for row in found.rows] == [row.shape for row in alone_found.rows]

    path = folder / "fsdp.safetensors"
    prune.save(together, path)
    plain = Network()
    prune.load(plain, path)  # into a model that is not sharded
    assert all(map(torch.equal, whole(plain).values(), whole(together).values()))
    again = sharded(Network())
    prune.load(again, path)  # and into one that is
    assert all(map(torch.equal, whole(again).values(), whole(together).values()))
    assert path.stat().st_size < sum(p.nbytes for p in plain.parameters())


def ties(folder: Path) -> None:
    """Equal entries everywhere: the same ones go as without shards."""
    alone, together = Network(), Network()
    for model in (alone, together):
        for parameter in model.parameters():
            nn.init.constant_(parameter, 0.25)
    together = sharded(together)
    for scope in ("model", "layer"):
        for sparsity in (0.1, 0.37, 0.9):
            one, two = copy.deepcopy(alone), sharded_copy(together)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", prune.LayerCollapse)
                prune.cut(one, sparsity=sparsity, scope=scope)
                prune.cut(two, sparsity=sparsity, scope=scope)
            assert all(map(torch.equal, whole(one).values(), whole(two).values()))


def sharded_copy(model: nn.Module) -> nn.Module:
    other = sharded(Network())
    other.load_state_dict(model.state_dict())
    return other


def errors(folder: Path) -> None:
    """What is wrong in one process is an error in all of them; nobody waits for ever."""
    model = sharded(Network())
    before = whole(model)
    weight = model.body[2].weight.to_local()  # type: ignore[index, union-attr]
    value = float(weight.detach()[0, 0, 0, 0])
    with torch.no_grad():
        if dist.get_rank() == 1:
            weight[0, 0, 0, 0] = float("nan")
    with pytest.raises(NonFiniteInput):
        prune.cut(model, sparsity=0.5)
    with pytest.raises(NonFiniteInput, match=r"body\.2\.weight"):
        prune.project_(model, prune.Plan(0.7))
    with torch.no_grad():
        weight[0, 0, 0, 0] = value
    assert all(map(torch.equal, before.values(), whole(model).values()))
    with pytest.raises(InvalidInput, match="sharded"):
        prune.baselines.snip(model, 0.5, lambda m: m(torch.ones(1, 3, 8, 8)).sum())
    with pytest.raises(InvalidInput, match="sharded"):
        prune.baselines.DeepHoyer(model, 0.1)
    prune.project_(model, prune.Plan(0.7), values="original")
    for old, new in zip(before.values(), whole(model).values(), strict=True):
        assert torch.equal(new, old * (new != 0))


@pytest.mark.parametrize("scenario", [ddp, fsdp, ties, errors])
def test_two_processes(scenario: Any, tmp_path: Path) -> None:
    spawn(2, scenario, tmp_path)
