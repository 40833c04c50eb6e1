"""Sharded tensors (DTensor) are projected where they lie: two and four real processes."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import groupsparse as gs
from groupsparse.errors import InvalidInput, NonFiniteInput, UnsupportedType
from tests.agreement import TOLERANCES, check_projection, numpy_of, rows
from tests.processes import spawn
from tests.sharded_cases import check, same_everywhere, traffic

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="this PyTorch has no distributed")

TARGETS = (0.05, 0.6, 0.95, 1.0)


def mesh_of(*shape: int) -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", shape, mesh_dim_names=("dp", "tp")[: len(shape)])


def place(x: Tensor, mesh: Any, placements: Any) -> Any:
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(x.clone(), mesh, placements)


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def one_mesh() -> None:
    """Every layout of one mesh dimension, all tensors in one call, each and shared."""
    from torch.distributed.tensor import Replicate, Shard

    world = dist.get_world_size()
    mesh = mesh_of(world)
    # Dimensions that the world size does not divide, and fewer than processes: empty shards.
    shapes = [(9, 20), (7, 21), (5, 3, 3, 3), (1, 30), (13,), (3, 1), (6, 6)]
    axes = [-1, -1, (1, 2, 3), -1, 0, 0, None]
    where = [Shard(0), Shard(1), Shard(1), Shard(0), Shard(0), Shard(0), Shard(0)]
    small = world > 2  # processes that share cores wait for each other at every collective
    for dtype in (torch.float32,) if small else (torch.float32, torch.bfloat16, torch.float64):
        whole = [random(*shape, dtype=dtype) for shape in shapes]
        for hoyer, shared in product(TARGETS[1:3] if small else TARGETS, (False, True)):
            sharded = [place(x, mesh, [p]) for x, p in zip(whole, where, strict=True)]
            found = check(whole, sharded, hoyer, axes=axes, shared=shared)
            assert dtype != torch.float64 or all(
                abs(p.residual) < 1e-10 or p.residual > 0 for p in found
            )
    for axis, placement in product((0, 1, (0, 1)), (Shard(0), Shard(1), Replicate())):
        x = random(7, 5)
        want = gs.solve(x, 0.8, axis=axis)
        d = place(x, mesh, [placement])
        p = gs.solve(d, 0.8, axis=axis)
        torch.testing.assert_close(p.value.full_tensor(), want.value, rtol=0, atol=1e-6)
        assert torch.equal(d.full_tensor(), x)
        assert p.value.placements == d.placements
        assert gs.project_(d, 0.8, axis=axis, start=p) is d
        torch.testing.assert_close(d.full_tensor(), want.value, rtol=0, atol=1e-6)
    check_projection(
        rows(numpy_of(x), 1),
        rows(numpy_of(gs.project(x, 0.8)), 1),
        0.8,
        None,
        TOLERANCES["float32"],
    )
    members = {"a": random(5), "b": random(9), "c": random(1)}
    want = gs.project(members, 0.7)
    got = gs.project({k: place(x, mesh, [Shard(0)]) for k, x in members.items()}, 0.7)
    for key in members:
        torch.testing.assert_close(got[key].full_tensor(), want[key], rtol=0, atol=1e-6)


def ties() -> None:
    """Equally large entries in different processes take the shares that they have in one."""
    from torch.distributed.tensor import Replicate, Shard

    mesh = mesh_of(dist.get_world_size())
    targets = (0.3, 0.9, 0.999) if dist.get_world_size() == 2 else (0.9,)
    nearly = torch.full((3, 6), 2.0, dtype=torch.float64)
    nearly[:, 1::2] += 2.0**-51
    cases = [
        torch.ones(4, 7),
        torch.tensor([[3.0, 3.0, 1.0, 0.0, 3.0], [2.0, -2.0, 2.0, 2.0, 0.5]]),
        torch.tensor([[5.0, 5.0, 0, 0, 0, 0], [0.0] * 6, [1.0, 2, 3, 4, 5, 5]]),
        nearly,
    ]
    for x, hoyer, placement in product(cases, targets, (Shard(0), Shard(1), Replicate())):
        [p] = check([x], [place(x, mesh, [placement])], hoyer, axes=[-1], atol=1e-5)
        if p.status is not gs.Status.FEASIBLE:
            assert abs(p.residual) < (1e-6 if x.dtype == torch.float32 else 1e-10)
    [p] = check([cases[0]], [place(cases[0], mesh, [Shard(1)])], 0.5, axes=[-1])
    assert p.status is gs.Status.TIE


def extremes() -> None:
    """Magnitudes whose squares leave the range of float64, and answers that leave their dtype."""
    from torch.distributed.tensor import Shard

    mesh = mesh_of(dist.get_world_size())
    for powers in ((-300.0,), (300.0,), (-300.0, 300.0), (-160.0, 0.0), (-310.0,)):
        scales = torch.tensor(
            [10.0 ** powers[i % len(powers)] for i in range(6)], dtype=torch.float64
        )
        x = random(6, 10, dtype=torch.float64) * scales[:, None]
        x[4] = 0.0
        for placement in (Shard(0), Shard(1)):
            d = place(x, mesh, [placement])
            [p] = gs.project_each_([d], 0.8)
            want = gs.solve(x, 0.8)
            assert abs(p.hoyer - 0.8) < 1e-10
            assert math.isclose(p.multiplier, want.multiplier, rel_tol=1e-9)
            assert math.isclose(p.primal, want.primal, rel_tol=1e-9)
            np.testing.assert_allclose(
                d.full_tensor() / scales[:, None], want.value / scales[:, None], rtol=0, atol=1e-9
            )
    x = torch.tensor([[60000.0, 60000.0, 60000.0, 3.0]], dtype=torch.float16)
    d = place(x, mesh, [Shard(1)])
    with pytest.raises(InvalidInput, match="out of the range"):
        gs.project_(d, 0.9)
    assert torch.equal(d.full_tensor(), x)


def weighted() -> None:
    """Weights: whole or sharded like the tensor, of every entry or of one vector; corners."""
    from torch.distributed.tensor import Shard

    mesh = mesh_of(dist.get_world_size())
    x, y = random(7, 10, dtype=torch.float64), random(6, 3, 5, dtype=torch.float64)
    v, w = random(10, seed=1).abs().double(), random(6, 3, 5, seed=2).abs().double()
    w[:, 0, 1] = 0.0
    for hoyer, (a, b), shared in product(
        TARGETS, ((Shard(0), Shard(1)), (Shard(1), Shard(0))), (False, True)
    ):
        for weights in ([v, w], [v, place(w, mesh, [b])], [v * 1e-200, w * 1e200], [None, w]):
            sharded = [place(x, mesh, [a]), place(y, mesh, [b])]
            check([x, y], sharded, hoyer, axes=[-1, (1, 2)], weights=weights, shared=shared)
    # Beyond the last threshold corners move to smaller weights, and one vector ends between two.
    x, w = torch.tensor([[4.0, 1.0], [4.0, 1.0], [4.0, 1.0]]).double(), torch.tensor([2.0, 1.0])
    for hoyer, placement in product((0.3, 0.5, 0.9), (Shard(0), Shard(1))):
        [p] = check([x], [place(x, mesh, [placement])], hoyer, axes=[-1], weights=[w])
        assert abs(p.residual) < 1e-10
        assert p.status is gs.Status.CORNER or hoyer < 0.9
    for bad in (-1.0, math.nan):
        weights = torch.ones(3, 2)
        weights[2, 1] = bad
        d = place(x, mesh, [Shard(0)])
        with pytest.raises(InvalidInput, match="weights of vectors"):
            gs.project_(d, 0.9, weights=weights)
    with pytest.raises(InvalidInput, match="all zero"):
        gs.project_(d, 0.9, weights=torch.tensor([[1.0, 1.0], [0.0, 0.0], [1.0, 1.0]]))
    assert torch.equal(d.full_tensor(), x)


def errors() -> None:
    """What is wrong in one process is the same error in all, and nothing has been written."""
    from torch.distributed.tensor import DTensor, Partial, Shard

    rank, mesh = dist.get_rank(), mesh_of(dist.get_world_size())
    first, second = random(8, 6), random(9, 5)
    for value, (a, b) in product((math.nan, math.inf, -math.inf), ((0, 1), (1, 0))):
        spoilt = second.clone()
        spoilt[7, 4] = value
        tensors = [place(first, mesh, [Shard(a)]), place(spoilt, mesh, [Shard(b)])]
        for shared in (False, True):
            with pytest.raises(NonFiniteInput) as caught:
                gs.project_each_(tensors, 0.9, shared=shared)
            assert (
                str(caught.value)
                == f"tensors[1]: vector 7, index 4 is {value}; expected finite numbers"
            )
        assert torch.equal(tensors[0].full_tensor(), first)
        torch.testing.assert_close(tensors[1].full_tensor(), spoilt, rtol=0, atol=0, equal_nan=True)
    single = place(torch.full((4, 1), math.nan), mesh, [Shard(0)])
    with pytest.raises(NonFiniteInput, match=r"tensors\[1\]: vector 0, index 0 is nan"):
        gs.project_each_([place(first, mesh, [Shard(0)]), single], 0.5, shared=True)
    d = place(first, mesh, [Shard(0)])
    with pytest.raises(InvalidInput, match="same call"):
        gs.project_(d, 0.5 + 0.1 * rank)
    with pytest.raises(InvalidInput, match="kernel is 'numba'" if rank == 0 else "another process"):
        gs.project_(d, 0.5, kernel="numba" if rank == 0 else None)
    with pytest.raises(UnsupportedType, match="Partial"):
        gs.project_(DTensor.from_local(first.clone(), mesh, [Partial()]), 0.5)
    with pytest.raises(UnsupportedType, match="int64"):
        gs.project_(place(torch.ones(4, 3, dtype=torch.int64), mesh, [Shard(0)]), 0.5)
    with pytest.raises(InvalidInput, match="length 1"):
        gs.project_(place(torch.ones(4, 1), mesh, [Shard(0)]), 0.5)
    with pytest.raises(InvalidInput, match="memory"):
        gs.project_each_([d, d], 0.5)
    with pytest.raises(UnsupportedType, match="derivative"):
        gs.project(d.detach().requires_grad_(), 0.5)
    assert torch.equal(d.full_tensor(), first)


def few_collectives() -> None:
    """As many collectives and about as many bytes for forty layers as for one."""
    from torch.distributed.tensor import Shard

    mesh = mesh_of(dist.get_world_size())
    seen = {}
    for layers, placement in product((1, 40), (Shard(0), Shard(1))):
        tensors = [place(random(16, 500, seed=i), mesh, [placement]) for i in range(layers)]
        with traffic() as sizes:
            found = gs.project_each_(tensors, 0.8)
        steps = 1 + max(p.iterations for p in found)
        per_step = 1 if placement.dim == 0 else 2
        # Before and after: agreement, maxima, extremes; range and certificate.
        assert len(sizes) <= per_step * (steps + 3) + 3, (len(sizes), steps)
        numbers = 3 * 16 * (placement.dim == 1) + 8
        assert max(sizes) <= 8 * layers * numbers
        assert sum(sizes) < layers * 16 * 500 * 4
        with traffic() as again:
            gs.project_each_(tensors, 0.9, shared=True)
        assert len(again) <= per_step * 14 + 6
        seen[layers, placement.dim] = len(sizes)
    assert seen[40, 0] <= seen[1, 0] + 3
    assert seen[40, 1] <= seen[1, 1] + 6


def two_meshes() -> None:
    """Both mesh dimensions split, one of them, the same one twice; replicas count once."""
    from torch.distributed.tensor import Replicate, Shard

    mesh = mesh_of(2, 2)
    kinds = (Replicate(), Shard(0), Shard(1))
    pairs = list(product(kinds, kinds))
    whole = [random(7, 10, seed=i) for i in range(len(pairs))]
    for hoyer, shared, axis in product((0.05, 0.8), (False, True), (-1, 0, None)):
        sharded = [place(x, mesh, pair) for x, pair in zip(whole, pairs, strict=True)]
        check(whole, sharded, hoyer, axes=[axis] * len(whole), shared=shared)
    # Parts of the mesh beside the whole one, and a tensor that is no DTensor.
    for hoyer, shared in product((0.6, 0.95), (False, True)):
        parts = [mesh, mesh["dp"], mesh["tp"]]
        where = [(Shard(0), Shard(1)), (Shard(1),), (Shard(1),)]
        sharded = [place(x, m, p) for x, m, p in zip(whole, parts, where, strict=False)]
        same = whole[3].clone()
        wanted = [x.clone() for x in whole[:4]]
        want = gs.project_each_(wanted, hoyer, shared=shared)
        with traffic() as sizes:
            found = gs.project_each_([*sharded, same], hoyer, shared=shared)
        assert len(sizes) <= 3 * (max(p.iterations for p in found) + 5) + 2
        for p, q in zip(found, want, strict=True):
            assert abs(p.hoyer - q.hoyer) < 1e-6
        for d, w in zip([*(d.full_tensor() for d in sharded), same], wanted, strict=True):
            torch.testing.assert_close(d, w, rtol=0, atol=1e-6)
            same_everywhere(d)
    ones = torch.ones(4, 6)
    for pair in pairs:
        [p] = check([ones], [place(ones, mesh, pair)], 0.5, axes=[-1])
        assert p.status is gs.Status.TIE
        [p] = check(
            [ones], [place(ones, mesh, pair)], 0.5, axes=[-1], weights=[torch.arange(1.0, 7.0)]
        )
    # Two processes that work alone, beside two others.
    alone = place(random(5, 6, seed=dist.get_rank() // 2), mesh["tp"], [Shard(1)])
    want = gs.project(alone.full_tensor(), 0.7)
    torch.testing.assert_close(gs.project_(alone, 0.7).full_tensor(), want, rtol=0, atol=1e-6)


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = nn.Linear(12, 20), nn.Linear(20, 12)
        self.plain = nn.Linear(12, 9)

    def forward(self, x: Tensor) -> Tensor:
        return self.plain(self.down(self.up(x).relu()))


def tensor_parallel() -> None:
    """fully_shard over parallelize_module: column-wise, row-wise, and only data-parallel."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    from groupsparse import prune

    mesh = mesh_of(2, 2)
    for plan in (
        prune.Plan(0.8),
        prune.Plan.paper(0.8),
        prune.Plan(0.8, layer_weights={"up": 3.0}, weights={"down": torch.arange(1.0, 21.0)}),
    ):
        alone, model = Perceptron(), Perceptron()
        parallelize_module(model, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(model, mesh=mesh["dp"])
        kinds = {str(p.placements) for p in model.parameters()}
        assert any("_S" in kind or "Strided" in kind for kind in kinds), kinds
        want = prune.project_(alone, plan)
        with traffic() as sizes:
            found = prune.project_(model, plan)
        assert sum(sizes) < 12000, "two or three numbers per vector and step"
        for p, q in zip(found, want, strict=True):
            assert abs(p.hoyer - q.hoyer) < 1e-6
        for one, two in zip(alone.parameters(), model.parameters(), strict=True):
            whole = two.detach().full_tensor()
            torch.testing.assert_close(whole, one.detach(), rtol=0, atol=1e-6)
            same_everywhere(whole)
        model(torch.ones(4, 12)).sum().backward()


def grouped() -> None:
    """Grouped transposed convolutions, whose vectors lie across the axis that is sharded."""
    from torch.distributed.fsdp import fully_shard

    from groupsparse import prune

    class Network(nn.Sequential):
        def __init__(self) -> None:
            torch.manual_seed(0)
            super().__init__(nn.ConvTranspose2d(6, 9, 3, groups=3), nn.Conv2d(9, 5, 3))

    for plan in (prune.Plan(0.7), prune.Plan(0.97, weights={"0": torch.arange(1.0, 19.0)})):
        alone, model = Network(), Network()
        fully_shard(model)
        want, found = prune.project_(alone, plan), prune.project_(model, plan)
        assert abs(found[0].multiplier - want[0].multiplier) < 1e-6 * want[0].multiplier
        for one, two in zip(alone.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(two.detach().full_tensor(), one.detach(), rtol=0, atol=1e-6)


def replicas() -> None:
    """Plain DDP replicas need no sharding, and stay bit-identical."""
    from groupsparse import prune

    model = nn.parallel.DistributedDataParallel(Perceptron())
    prune.project_(model, prune.Plan(0.8))
    for parameter in model.parameters():
        same_everywhere(parameter)


def two_processes() -> None:
    for scenario in (
        one_mesh,
        ties,
        extremes,
        weighted,
        errors,
        few_collectives,
        grouped,
        replicas,
    ):
        scenario()


def four_processes() -> None:
    for scenario in (one_mesh, ties, two_meshes, tensor_parallel, errors, few_collectives, grouped):
        scenario()


def test_two_processes() -> None:
    spawn(2, two_processes)


def test_four_processes() -> None:
    spawn(4, four_processes)
