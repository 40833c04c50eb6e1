"""Zeros that stay zero, whatever the optimizer does, and nothing left behind."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from groupsparse import InvalidInput, UnsupportedType, prune
from groupsparse.prune import loops
from groupsparse.prune.packing import BIT_PATTERN, PackedMask

Make = Callable[[Any], Optimizer]
OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True, weight_decay=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "foreach": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.9, centered=True),
    "rprop": lambda p: torch.optim.Rprop(p, lr=0.01),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "muon": lambda p: torch.optim.Muon([q for q in p if q.ndim == 2], lr=0.1),
}


def train(model: nn.Module, optimizer: Optimizer, steps: int = 4) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        cross_entropy(model(torch.randn(16, 64)), torch.randint(0, 10, (16,))).backward()
        optimizer.step()


def zeros(model: nn.Module) -> int:
    return sum(int((p == 0).sum()) for p in model.parameters() if p.ndim > 1)


def hooks(optimizer: Optimizer) -> int:
    return len(optimizer._optimizer_step_pre_hooks) + len(optimizer._optimizer_step_post_hooks)


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_no_optimizer_revives_a_zero(mlp: nn.Module, make: Make) -> None:
    optimizer = make(list(mlp.parameters()))
    train(mlp, optimizer)  # momentum and moments are full of what was there before
    masks = prune.cut(mlp, sparsity=0.9)
    survivors = {t.name: t.parameter.detach().clone() for t in prune.select(mlp, "Linear")}
    with masks.frozen(mlp, optimizer):
        for _ in range(6):
            train(mlp, optimizer, steps=1)
            for target in prune.select(mlp, "Linear"):
                assert not target.parameter.detach()[~masks[target.name]].any()
    for target in prune.select(mlp, "Linear"):
        kept = masks[target.name]
        moved = target.parameter.detach()[kept] != survivors[target.name][kept]
        assert moved.float().mean() > 0.5  # and what survived did train
    assert hooks(optimizer) == 0


def test_it_is_the_hooks_that_hold_them(mlp: nn.Module) -> None:
    optimizer = OPTIMIZERS["sgd"](mlp.parameters())
    train(mlp, optimizer)
    masks = prune.cut(mlp, sparsity=0.9)
    masks.frozen(mlp, optimizer)
    train(mlp, optimizer)
    assert zeros(mlp) == masks.zeros
    masks.remove()
    train(mlp, optimizer, steps=1)
    assert zeros(mlp) < masks.zeros / 10


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_the_optimizer_forgets_what_was_cut(mlp: nn.Module, name: str) -> None:
    optimizer = OPTIMIZERS[name](mlp.parameters())
    train(mlp, optimizer)
    masks = prune.cut(mlp, sparsity=0.9)
    with masks.frozen(mlp, optimizer):
        train(mlp, optimizer)
        for target in prune.select(mlp, "Linear"):
            for memory in optimizer.state[target.parameter].values():
                if memory is not None and memory.shape == target.parameter.shape:
                    assert not memory[~masks[target.name]].any()
                    assert memory[masks[target.name]].any()


def test_codes_of_quantised_moments_are_left_alone(mlp: nn.Module) -> None:
    """In 8-bit Adam the code 0 stands for the most negative number, not for zero."""
    optimizer = OPTIMIZERS["sgd"](mlp.parameters())
    weight = mlp[0].weight
    optimizer.state[weight]["code"] = torch.full_like(weight, 127, dtype=torch.uint8)
    optimizer.state[weight]["moment"] = torch.ones_like(weight)
    prune.cut(mlp, sparsity=0.5).frozen(mlp, optimizer)
    assert (optimizer.state[weight]["code"] == 127).all()
    assert not optimizer.state[weight]["moment"].all()


def test_clipping_can_see_masked_gradients(mlp: nn.Module) -> None:
    optimizer = OPTIMIZERS["sgd"](mlp.parameters())
    masks = prune.cut(mlp, sparsity=0.9)
    with masks.frozen(mlp, optimizer):
        cross_entropy(mlp(torch.randn(16, 64)), torch.randint(0, 10, (16,))).backward()
        weight, before = mlp[0].weight, mlp[0].weight.grad.clone()
        masks.mask_gradients_(mlp)
        assert torch.equal(weight.grad, before * masks["0.weight"])


def test_only_own_hooks_are_removed(mlp: nn.Module) -> None:
    optimizer = OPTIMIZERS["sgd"](mlp.parameters())
    calls: list[str] = []
    optimizer.register_step_post_hook(lambda *_: calls.append("theirs"))
    first, second = prune.cut(mlp, sparsity=0.5), prune.cut(mlp, sparsity=0.6)
    first.frozen(mlp, optimizer)
    second.frozen(mlp, optimizer)
    assert hooks(optimizer) == 5
    first.remove()
    assert hooks(optimizer) == 3
    train(mlp, optimizer, steps=1)
    assert calls == ["theirs"]
    assert zeros(mlp) == second.zeros
    second.remove()
    second.remove()
    assert hooks(optimizer) == 1


def test_hooks_go_when_the_block_fails(mlp: nn.Module) -> None:
    optimizer = OPTIMIZERS["sgd"](mlp.parameters())
    masks = prune.cut(mlp, sparsity=0.5)
    with pytest.raises(RuntimeError, match="boom"), masks.frozen(mlp, optimizer):
        raise RuntimeError("boom")
    assert hooks(optimizer) == 0


def test_the_model_stays_plain(mlp: nn.Module) -> None:
    keys = list(mlp.state_dict())
    attributes = {name: set(vars(module)) for name, module in mlp.named_modules()}
    identity = [id(p) for p in mlp.parameters()]
    optimizer = OPTIMIZERS["adam"](mlp.parameters())
    masks = prune.cut(mlp, sparsity=0.9)
    with masks.frozen(mlp, optimizer):
        train(mlp, optimizer)
        assert list(mlp.state_dict()) == keys
        assert [id(p) for p in mlp.parameters()] == identity
        twin = copy.deepcopy(mlp)
        pickled = pickle.loads(pickle.dumps(mlp))
        for other in (twin, pickled):
            assert list(other.state_dict()) == keys
            assert zeros(other) == masks.zeros
        # The copy is free: its own optimizer has no hooks.
        train(twin, OPTIMIZERS["sgd"](twin.parameters()), steps=1)
        assert zeros(twin) < masks.zeros
    assert list(mlp.state_dict()) == keys
    assert {name: set(vars(module)) for name, module in mlp.named_modules()} == attributes
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in mlp.modules())


def test_masks_can_be_copied_and_saved_while_frozen(mlp: nn.Module, tmp_path: Any) -> None:
    optimizer = OPTIMIZERS["adam"](mlp.parameters())
    masks = prune.cut(mlp, sparsity=0.9)
    with masks.frozen(mlp, optimizer):
        twin = copy.deepcopy(masks)
        twin.remove()  # the copy has no hooks to remove
        assert hooks(optimizer) == 2
        masks.save(tmp_path / "masks.safetensors")
    assert twin == masks == prune.Masks.load(tmp_path / "masks.safetensors")
    assert masks != prune.Masks.of(mlp, ignore="0")
    assert (tmp_path / "masks.safetensors").stat().st_size < (64 * 32 + 320) / 8 + 500


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(0,), (1,), (8,), (3, 5), (1023,), (6, 4, 3, 3)])
@pytest.mark.parametrize("turned", [False, True])
def test_masked_entries_become_zero(
    dtype: torch.dtype, shape: tuple[int, ...], turned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others keep their bits, NaNs and all; one loop does it where the memory is in order."""
    values = torch.randn(shape).to(dtype)
    values[torch.rand(shape) < 0.2] = torch.nan
    values[torch.rand(shape) < 0.2] = -0.0
    if turned:
        values = values.movedim(0, -1).contiguous().movedim(-1, 0)
    kept = torch.rand(shape) < 0.5
    pattern = BIT_PATTERN[values.itemsize]
    expected = torch.where(kept, values.view(pattern), 0)
    calls: list[int] = []
    clear = loops.clear
    monkeypatch.setattr(loops, "clear", lambda *given: (calls.append(1), clear(*given))[1])
    PackedMask.pack(kept).zero_(values)
    assert torch.equal(values.view(pattern), expected)
    assert len(calls) == values.is_contiguous()


