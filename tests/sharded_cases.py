"""What the tests of sharded tensors compare, and what crosses between processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import groupsparse as gs


@contextmanager
def traffic() -> Iterator[list[int]]:
    """The bytes of every all_reduce inside; any other collective is an error."""
    sizes: list[int] = []
    kept = {name: getattr(dist, name) for name in dir(dist) if name in OTHERS}
    reduce = dist.all_reduce

    def counted(tensor: Tensor, *args: Any, **options: Any) -> Any:
        sizes.append(tensor.numel() * tensor.element_size())
        return reduce(tensor, *args, **options)

    def refused(*args: Any, **options: Any) -> Any:
        raise AssertionError("entries cross the network")

    from torch.distributed.tensor.debug import CommDebugMode

    for name in kept:
        setattr(dist, name, refused)
    dist.all_reduce = counted
    try:
        with CommDebugMode() as watched:  # what DTensor itself would send
            yield sizes
        others = watched.get_comm_counts()
        assert sum(n for op, n in others.items() if "allreduce" not in str(op)) == 0, others
        assert watched.get_total_counts() <= len(sizes), others
    finally:
        dist.all_reduce = reduce
        for name, function in kept.items():
            setattr(dist, name, function)


OTHERS = (
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_to_all",
    "broadcast",
    "gather",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "scatter",
    "send",
)


def same_everywhere(tensor: Tensor) -> None:
    """Every process has these very bits."""
    bits = tensor.detach().contiguous().flatten().view(torch.uint8)
    copies = [torch.empty_like(bits) for _ in range(dist.get_world_size())]
    dist.all_gather(copies, bits)
    assert all(torch.equal(copies[0], other) for other in copies)


def check(
    whole: Sequence[Tensor],
    sharded: Sequence[Any],
    hoyer: float,
    *,
    axes: Any,
    weights: Any = None,
    shared: bool = False,
    atol: float = 1e-6,
    statuses: bool = True,
) -> list[gs.Projection[Any]]:
    """Project both ways and compare the answers, which no process may see differently."""
    wanted = [x.clone() for x in whole]
    before = [d.to_local().clone() for d in sharded]
    options: dict[str, Any] = {"axis": list(axes), "shared": shared}
    want = gs.project_each_(
        wanted, hoyer, weights=None if weights is None else [plain(w) for w in weights], **options
    )
    found = gs.project_each_(list(sharded), hoyer, weights=weights, **options)
    for p, q in zip(found, want, strict=True):
        assert p.kernel == "sharded"
        if statuses:
            assert p.status is q.status, (p.status, q.status, hoyer)
            assert abs(p.gap - q.gap) <= 1e-6 * (1.0 + abs(q.dual))
        assert abs(p.hoyer - q.hoyer) <= 1e-6, (p.hoyer, q.hoyer)
        assert abs(p.multiplier - q.multiplier) <= 1e-6 * q.multiplier
        same_everywhere(
            torch.tensor([p.hoyer, p.multiplier, p.primal, p.dual], dtype=torch.float64)
        )
        if p.status is gs.Status.FEASIBLE and not shared:
            at = [p is other for other in found].index(True)
            assert torch.equal(sharded[at].to_local(), before[at])
    for x, w, d in zip(whole, wanted, sharded, strict=True):
        answer = d.full_tensor()
        same_everywhere(answer)
        scale = max(float(x.double().abs().max()), float(w.double().abs().max()), 1e-300)
        if statuses:
            worst = float(((answer.double() - w.double()) / scale).abs().max())
            assert worst <= atol, (worst, tuple(x.shape), d.placements, hoyer)
        else:
            assert torch.equal(answer == 0, answer == 0)
    return found


def plain(weights: Any) -> Any:
    """Weights as a tensor that is not sharded."""
    return weights.full_tensor() if hasattr(weights, "full_tensor") else weights
