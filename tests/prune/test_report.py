"""What is reported, what compressed rows compute, and what comes in from torch's own pruning."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import prune as torch_prune

import groupsparse as gs
from groupsparse import InvalidInput, prune
from groupsparse.prune import sparse


def test_a_report_counts(convnet: nn.Module) -> None:
    prune.cut(convnet, sparsity=0.9, floor=1)
    found = prune.report(convnet)
    assert [row.name for row in found.rows] == ["0.weight", "3.weight", "7.weight"]
    assert found.total.parameters == 1528
    assert found.total.zeros == 1375
    assert found.total.sparsity == pytest.approx(0.9, abs=1e-3)
    assert sum(row.budget for row in found.rows) == pytest.approx(1.0)
    weights = [convnet[i].weight.detach() for i in (0, 3, 7)]
    for row, weight in zip(found.rows, weights, strict=True):
        assert row.zeros == int((weight == 0).sum())
        assert row.hoyer == pytest.approx(float(gs.hoyer(weight.flatten(1)).mean()))
        assert row.bytes == 4 * weight.numel()
        assert row.file_bytes == -(-weight.numel() // 8) + 4 * int((weight != 0).sum())
    everything = [f for w in weights for f in w.flatten(1)]
    assert found.total.hoyer == pytest.approx(gs.average_hoyer(everything))
    text = str(found)
    assert "3.weight" in text
    assert "16x8x3x3" in text
    assert json.loads(json.dumps(found.as_dict()))["total"]["zeros"] == 1375


def test_the_budget_is_what_the_constraint_bounds(mlp: nn.Module) -> None:
    plan = prune.Plan(0.8)
    prune.project_(mlp, plan)
    found = prune.report(mlp, plan)
    used = []
    for index in (0, 2):
        weight = mlp[index].weight.detach().double()
        unit = weight / weight.norm(dim=1, keepdim=True)
        used.append(float(unit.abs().sum() / (weight.shape[1] ** 0.5 - 1)))
    assert [row.budget for row in found.rows] == pytest.approx([u / sum(used) for u in used])
    each = prune.report(mlp, prune.Plan(0.8, budget="layer"))
    assert [row.budget for row in each.rows] == [1.0, 1.0]


@pytest.mark.parametrize("full", [False, True])
def test_a_weighted_plan_is_measured_by_its_weights(mlp: nn.Module, full: bool) -> None:
    weights = torch.rand((32, 64) if full else (64,)) + 0.5
    plan = prune.Plan(0.7, targets="0", weights={"0": weights})
    [projection] = prune.project_(mlp, plan)
    row = prune.report(mlp, plan).rows[0]
    assert row.hoyer == pytest.approx(projection.hoyer, abs=1e-9)
    # Against a layer of the same group whose weights are all one: Σ β wᵀx of each, by hand.
    plan = prune.Plan(0.7, weights={"0": weights})
    budgets = [row.budget for row in prune.report(mlp, plan).rows]
    used = []
    for parameter, w in ((mlp[0].weight, weights), (mlp[2].weight, torch.ones(32))):
        x = parameter.detach().double().abs()
        x, w = x / x.norm(dim=1, keepdim=True), w.double().expand(x.shape)
        used.append(float(((w * x).sum(1) / (w.norm(dim=1) - w.amin(dim=1))).sum()))
    assert budgets == pytest.approx([u / sum(used) for u in used], abs=1e-9)


def test_layers_without_a_hoyer_measure_are_counted() -> None:
    """`cut` counts a depthwise 1 × 1 convolution, whose vectors are entries; so does a report."""
    model = nn.Sequential(nn.Linear(8, 4), nn.Conv2d(8, 8, 1, groups=8), nn.Linear(8, 4))
    masks = prune.cut(model, 0.5, scope="layer")
    found = prune.report(model)
    assert [row.name for row in found.rows] == ["0.weight", "1.weight", "2.weight"]
    assert (found.total.parameters, found.total.zeros) == (masks.entries, masks.zeros) == (72, 36)
    row = found.rows[1]
    assert (row.parameters, row.zeros, row.hoyer, row.budget) == (8, 4, None, 0.0)
    linear = prune.report(nn.Sequential(model[0], model[2]))
    assert found.total.hoyer == linear.total.hoyer
    assert json.loads(json.dumps(found.as_dict()))["rows"][1]["hoyer"] is None
    assert "–" in str(found)


def test_a_default_device_is_for_new_models_only(mlp: nn.Module, tmp_path: Path) -> None:
    """``torch.set_default_device("cuda")`` moves no model; a device without values tells."""
    other, x, file = copy.deepcopy(mlp), torch.randn(4, 64), tmp_path / "small.safetensors"
    with torch.device("meta"):
        prune.project_(mlp, prune.Plan(0.8))
        assert prune.cut(mlp, 0.9, floor=1).zeros == round(0.9 * 2368)
        assert prune.baselines.random(other, 0.9, floor=1).zeros == round(0.9 * 2368)
        assert prune.report(mlp).total.zeros == round(0.9 * 2368)
        prune.save(mlp, file)
        prune.load(other, file)
        with torch.no_grad():
            dense = mlp(x)
            assert prune.sparse_linear(mlp, min_sparsity=0.5) == ["0", "2"]
            torch.testing.assert_close(mlp(x), dense)
            prune.dense_linear(mlp)
            torch.testing.assert_close(mlp(x), dense)
    assert torch.equal(other[0].weight, mlp[0].weight)


def test_a_report_of_an_empty_network(mlp: nn.Module) -> None:
    for parameter in mlp.parameters():
        nn.init.zeros_(parameter)
    found = prune.report(mlp)
    assert found.total.sparsity == 1.0
    assert [row.budget for row in found.rows] == [0.0, 0.0]


@pytest.mark.parametrize("shape", [(64,), (1, 64), (5, 64), (2, 3, 64)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_compressed_rows_compute_the_same(
    mlp: nn.Module, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    mlp = mlp.to(dtype).eval()
    prune.cut(mlp, sparsity=0.9)
    x = torch.randn(shape, dtype=dtype)
    keys, dense = list(mlp.state_dict()), mlp(x)
    weights = [p.detach().clone() for p in mlp.parameters()]
    assert prune.sparse_linear(mlp, min_sparsity=0.5, ignore="2") == ["0"]
    assert isinstance(mlp[0], sparse.CSRLinear)
    assert "values=" in repr(mlp)
    assert not mlp[0].training
    torch.testing.assert_close(mlp(x), dense)
    torch.testing.assert_close(copy.deepcopy(mlp)(x), dense)
    assert prune.dense_linear(mlp) == ["0"]
    assert list(mlp.state_dict()) == keys
    assert all(map(torch.equal, weights, mlp.parameters()))


def test_only_what_is_sparse_enough_is_swapped(mlp: nn.Module) -> None:
    with torch.no_grad():
        mlp[2].weight[:, :16] = 0
    assert prune.sparse_linear(mlp, min_sparsity=0.51, targets="Linear") == []
    assert prune.sparse_linear(mlp, min_sparsity=0.5) == ["2"]


def test_what_is_faster_is_measured(mlp: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([[1.0, 0.95], [1.0, 0.5]])
    monkeypatch.setattr(sparse, "_fastest", lambda *calls: next(times))
    assert prune.sparse_linear(mlp, batch=4) == ["2"]


def test_whatever_is_measured_the_answer_stays(mlp: nn.Module) -> None:
    """Which one wins depends on the machine; benchmarks/prune.py says where it does."""
    prune.cut(mlp, sparsity=0.99, floor=0, scope="layer")
    x = torch.randn(16, 64)
    before = mlp(x)
    assert set(prune.sparse_linear(mlp, batch=16)) <= {"0", "2"}
    torch.testing.assert_close(mlp(x), before)
    times = sparse._fastest(lambda: x @ x.t(), lambda: [x @ x.t() for _ in range(200)])
    assert 0.0 < times[0] < times[1]


def test_what_cannot_be_swapped(mlp: nn.Module) -> None:
    with pytest.raises(InvalidInput, match="wrap it"):
        prune.sparse_linear(nn.Linear(3, 3))
    with pytest.raises(InvalidInput, match="batch"):
        prune.sparse_linear(mlp, batch=0)
    with pytest.raises(InvalidInput, match="min_sparsity is 95"):
        prune.sparse_linear(mlp, min_sparsity=95)
    attention = nn.TransformerEncoderLayer(8, 2, 16)
    assert prune.sparse_linear(attention, min_sparsity=0.0) == ["linear1", "linear2"]


def test_a_layer_in_two_places_is_swapped_in_both() -> None:
    layer = nn.Linear(8, 8)
    model = nn.Sequential(layer, nn.ReLU(), layer)
    prune.sparse_linear(model, min_sparsity=0.0)
    assert model[0] is model[2]
    prune.dense_linear(model)
    assert model[0] is model[2]


def test_others_may_look_at_a_compressed_weight(mlp: nn.Module) -> None:
    prune.cut(mlp, sparsity=0.8)
    dense, x = mlp[0].weight.detach().clone(), torch.randn(3, 64)
    prune.sparse_linear(mlp, min_sparsity=0.5)
    seen = mlp[0].weight
    assert (seen.dtype, seen.shape, seen.device) == (dense.dtype, dense.shape, dense.device)
    assert torch.equal(nn.functional.linear(x, seen), nn.functional.linear(x, dense))
    assert torch.equal(nn.functional.linear(x, weight=seen), nn.functional.linear(x, dense))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("padded", [False, True])
def test_compressed_layers_in_a_fused_encoder(
    padded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes the weights out of its layers where it can; compressed ones it has to call."""
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    encoder, x = nn.TransformerEncoder(layer, 2).eval(), torch.randn(2, 3, 16)
    padding = torch.tensor([[False, False, False], [False, False, True]]) if padded else None
    prune.cut(encoder, sparsity=0.8)
    seen: list[int] = []
    forward = sparse.CSRLinear.forward
    monkeypatch.setattr(
        sparse.CSRLinear, "forward", lambda self, x: (seen.append(1), forward(self, x))[1]
    )
    with torch.no_grad():
        before = encoder(x, src_key_padding_mask=padding)
        assert len(prune.sparse_linear(encoder, min_sparsity=0.5)) == 4
        after = encoder(x, src_key_padding_mask=padding)
    kept = ~padding if padding is not None else torch.ones(2, 3, dtype=torch.bool)
    assert len(seen) == 4
    torch.testing.assert_close(after[kept], before[kept], atol=1e-5, rtol=1e-4)


