"""SNIP, GraSP and SynFlow, each held to a property that its own paper states."""

from __future__ import annotations

import copy
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from groupsparse import InvalidInput, prune
from groupsparse.prune.baselines import at_initialisation as early


def linear_toy() -> tuple[nn.Linear, Tensor, Tensor]:
    layer = nn.Linear(6, 1, bias=False)
    x = torch.randn(200, 6)
    x[:, 2] = 0.0  # an input that carries nothing
    return layer, x, x[:, :2] @ torch.tensor([[2.0], [-3.0]])


def test_snip_is_the_effect_of_removing_a_connection() -> None:
    """SNIP, eq. 4: the score is |∂L(c ⊙ w)/∂c| at c = 1, what each connection does to the loss."""
    layer, x, y = linear_toy()
    scores = early.snip_scores(layer, prune.select(layer, "Linear"), lambda m: mse_loss(m(x), y))
    weight = layer.weight.detach().double()
    for j in range(6):
        step = torch.zeros(1, 6, dtype=torch.float64)
        step[0, j] = 1e-6

        def loss(c: Tensor) -> float:
            return float(mse_loss(x.double() @ (c * weight).t(), y.double()))

        effect = (loss(1 + step) - loss(1 - step)) / 2e-6
        assert float(scores["weight"][0, j]) == pytest.approx(abs(effect), rel=1e-4, abs=1e-6)
    assert scores["weight"][0, 2] == 0.0  # the dead input is the first to go


