"""The fused layers of a training step, against PyTorch's own in float64."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="needs the extra groupsparse[torch]")

from torch import nn  # noqa: E402
from torch.nn.functional import batch_norm, cross_entropy, max_pool2d, relu  # noqa: E402

from tests.on_device import DEVICE, ON_GPU  # noqa: E402 isort: skip
from experiments import fused  # noqa: E402
from experiments.networks import BasicBlock, cifar_resnet, vgg16  # noqa: E402
from experiments.slot import Settings, Slot  # noqa: E402

LAST = torch.channels_last
MOMENTUM, EPS = 0.1, 1e-5
SMALL = [(3, 64, 6, 6), (2, 8, 10, 6), (5, 72, 2, 2), (7, 16, 4, 2), (2, 128, 14, 8)]
REAL = [(256, 64, 32, 32), (256, 128, 16, 16), (256, 256, 8, 8), (256, 512, 4, 4), (256, 512, 2, 2)]
gpu = [pytest.mark.gpu, pytest.mark.skipif(not ON_GPU, reason="needs a CUDA device")]
SHAPES = SMALL + [pytest.param(shape, marks=gpu) for shape in REAL]


def sample(shape, dtype, seed=0):
    """A layer's input, its gradient's seed, and what batch norm keeps."""
    generator = torch.Generator().manual_seed(seed)
    x = (2.0 * torch.randn(shape, generator=generator) + 0.5).to(DEVICE, dtype, memory_format=LAST)
    c = shape[1]
    weight = 0.5 + torch.rand(c, generator=generator)
    bias = 0.3 * torch.randn(c, generator=generator)
    mean, var = torch.randn(c, generator=generator), torch.rand(c, generator=generator)
    return x, *(v.to(DEVICE) for v in (weight, bias, mean, var))


def upstream(shape, dtype, pool):
    n, c, h, w = shape
    size = (n, c, h // 2, w // 2) if pool else shape
    dy = torch.randn(size, generator=torch.Generator().manual_seed(9))
    return dy.to(DEVICE, dtype, memory_format=LAST)


def by_kernels(given, dy, pool):
    """Output, averages and gradients."""
    x, weight, bias, mean, var = (v.clone() for v in given)
    for v in (x, weight, bias):
        v.requires_grad_()
    y = fused.batch_norm_relu(x, weight, bias, mean, var, MOMENTUM, EPS, pool=pool)
    assert type(y.grad_fn).__name__ == "_NormReLUBackward"
    assert y.is_contiguous(memory_format=LAST)
    return [y.detach(), mean, var, *torch.autograd.grad(y, (x, weight, bias), dy)]


def stored(y, dtype):
    """As the kernels round. Triton's interpreter cuts off what bfloat16 has no digits for."""
    if dtype == torch.bfloat16 and not ON_GPU:
        return (y.float().view(torch.int32) & -65536).view(torch.float32).double()
    return y.to(dtype).double()


def by_torch(given, dy, pool):
    """The same in float64.

    Values are rounded as the kernels store them before the largest is chosen: ties are where the
    network has them.
    """
    dtype = given[0].dtype
    x, weight, bias, mean, var = (v.double().clone() for v in given)
    for v in (x, weight, bias):
        v.requires_grad_()
    y = relu(batch_norm(x, mean, var, weight, bias, True, MOMENTUM, EPS))
    if pool:
        rounded = y + (stored(y.detach(), dtype) - y.detach())
        y = max_pool2d(rounded, 2)
    return [y.detach(), mean, var, *torch.autograd.grad(y, (x, weight, bias), dy.double())]


def close(found, want, error):
    """Within so much of the largest entry of all."""
    scale = float(want.abs().max())
    assert float((found.double() - want).abs().max()) <= error * max(scale, 1e-30)


def compare(given, dy, pool, errors):
    found, want = by_kernels(given, dy, pool), by_torch(given, dy, pool)
    names = ("y", "running mean", "running var", "dx", "dweight", "dbias")
    for name, a, b in zip(names, found, want, strict=True):
        try:
            close(a, b, errors[name])
        except AssertionError as problem:
            raise AssertionError(name) from problem
    return found