def test_autograd_knows_that_entries_became_zero(mlp: nn.Module) -> None:
    masks = prune.cut(mlp, 0.5)
    loss = mlp[0].weight.square().sum()
    masks.apply_(mlp)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_masks_of_somebody_elses_choice(mlp: nn.Module) -> None:
    chosen = {"0.weight": torch.rand(32, 64) < 0.3}
    masks = prune.Masks(chosen)
    assert torch.equal(masks["0.weight"], chosen["0.weight"])
    optimizer = torch.optim.SGD(mlp.parameters(), lr=0.1, momentum=0.9)
    with masks.frozen(mlp, optimizer):
        train(mlp, optimizer)
    assert torch.equal(mlp[0].weight != 0, chosen["0.weight"])
    with pytest.raises(UnsupportedType, match=r"torch.float32; expected a tensor of torch.bool"):
        prune.Masks({"0.weight": torch.ones(32, 64)})
    assert prune.Masks({}).sparsity == 0.0


def test_masks_of_what_is_zero_now(mlp: nn.Module) -> None:
    assert prune.cut(mlp, sparsity=0.9) == prune.Masks.of(mlp)
    assert prune.Masks.of(mlp).sparsity == pytest.approx(0.9, abs=1e-3)
    assert "2131 of 2368" in repr(prune.Masks.of(mlp))