def test_snip_drops_irrelevant_connections_before_training() -> None:
    """Section 5.5: connections from inputs without information are pruned, without pretraining."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 2))
    x = torch.randn(300, 20)
    x[:, 10:] *= 1e-3  # a border that is as good as blank
    y = (x[:, 0] > 0).long()
    masks = prune.baselines.snip(model, 0.5, lambda m: cross_entropy(m(x), y))
    assert masks["0.weight"][:, 10:].float().mean() < 0.01
    assert masks["0.weight"][:, :10].float().mean() > 0.5


def test_grasp_is_the_change_of_the_gradient_flow(mlp: nn.Module) -> None:
    """GraSP, eq. 8: removing a weight changes ‖g‖² by −2 θ·Hg to first order."""
    mlp = mlp.double()
    x, y = torch.randn(40, 64, dtype=torch.float64), torch.randint(0, 10, (40,))

    def loss(model: nn.Module) -> Tensor:
        return cross_entropy(model(x), y)

    found = prune.select(mlp, "Linear")

    def flow() -> float:
        gradients = torch.autograd.grad(loss(mlp), [t.parameter for t in found])
        return float(sum((g * g).sum() for g in gradients))

    # tanh-like smoothness is not given with ReLU, but almost everywhere the derivative exists.
    scores = early.grasp_scores(mlp, found, loss)
    weight = mlp[2].weight
    for index in [(0, 0), (3, 7), (9, 31)]:
        value = float(weight.detach()[index])
        flows = []
        for share in (1e-5, -1e-5):
            with torch.no_grad():
                weight[index] = value * (1 - share)
            flows.append(flow())
        with torch.no_grad():
            weight[index] = value
        slope = (flows[0] - flows[1]) / 2e-5
        assert slope == pytest.approx(-2 * float(scores["2.weight"][index]), rel=1e-4)


def test_grasp_keeps_more_gradient_flow_than_its_opposite(mlp: nn.Module) -> None:
    """What it is for: after pruning, the gradient norm is higher than when the others had gone."""
    x, y = torch.randn(200, 64), torch.randint(0, 10, (200,))

    def loss(model: nn.Module) -> Tensor:
        return cross_entropy(model(x), y)

    opposite = copy.deepcopy(mlp)
    scores = early.grasp_scores(mlp, prune.select(mlp, "Linear"), loss)
    prune.baselines.grasp(mlp, 0.3, loss)
    prune.cut(opposite, 0.3, scores={name: -score for name, score in scores.items()})

    def flow(model: nn.Module) -> float:
        kept = prune.Masks.of(model)
        gradients = torch.autograd.grad(loss(model), [model[0].weight, model[2].weight])
        return float(sum((g * m).square().sum() for g, m in zip(gradients, kept.values())))  # noqa: B905

    assert flow(mlp) > flow(opposite)


def deep(width: int = 20, depth: int = 6) -> nn.Module:
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(width, width, bias=False), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def test_synflow_is_conserved() -> None:
    """Theorems 1 and 2: the scores that enter and leave a unit are equal, so layers sum to R."""
    model = deep()
    found = prune.select(model, "Linear")
    scores = list(early.synflow_scores(model, found, torch.zeros(1, 20)).values())
    x = torch.ones(1, 20, dtype=torch.float64)
    for target in found:
        x = x @ target.parameter.detach().double().abs().t()
    total = float(x.sum())
    for score in scores:
        assert float(score.sum()) == pytest.approx(total, rel=1e-12)
    for one, following in pairwise(scores):
        torch.testing.assert_close(one.sum(dim=1), following.sum(dim=0))  # in = out, per unit


def test_synflow_does_not_collapse_a_layer() -> None:
    """Theorem 3: down to one weight per layer no layer dies; one-shot magnitude kills some."""
    model = deep()
    with torch.no_grad():
        for index, layer in enumerate(m for m in model if isinstance(m, nn.Linear)):
            layer.weight.mul_(2.0**-index)  # layers of very different scales
    other = copy.deepcopy(model)
    sparsity = 1.0 - 6.5 / 2400  # six or seven weights for six layers
    masks = prune.baselines.synflow(model, sparsity, torch.zeros(1, 20))
    assert masks.zeros == round(sparsity * 2400)
    assert all(mask.any() for mask in masks.values())
    chain = torch.ones(1, 20, dtype=torch.float64)
    for target in prune.select(model, "Linear"):
        chain = chain @ target.parameter.detach().double().abs().t()
    assert float(chain.sum()) > 0.0  # and they form a path from input to output
    with pytest.warns(prune.LayerCollapse):
        prune.baselines.magnitude(other, sparsity)


def test_synflow_in_one_round_may_collapse() -> None:
    """Why it iterates: with a single round the same scores do disconnect a network."""
    model = deep(width=20, depth=6)
    with torch.no_grad():
        model[0].weight.zero_().fill_diagonal_(1.0)
        model[2].weight.fill_(1.0)
    with pytest.warns(prune.LayerCollapse):
        prune.baselines.synflow(model, 1.0 - 6.5 / 2400, torch.zeros(1, 20), rounds=1)


@pytest.mark.parametrize("method", ["snip", "grasp"])
def test_what_the_loss_does_not_use_has_score_zero(mlp: nn.Module, method: str) -> None:
    mlp.append(nn.Linear(10, 10))
    x = torch.randn(8, 64)

    def loss(model: nn.Module) -> Tensor:
        return model[:3](x).square().mean()

    scores = getattr(early, f"{method}_scores")
    found = scores(mlp, prune.select(mlp, "Linear"), loss)
    assert not found["3.weight"].any()
    assert found["0.weight"].any()


@pytest.mark.parametrize("method", ["snip", "grasp"])
def test_a_loss_that_is_none(mlp: nn.Module, method: str) -> None:
    before = copy.deepcopy(mlp.state_dict())
    for loss, told in (
        (lambda model: model(torch.ones(2, 64)), r"the loss is \(2, 10\); expected a tensor with"),
        (lambda model: 3.0, "the loss is 3.0"),
        (lambda model: model(torch.ones(2, 64)).sum().detach(), "without detach or no_grad"),
    ):
        with pytest.raises(InvalidInput, match=told):
            getattr(prune.baselines, method)(mlp, 0.5, loss)
    assert all(torch.equal(value, before[name]) for name, value in mlp.state_dict().items())


def test_synflow_of_a_network_of_tokens() -> None:
    """Token numbers are taken as they are."""
    model = nn.Sequential(nn.Embedding(7, 8), nn.Linear(8, 4, bias=False))
    tokens = torch.tensor([[1, 5, 2]])
    found = prune.select(model, "Linear")
    scores = early.synflow_scores(model, found, tokens)
    embedding = model[0].weight.detach().double().abs()
    expected = model[1].weight.detach().double().abs() * embedding[tokens[0]].sum(0)
    torch.testing.assert_close(scores["1.weight"], expected)


class Branches(nn.Module):
    """Two layers, one of which nothing goes through."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(6, 4), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.used(x)


def test_what_synflow_does_not_reach_goes_first() -> None:
    model = Branches()
    with pytest.warns(prune.LayerCollapse, match=r"unused\.weight"):
        masks = prune.baselines.synflow(model, 0.5, torch.zeros(1, 6), rounds=3)
    assert masks["used.weight"].all()
    assert not masks["unused.weight"].any()


def test_a_linear_loss_has_no_curvature() -> None:
    layer = nn.Linear(6, 4)
    loss = lambda model: model(torch.ones(1, 6)).sum()  # noqa: E731
    scores = early.grasp_scores(layer, prune.select(layer, "Linear"), loss)
    assert scores["weight"].shape == (4, 6)
    assert not scores["weight"].any()


def test_scores_of_halves_do_not_vanish() -> None:
    """1e-5 · 1e-5 is zero in float16."""
    layer = nn.Linear(4, 4, bias=False).half()
    nn.init.constant_(layer.weight, 1e-5)
    loss = lambda model: model(torch.full((1, 4), 1e-5, dtype=torch.float16)).float().sum()  # noqa: E731
    scores = early.snip_scores(layer, prune.select(layer, "Linear"), loss)
    assert (scores["weight"] > 0).all()