def test_compressed_layers_under_autocast(mlp: nn.Module) -> None:
    prune.cut(mlp, sparsity=0.8)
    x = torch.randn(3, 64)
    with torch.no_grad():
        exact = mlp(x)
        prune.sparse_linear(mlp, min_sparsity=0.5)
        with torch.autocast("cpu", torch.bfloat16):
            torch.testing.assert_close(mlp(x.bfloat16()), mlp(x.bfloat16().float()))
            torch.testing.assert_close(mlp(x), exact)


def test_an_input_of_another_width(mlp: nn.Module) -> None:
    prune.sparse_linear(mlp, min_sparsity=0.0)
    with pytest.raises(InvalidInput, match=r"\(4, 32\).*has to be 64"):
        mlp(torch.randn(4, 32))


def test_coming_from_torchs_own_pruning(convnet: nn.Module) -> None:
    keys = set(convnet.state_dict())
    plain = list(convnet.state_dict())
    originals = [id(p) for p in convnet.parameters()]
    calls: list[Any] = []
    convnet[0].register_forward_pre_hook(lambda *a: calls.append(1))
    torch_prune.global_unstructured(
        [(convnet[i], "weight") for i in (0, 3)], torch_prune.L1Unstructured, amount=0.5
    )
    torch_prune.random_unstructured(convnet[0], "weight", amount=0.5)  # twice: a container
    torch_prune.ln_structured(convnet[7], "weight", amount=2, n=2, dim=0)
    torch_prune.random_unstructured(convnet[7], "bias", amount=3)
    x = torch.randn(2, 3, 8, 8)
    convnet.eval()
    before = convnet(x)
    expected = {
        "0.weight": convnet[0].weight_mask != 0,
        "3.weight": convnet[3].weight_mask != 0,
        "7.weight": convnet[7].weight_mask != 0,
        "7.bias": convnet[7].bias_mask != 0,
    }
    with pytest.raises(InvalidInput, match="import_from_torch_prune"):
        prune.cut(convnet, sparsity=0.9)
    masks = prune.import_from_torch_prune(convnet)
    assert set(convnet.state_dict()) == keys
    assert sorted(plain) == sorted(convnet.state_dict())
    assert sorted(map(id, convnet.parameters())) == sorted(originals)
    assert torch.equal(convnet(x), before)
    assert masks.keys() == expected.keys()
    assert all(torch.equal(masks[name], mask) for name, mask in expected.items())
    for name, mask in masks.items():
        gone = convnet.get_parameter(name).detach()[~mask]
        assert not gone.any()
        assert not torch.signbit(gone).any()
    assert len(calls) == 2  # the user's own hook is still there
    optimizer = torch.optim.Adam(convnet.parameters())
    with masks.frozen(convnet, optimizer):
        convnet(x).sum().backward()
        optimizer.step()
    assert all(not convnet.get_parameter(n).detach()[~m].any() for n, m in masks.items())
    copy.deepcopy(convnet)


def test_nothing_to_import(mlp: nn.Module) -> None:
    with pytest.raises(InvalidInput, match="no module"):
        prune.import_from_torch_prune(mlp)