def test_a_mask_for_another_model(mlp: nn.Module, convnet: nn.Module) -> None:
    masks = prune.cut(mlp, sparsity=0.9)
    optimizer = OPTIMIZERS["sgd"](convnet.parameters())
    before = [p.detach().clone() for p in convnet.parameters()]
    with pytest.raises(InvalidInput, match=r"another model: .*2\.weight|0\.weight has shape"):
        masks.frozen(convnet, optimizer)
    with pytest.raises(InvalidInput, match="another model"):
        masks.apply_(convnet)
    assert hooks(optimizer) == 0
    assert all(map(torch.equal, before, convnet.parameters()))


def test_an_optimizer_for_another_model(mlp: nn.Module, convnet: nn.Module) -> None:
    masks = prune.cut(mlp, sparsity=0.9)
    optimizer = OPTIMIZERS["sgd"](convnet.parameters())
    with pytest.raises(InvalidInput, match="holds none of the parameters"):
        masks.frozen(mlp, optimizer)
    with pytest.raises(InvalidInput, match=r"expected a torch\.optim\.Optimizer"):
        masks.frozen(mlp, [None])  # type: ignore[list-item]
    assert hooks(optimizer) == 0


def test_several_optimizers(mlp: nn.Module) -> None:
    first = OPTIMIZERS["sgd"](mlp[0].parameters())
    second = OPTIMIZERS["adam"](mlp[2].parameters())
    train(mlp, first, steps=1)
    masks = prune.cut(mlp, sparsity=0.9)
    with masks.frozen(mlp, (first, second)):
        for _ in range(3):
            train(mlp, first, steps=1)
            second.step()
    assert zeros(mlp) == masks.zeros


def test_an_optimizer_that_trains_the_biases(mlp: nn.Module) -> None:
    """As Muon needs one beside it: a framework hands over both."""
    weights = torch.optim.Muon([mlp[0].weight, mlp[2].weight], lr=0.1)
    biases = torch.optim.AdamW([mlp[0].bias, mlp[2].bias])
    masks = prune.cut(mlp, sparsity=0.9)
    with masks.frozen(mlp, [biases, weights]):
        for _ in range(3):
            train(mlp, weights, steps=1)
            biases.step()
    assert prune.Masks.of(mlp) == masks


def test_a_resumed_optimizer_does_not_bring_zeros_back(mlp: nn.Module) -> None:
    optimizer = OPTIMIZERS["adam"](mlp.parameters())
    train(mlp, optimizer)
    remembered = copy.deepcopy(optimizer.state_dict())
    masks = prune.cut(mlp, sparsity=0.9)
    with masks.frozen(mlp, optimizer):
        optimizer.load_state_dict(remembered)  # with moments of entries that are gone
        train(mlp, optimizer)
        assert zeros(mlp) == masks.zeros
