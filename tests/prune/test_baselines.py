"""The rivals: their common interface, and magnitude, random and DeepHoyer by what they state."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from groupsparse import InvalidInput, NonFiniteInput, prune
from groupsparse.prune.baselines.deephoyer import hoyer_square

METHODS = ("random", "magnitude", "snip", "grasp", "synflow")


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(32, 3, 8, 8, generator=generator)
    return x, torch.randint(0, 10, (32,), generator=generator)


def image_loss(model: nn.Module) -> Tensor:
    x, y = batch()
    return cross_entropy(model(x), y)


def apply(method: str, model: nn.Module, sparsity: float, **options: Any) -> prune.Masks:
    extra: dict[str, tuple[Any, ...]] = {
        "snip": (image_loss,),
        "grasp": (image_loss,),
        "synflow": (torch.zeros(1, 3, 8, 8),),
    }
    if method == "synflow":
        options.setdefault("rounds", 10)
    return getattr(prune.baselines, method)(model, sparsity, *extra.get(method, ()), **options)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("scope", ["model", "layer"])
def test_one_interface(convnet: nn.Module, method: str, scope: str) -> None:
    rest = {
        name: value.clone()
        for name, value in convnet.state_dict().items()
        if name not in ("0.weight", "3.weight", "7.weight")
    }
    masks = apply(method, convnet, 0.8, scope=scope)
    wanted = [round(0.8 * n) for n in ((1528,) if scope == "model" else (216, 1152, 160))]
    assert masks.zeros == sum(wanted)
    for name, mask in masks.items():
        assert torch.equal(convnet.get_parameter(name) != 0, mask)
    for name, value in rest.items():
        assert torch.equal(convnet.state_dict()[name], value), name  # running averages included
    assert all(p.grad is None and p.requires_grad for p in convnet.parameters())
    assert convnet.training


@pytest.mark.parametrize("method", METHODS)
def test_the_same_zeros_every_time(convnet: nn.Module, method: str) -> None:
    assert apply(method, copy.deepcopy(convnet), 0.8) == apply(method, convnet, 0.8)


@pytest.mark.parametrize("method", METHODS)
def test_a_floor(convnet: nn.Module, method: str) -> None:
    masks = apply(method, convnet, 0.9, floor=1)
    assert masks.zeros == round(0.9 * 1528)
    assert all((mask.flatten(1).sum(1) >= 1).all() for mask in masks.values())


@pytest.mark.parametrize("method", METHODS)
def test_bad_input_leaves_the_model_untouched(convnet: nn.Module, method: str) -> None:
    before = {k: v.clone() for k, v in convnet.state_dict().items()}
    for options in ({"sparsity": 1.5}, {"sparsity": 0.5, "targets": "Conv3d"}):
        with pytest.raises(InvalidInput):
            apply(method, convnet, **options)  # type: ignore[arg-type]
    assert all(torch.equal(v, before[k]) for k, v in convnet.state_dict().items())


def test_random_has_no_preference() -> None:
    """Every entry goes with the same chance, whatever its size; another seed draws others."""
    layer = nn.Linear(400, 250)
    with torch.no_grad():
        layer.weight[:125] *= 1000
    other = copy.deepcopy(layer)
    masks = prune.baselines.random(layer, 0.9, seed=1)
    kept = masks["weight"]
    assert int(kept.sum()) == 10_000
    assert abs(int(kept[:125].sum()) - 5000) < 200  # ± 4 standard deviations
    assert masks != prune.baselines.random(other, 0.9, seed=2)


def test_gradual_magnitude_follows_the_cubic_law(mlp: nn.Module) -> None:
    optimizer = torch.optim.SGD(mlp.parameters(), lr=0.1, momentum=0.9)
    pruner = prune.baselines.GradualMagnitude(mlp, optimizer, 0.9, every=2, start=2, stop=10)
    seen: list[float] = []
    gone: Tensor | None = None
    for _ in range(14):
        optimizer.zero_grad()
        cross_entropy(mlp(torch.randn(16, 64)), torch.randint(0, 10, (16,))).backward()
        optimizer.step()
        zeros = torch.cat([(p == 0).flatten() for p in (mlp[0].weight, mlp[2].weight)])
        seen.append(float(zeros.double().mean()))
        assert gone is None or zeros[gone].all()  # what has gone stays gone
        gone = zeros
    law = [0.9 * (1 - (1 - (t - 2) / 8) ** 3) for t in (2, 4, 6, 8, 10)]
    # After an odd step the zeros are those of the step before it.
    assert seen[1:10:2] == pytest.approx(law, abs=5e-4)
    assert seen[2:10:2] == pytest.approx(law[:-1], abs=5e-4)
    assert seen[10:] == [seen[9]] * 4
    assert pruner.masks is not None
    assert pruner.masks.zeros == round(0.9 * (64 * 32 + 320))
    pruner.remove()
    assert not optimizer._optimizer_step_post_hooks
    assert not optimizer._optimizer_step_pre_hooks


@pytest.mark.parametrize("options", [{"scope": "global"}, {"floor": 65}, {"floor": 60}])
def test_gradual_magnitude_fails_before_training(mlp: nn.Module, options: dict[str, Any]) -> None:
    optimizer = torch.optim.SGD(mlp.parameters(), lr=0.1)
    with pytest.raises(InvalidInput):
        prune.baselines.GradualMagnitude(mlp, optimizer, 0.9, stop=9, **options)
    assert not optimizer._optimizer_step_pre_hooks
    stranger = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
    with pytest.raises(InvalidInput, match="holds none of the parameters"):
        prune.baselines.GradualMagnitude(mlp, stranger, 0.9, stop=9)
    assert not stranger._optimizer_step_post_hooks


def test_gradual_magnitude_resumes(mlp: nn.Module) -> None:
    def steps(model: nn.Module, optimizer: Any, first: int, last: int) -> None:
        for step in range(first, last):
            torch.manual_seed(step)
            optimizer.zero_grad()
            cross_entropy(model(torch.randn(16, 64)), torch.randint(0, 10, (16,))).backward()
            optimizer.step()

    def start(model: nn.Module) -> tuple[Any, prune.baselines.GradualMagnitude]:
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        options: dict[str, Any] = {"every": 3, "stop": 12, "floor": 1}
        return optimizer, prune.baselines.GradualMagnitude(model, optimizer, 0.9, **options)

    straight, first = copy.deepcopy(mlp), copy.deepcopy(mlp)
    optimizer, _ = start(straight)
    steps(straight, optimizer, 0, 15)
    optimizer, pruner = start(first)
    steps(first, optimizer, 0, 7)
    second = copy.deepcopy(first)
    again, resumed = start(second)
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    resumed.load_state_dict(pruner.state_dict())
    steps(second, again, 7, 15)
    assert all(map(torch.equal, straight.parameters(), second.parameters()))
    with pytest.raises(InvalidInput, match="to sparsity 0"):
        resumed.load_state_dict({"steps": 1, "sparsity": 0.5, "pruned": False})


def test_hoyer_square_is_scale_free_and_between_1_and_n() -> None:
    x = torch.randn(50)
    assert hoyer_square(3.7 * x) == pytest.approx(float(hoyer_square(x)), rel=1e-5)
    assert float(hoyer_square(torch.eye(1, 50)[0])) == 1.0
    assert float(hoyer_square(torch.full((50,), -2.0))) == pytest.approx(50.0)
    assert float(hoyer_square(torch.zeros(50))) == 0.0


def test_hoyer_square_trims() -> None:
    """DeepHoyer, eq. 4: descent shrinks |w| below ‖w‖₂²/‖w‖₁ and lets the others grow."""
    x = torch.randn(50, requires_grad=True)
    hoyer_square(x).backward()
    assert x.grad is not None
    with torch.no_grad():
        border = x.square().sum() / x.abs().sum()
        grows = -x.grad * x.sign() > 0
        assert torch.equal(grows, x.abs() > border)
        expected = 2 * x.sign() * x.abs().sum() / x.square().sum() ** 2
        expected *= x.square().sum() - x.abs() * x.abs().sum()
        torch.testing.assert_close(x.grad, expected)


def test_group_hoyer_square_is_that_of_the_norms(convnet: nn.Module) -> None:
    model = nn.Sequential(convnet[3])
    weight = convnet[3].weight.detach()
    filters, channels = weight.flatten(1).norm(dim=1), weight.transpose(0, 1).flatten(1).norm(dim=1)
    expected = sum(v.sum() ** 2 / v.square().sum() for v in (filters, channels))
    regulariser = prune.baselines.DeepHoyer(model, 0.5, kind="group")
    torch.testing.assert_close(regulariser(), 0.5 * expected)


def test_group_hoyer_square_empties_whole_filters() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(10, 16, bias=False)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
    regulariser = prune.baselines.DeepHoyer(layer, 0.1, kind="group")
    before = layer.weight.detach().norm(dim=1).std() / layer.weight.detach().norm(dim=1).mean()
    for _ in range(300):
        optimizer.zero_grad()
        regulariser().backward()
        optimizer.step()
    norms = layer.weight.detach().norm(dim=1)
    assert norms.std() / norms.mean() > 2 * before


def test_deephoyer_induces_sparsity_and_the_threshold_takes_it(mlp: nn.Module) -> None:
    regulariser = prune.baselines.DeepHoyer(mlp, strength=0.05)
    optimizer = torch.optim.Adam(mlp.parameters(), lr=0.01)
    for _ in range(60):
        optimizer.zero_grad()
        (mlp(torch.randn(32, 64)).square().mean() + regulariser()).backward()
        optimizer.step()
    masks = regulariser.threshold_(0.1)
    assert masks.sparsity > 0.5
    assert masks == prune.Masks.of(mlp)
    with masks.frozen(mlp, optimizer):
        mlp(torch.randn(32, 64)).square().mean().backward()
        optimizer.step()
        assert masks == prune.Masks.of(mlp)


def test_thresholds(mlp: nn.Module) -> None:
    regulariser = prune.baselines.DeepHoyer(mlp, 1.0)
    weight = mlp[0].weight.detach().clone()
    relative = regulariser.threshold_(0.5)["0.weight"]
    assert torch.equal(relative, weight.abs() >= 0.5 * weight.double().std(correction=0).float())
    absolute = regulariser.threshold_(0.07, relative=False)["0.weight"]
    assert torch.equal(absolute, weight.abs() >= 0.07)
    with pytest.warns(prune.LayerCollapse, match=r"0\.weight, 2\.weight") as caught:
        regulariser.threshold_(100.0)
    assert caught[0].filename == __file__
    (regulariser() + mlp(torch.ones(1, 64)).sum()).backward()
    assert torch.isfinite(mlp[0].weight.grad).all()  # zeros do not turn the gradient into NaN
    for options in ({"strength": -1.0}, {"strength": 1.0, "kind": "row"}):
        with pytest.raises(InvalidInput):
            prune.baselines.DeepHoyer(mlp, **options)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput):
        regulariser.threshold_(-1.0)
    nn.init.ones_(mlp[0].weight)
    nn.init.constant_(mlp[2].weight, torch.nan)
    with pytest.raises(NonFiniteInput, match=r"2\.weight is not finite"):
        regulariser.threshold_(2.0, relative=False)
    assert bool((mlp[0].weight == 1).all())
