"""What only a CUDA device can show: large sets, no waiting, graphs, memory, gradients, weights."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the extra groupsparse[torch]")

import groupsparse as gs  # noqa: E402
from tests.agreement import TOLERANCES  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def sample(shape, dtype=torch.float32, seed=0):
    values = np.random.default_rng([seed, *shape]).normal(size=shape)
    return torch.from_numpy(values).to("cuda", dtype)


def on_host(tensors, target, **options):
    """What the CPU makes of the same tensors, in float64."""
    copies = [t.detach().cpu().double() for t in tensors]
    gs.project_each_(copies, target, **options)
    return copies


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_large_sets_agree_with_the_host(shared, dtype):
    shapes = [(64, 3, 7, 7), (100_000, 9), (512, 512, 3, 3), (1000, 2048), (3, 1_000_000), (70, 27)]
    tensors = [sample(shape, dtype, seed=i) for i, shape in enumerate(shapes)]
    want = on_host(tensors, 0.85, shared=shared)
    for p in gs.project_each_(tensors, 0.85, shared=shared):
        assert (p.kernel, p.status) == ("triton", gs.Status.CONVERGED)
        assert p.hoyer == pytest.approx(0.85, abs=1e-6 if dtype == torch.float32 else 1e-3)
    error = TOLERANCES["float32"].entry if dtype == torch.float32 else 5e-3
    for x, y in zip(tensors, want, strict=True):
        assert float((x.cpu().double() - y).abs().max() / y.abs().max()) < error


@pytest.mark.parametrize(
    ("shape", "axis"), [((1_000_000, 9), -1), ((1, 100_000_000), -1), ((3000, 2000), 0)]
)
def test_extreme_shapes(shape, axis):
    x = torch.randn(shape, device="cuda")
    p = gs.solve(x, 0.9, axis=axis)
    assert p.kernel == "triton"
    assert p.hoyer == pytest.approx(0.9, abs=1e-6)
    assert p.hoyer == pytest.approx(float(gs.average_hoyer(p.value, axis=axis)), abs=1e-7)
    # z = [|c| - t]+ times one factor, where more than a corner is left.
    c, z = (y.transpose(axis, -1)[:20].double().abs() for y in (x, p.value))
    left = (z != 0).sum(1) > 1
    c, z = c[left], z[left]
    assert len(z)
    beta = 1.0 / (c.shape[1] ** 0.5 - 1.0)
    t = p.multiplier * beta
    d = (c - t).clamp(min=0.0)
    factor = 1.0 + t * d.sum(1) / (d * d).sum(1)
    torch.testing.assert_close(z, d * factor[:, None], rtol=0, atol=2e-5)


quiet = pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")


@quiet
def test_nothing_waits_and_nothing_is_allocated():
    tensors = [sample((64, 3, 3, 3)), sample((500, 700)), sample((1, 300_000))]
    plan = gs.Projector(tensors, shared=True)
    plan.project_(0.6)
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    torch.cuda.set_sync_debug_mode("error")
    try:
        [p] = plan.project_(0.6, start=True)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before
    assert p.status is gs.Status.FEASIBLE


@quiet
def test_no_waiting_in_project_each():
    tensors = [sample((64, 30)), sample((50, 700))]
    first = gs.project_each_(tensors, 0.6)
    torch.cuda.set_sync_debug_mode("error")
    try:
        second = gs.project_each_(tensors, 0.7, start=first)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert [p.status for p in second] == [gs.Status.CONVERGED] * 2


def test_captured_in_a_graph():
    tensors = [sample((64, 90)), sample((5, 70_000))]
    start = [t.clone() for t in tensors]
    plan = gs.Projector(tensors)
    plan.project_([0.7, 0.8])
    want = [t.clone() for t in tensors]
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            certificates = plan.project_([0.7, 0.8])
    for _ in range(3):
        torch._foreach_copy_(tensors, start)
        graph.replay()
        torch.cuda.synchronize()
        for x, y in zip(tensors, want, strict=True):
            assert torch.equal(x, y)
    assert [p.status for p in certificates] == [gs.Status.CONVERGED] * 2


def test_workspace_is_small():
    tensors = [torch.randn(512, 512, 3, 3, device="cuda"), torch.randn(2048, 4096, device="cuda")]
    size = sum(t.nbytes for t in tensors)
    for shared in (False, True):
        assert gs.Projector(tensors, shared=shared).workspace < 0.02 * size


@pytest.mark.parametrize("axis", [-1, 0])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_weights_agree_with_the_host_and_with_the_eager_kernel(axis, dtype):
    x = sample((400, 600), dtype)
    weights = torch.rand(400, 600, device="cuda", dtype=torch.float64) + 0.1
    p = gs.solve(x, 0.8, axis=axis, weights=weights)
    assert p.kernel == "triton"
    assert p.value.is_cuda
    atol = 1e-9 if dtype == torch.float64 else 1e-5
    host = gs.solve(x.cpu(), 0.8, axis=axis, weights=weights.cpu())
    torch.testing.assert_close(p.value.cpu(), host.value, rtol=0, atol=atol)
    [q] = gs.project_each_([x.clone()], 0.8, axis=[axis], weights=[weights])
    assert torch.equal(q.value, p.value)
    eager = gs.solve(x, 0.8, axis=axis, weights=weights, kernel="torch")
    assert eager.kernel == "torch"
    torch.testing.assert_close(p.value, eager.value, rtol=0, atol=atol)


def test_large_weighted_sets_agree_with_the_host():
    shapes = [(64, 3, 7, 7), (10_000, 9), (128, 128, 3, 3), (500, 2048), (3, 100_000)]
    tensors = [sample(shape, torch.float32, seed=i) for i, shape in enumerate(shapes)]
    weights = [sample(shape, torch.float32, seed=9).abs() + 0.1 for shape in shapes]
    copies = [t.cpu().double() for t in tensors]
    gs.project_each_(copies, 0.85, weights=[w.cpu().double() for w in weights])
    for p in gs.project_each_(tensors, 0.85, weights=weights):
        assert (p.kernel, p.status) == ("triton", gs.Status.CONVERGED)
        assert p.hoyer == pytest.approx(0.85, abs=1e-6)
    for x, y in zip(tensors, copies, strict=True):
        assert float((x.cpu().double() - y).abs().max() / y.abs().max()) < 1e-5


@quiet
def test_weights_do_not_wait_and_are_captured_in_a_graph():
    x, weights = sample((300, 400)), torch.rand(300, 400, device="cuda") + 0.1
    before = x.clone()
    plan = gs.Projector([x], weights=[weights])
    plan.project_(0.8)
    want = x.clone()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        x.copy_(before)
        plan.project_(0.8)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(x, want)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            [p] = plan.project_(0.8)
    x.copy_(before)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(x, want)
    assert p.status is gs.Status.CONVERGED


def test_the_eager_kernel_is_a_second_opinion():
    x = sample((300, 400))
    one, two = gs.solve(x, 0.9), gs.solve(x, 0.9, kernel="torch")
    assert (one.kernel, two.kernel) == ("triton", "torch")
    torch.testing.assert_close(one.value, two.value, rtol=0, atol=1e-5)
    assert gs.solve(x, 0.9, kernel="numba").kernel == "numba"


def test_gradient_through_the_kernel():
    x = sample((6, 50), torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: gs.project(x, 0.7, kernel="triton"), x)


def test_compiled_without_graph_breaks():
    def loss(x):
        return gs.project(2 * x, 0.8).sin().sum()

    eager, compiled = (sample((4, 90), torch.float64).requires_grad_() for _ in range(2))
    loss(eager).backward()
    torch.compile(loss, fullgraph=True, backend="aot_eager")(compiled).backward()
    torch.testing.assert_close(compiled.grad, eager.grad, rtol=0, atol=1e-14)