def errors(dtype, rows):
    sums = 2e-6 if rows < 1e4 else 2e-5
    entry = 2.0 ** (-8 if ON_GPU else -7) if dtype == torch.bfloat16 else 5e-6
    return {
        "y": entry, "running mean": sums, "running var": sums,
        "dx": entry, "dweight": 2 * sums, "dbias": 2 * sums,
    }  # fmt: skip


def unambiguous(given, dtype, pool):
    """Move values away from where rounding decides: the cut at zero and near ties in a window.

    The gradient at such an entry is all or nothing, and float32 may decide otherwise than float64.
    """
    x, weight, bias, mean, var = given
    for _ in range(20):
        y = batch_norm(x.double(), None, None, weight.double(), bias.double(), True, 0.0, EPS)
        bad = y.abs() < 1e-4
        if pool:
            n, c, h, w = x.shape
            ulp = 2.0**-8 if dtype == torch.bfloat16 else 1e-6
            # A value halfway between two neighbours of its type is rounded either way.
            rounded = stored(y * (1 - 1e-5), dtype) != stored(y * (1 + 1e-5), dtype)
            v = y.reshape(n, c, h // 2, 2, w // 2, 2)
            near = (v - v.amax((3, 5), keepdim=True)).abs() <= 2 * ulp * v.abs()
            alone = near.sum((3, 5), keepdim=True) == 1
            bad |= (near & ~alone).reshape(y.shape) & rounded & (y > 0)
        if not bad.any():
            return given
        x = torch.where(bad, x + 0.37 * torch.sign(x + 1e-9), x.clone()).contiguous(
            memory_format=LAST
        )
        given = (x, weight, bias, mean, var)
    raise RuntimeError("values near a decision are left")


@pytest.mark.parametrize("pool", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
def test_values_averages_and_gradients(shape, dtype, pool):
    rows = shape[0] * shape[2] * shape[3]
    given = sample(shape, dtype)
    if shape in SMALL:
        given = unambiguous(given, dtype, pool)
        compare(given, upstream(shape, dtype, pool), pool, errors(dtype, rows))
        return
    # Among millions some entries are at the border: all but few agree.
    dy = upstream(shape, dtype, pool)
    found, want = by_kernels(given, dy, pool), by_torch(given, dy, pool)
    allowed = errors(dtype, rows)
    close(found[0], want[0], allowed["y"])
    close(found[1], want[1], allowed["running mean"])
    close(found[2], want[2], allowed["running var"])
    apart = (found[3].double() - want[3]).abs() > allowed["dx"] * want[3].abs().max()
    assert float(apart.double().mean()) < 1e-4
    for a, b in zip(found[4:], want[4:], strict=True):
        close(a, b, 1e-3)


def test_many_programs_share_a_channel(monkeypatch):
    """As many parts as on a GPU, of which the last is not full."""
    monkeypatch.setattr(fused, "TILE", 4)
    monkeypatch.setattr(fused, "POOLED_TILE", 2)
    given = unambiguous(sample((3, 16, 18, 14), torch.float32), torch.float32, True)
    shape = fused._Shape(given[0], True)
    assert shape.split(shape.rows, 4) == (4, 189)
    monkeypatch.setattr(fused, "MOST_SPLITS", 128)
    assert shape.split(shape.rows, 4) == (8, 95)
    for pool in (False, True):
        dy = upstream(given[0].shape, torch.float32, pool)
        compare(given, dy, pool, errors(torch.float32, 0))


def test_a_constant_channel_and_one_far_from_zero():
    """The variance of values around 1000 with a deviation of 0.01 is known to a few digits."""
    x, *rest = sample((4, 8, 12, 10), torch.float32)
    x[:, 2] = 3.3
    x[:, 5] = 1000.0 + 0.01 * x[:, 5]
    given = unambiguous((x, *rest), torch.float32, False)
    found = by_kernels(given, upstream(x.shape, torch.float32, False), False)
    want = by_torch(given, upstream(x.shape, torch.float32, False), False)
    var = given[0].double().var((0, 2, 3))
    estimate = (found[2].double() - 0.9 * given[4].double()) / 0.1
    assert float((estimate - var)[5].abs()) < 2e-6
    assert float(estimate[2].abs()) < 1e-6
    # What float32 makes of 1000 is off by 3e-5, which is 0.003 of that deviation.
    close(found[0], want[0], 2e-3)
    others = [c for c in range(8) if c not in (2, 5)]
    close(found[3][:, others], want[3][:, others], 1e-5)
    assert found[3].isfinite().all()
    # A constant channel gives its bias, or nothing.
    assert torch.allclose(found[0][:, 2], relu(given[2][2]).expand(4, 12, 10), atol=2e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_ties_in_a_window_go_where_pytorch_sends_them(dtype):
    """Few different values: zeros after ReLU, and equal ones above, in every second window."""
    x, weight, bias, mean, var = sample((4, 8, 8, 8), dtype)
    x = x.clamp(-1.0, 1.5).round().contiguous(memory_format=LAST)
    given = (x, weight, bias, mean, var)
    dy = upstream(x.shape, dtype, True)
    outputs = by_torch(given, upstream(x.shape, dtype, False), False)[0]
    windows = outputs.reshape(4, 8, 4, 2, 4, 2)
    most = (windows == windows.amax((3, 5), keepdim=True)).sum((3, 5))
    assert (most > 1).double().mean() > 0.5, "the case has ties"
    found = compare(given, dy, True, errors(dtype, 0))
    assert (found[0] > 0).any()
    assert (found[0] == 0).any()


def test_nan_stays():
    """A run that diverged must say so."""
    given = sample((2, 8, 4, 4), torch.float32)
    given[0][0, 3, 1, 1] = float("nan")
    for pool in (False, True):
        found = by_kernels(given, upstream((2, 8, 4, 4), torch.float32, pool), pool)
        for value in found:
            bad = value.isnan() if value.dim() == 1 else value.isnan().all(0).all(-1).all(-1)
            expected = torch.arange(8) == 3
            if value is not found[5]:  # the bias has the sum of the output's gradient
                assert torch.equal(bad.cpu(), expected)


@pytest.mark.parametrize("pool", [False, True])
def test_the_same_bits_twice(pool):
    shape = REAL[0] if ON_GPU else (2, 16, 14, 10)
    given = sample(shape, torch.bfloat16)
    dy = upstream(shape, torch.bfloat16, pool)
    for a, b in zip(by_kernels(given, dy, pool), by_kernels(given, dy, pool), strict=True):
        assert torch.equal(a, b)


def test_a_gradient_of_another_order_and_of_one_pixel():
    given = unambiguous(sample((6, 8, 2, 2), torch.float32), torch.float32, True)
    for pool in (False, True):
        dy = upstream((6, 8, 2, 2), torch.float32, pool).contiguous()
        compare(given, dy, pool, errors(torch.float32, 0))
    dy = torch.ones((), device=DEVICE).expand(6, 8, 1, 1)
    compare(given, dy, True, errors(torch.float32, 0))


def network(name):
    torch.manual_seed(0)
    if name == "vgg16" and ON_GPU:
        model = vgg16()
    elif name == "resnet":
        model = cifar_resnet(8)
    else:
        conv = {"kernel_size": 3, "padding": 1, "bias": False}
        model = nn.Sequential(
            nn.Conv2d(3, 8, **conv), nn.BatchNorm2d(8), nn.ReLU(inplace=True),
            nn.Conv2d(8, 16, **conv), nn.BatchNorm2d(16), nn.ReLU(inplace=True), nn.MaxPool2d(2),
            nn.Conv2d(16, 12, **conv), nn.BatchNorm2d(12), nn.ReLU(inplace=True), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(12 * 16, 10),
        )  # fmt: skip
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.num_batches_tracked = None
    return model.to(DEVICE, memory_format=LAST).train()


def step_of(model, answers, x, labels, low=True):
    with torch.autocast(DEVICE.type, torch.bfloat16, enabled=low, cache_enabled=False):
        loss = cross_entropy(answers(x), labels)
    return float(loss.detach()), torch.autograd.grad(loss, list(model.parameters()))


@pytest.mark.parametrize("name", ["vgg16", "resnet"])
def test_a_whole_step(name, monkeypatch):
    """No further from float64 than PyTorch's own step in bfloat16; names stay as they are."""
    calls = []
    real = fused.batch_norm_relu
    monkeypatch.setattr(
        fused, "batch_norm_relu", lambda *a, **k: calls.append(k["pool"]) or real(*a, **k)
    )
    count, size = (256, 32) if ON_GPU else (4, 16)
    x = torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(1))
    x = x.to(DEVICE, memory_format=LAST)
    labels = (torch.arange(count) % 10).to(DEVICE)
    plain, ours = network(name), network(name)
    state = {key: value.shape for key, value in ours.state_dict().items()}
    exact = network(name).double()
    wanted, true = step_of(exact, exact, x.double(), labels, low=False)
    by_plain, usual = step_of(plain, plain, x, labels)
    loss, found = step_of(ours, fused.training_pass(ours), x, labels)
    if name == "resnet":
        assert calls == [False] * 4
        assert sum(isinstance(layer, BasicBlock) for layer in ours) == 3
    elif ON_GPU:
        assert (len(calls), sum(calls)) == (13, 5)
    else:
        assert calls == [False, True]  # 12 channels do not fit
    assert abs(loss - wanted) < abs(by_plain - wanted) + 0.02
    assert {key: value.shape for key, value in ours.state_dict().items()} == state
    # The interpreter does not round to bfloat16 but cuts off, which is twice as wrong.
    factor = 1.25 if ON_GPU else 4.0
    gradients = list(zip(found, usual, true, ours.parameters(), strict=True))
    for ours_, usual_, true_, p in gradients:
        assert ours_.dtype == p.dtype == torch.float32
        assert ours_.stride() == p.stride()
        allowed = factor * (usual_ - true_).norm() + 0.02 * true_.norm()
        assert (ours_ - true_).norm() < allowed
    for a, b in zip(ours.buffers(), exact.buffers(), strict=True):
        torch.testing.assert_close(a.double(), b, rtol=3e-2, atol=5e-3)


def test_what_does_not_fit_takes_the_plain_path(monkeypatch):
    monkeypatch.setattr(fused, "batch_norm_relu", None)  # a call would fail
    norm = nn.BatchNorm2d(8, device=DEVICE)
    x = sample((2, 8, 5, 4), torch.bfloat16)[0]
    assert fused.fits(norm, x)
    for module, value in (
        (norm, x.float()),
        (norm, x.contiguous()),
        (nn.BatchNorm2d(12, device=DEVICE), sample((2, 12, 4, 4), torch.bfloat16)[0]),
        (nn.BatchNorm2d(8, affine=False, device=DEVICE), x),
        (nn.BatchNorm2d(8, momentum=None, device=DEVICE), x),
        (nn.BatchNorm2d(8, device=DEVICE).eval(), x),
    ):
        assert not fused.fits(module, value)
        assert fused.norm_relu(module, value, pool=True).shape[2:] == (
            value.shape[2] // 2,
            value.shape[3] // 2,
        )


def test_a_window_that_does_not_fit_is_pooled_afterwards():
    x = sample((2, 8, 5, 4), torch.bfloat16)[0]
    norm = nn.BatchNorm2d(8, device=DEVICE)
    y = fused.norm_relu(norm, x, pool=True).detach()
    want = max_pool2d(relu(batch_norm(x.double(), None, None, training=True)), 2)
    close(y, want, 2.0**-7)


def test_a_slot_takes_them_on_a_gpu_unless_told_not_to():
    model = network("small")
    for on_gpu, wanted, fused_one in (
        (True, True, True),
        (True, False, False),
        (False, True, False),
    ):
        slot = SimpleNamespace(on_gpu=on_gpu, settings=Settings(fused=wanted), model=model)
        answers, taken = Slot._training_pass(slot)
        assert taken is fused_one
        assert (answers is model) is not fused_one
