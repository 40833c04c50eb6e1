"""Pruning inside the loops of Lightning and Hugging Face, and resumed from their files."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from groupsparse import prune

# The frameworks warn about loggers, workers and deprecations of their own.
pytestmark = pytest.mark.filterwarnings("ignore")

PLAN = prune.Plan(0.8)


def data() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(5)
    return [
        (
            torch.randn(8, 64, generator=generator),
            torch.randint(0, 10, (8,), generator=generator),
        )
        for _ in range(6)
    ]


def inducing(model: nn.Module, optimizers: Any) -> prune.Inducer:
    options: dict[str, Any] = {"every": 2, "stop": 20, "schedule": prune.cubic()}
    return prune.Inducer(model, PLAN, optimizers, **options)


def hooks(optimizer: Any) -> int:
    return len(optimizer._optimizer_step_post_hooks) + len(optimizer._optimizer_step_pre_hooks)


def by_hand(model: nn.Module, epochs: int) -> nn.Module:
    """What both frameworks have to reproduce."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    with inducing(model, optimizer):
        for _ in range(epochs):
            for x, y in data():
                optimizer.zero_grad()
                cross_entropy(model(x), y).backward()
                optimizer.step()
    return model


class TestLightning:
    @pytest.fixture(autouse=True)
    def _framework(self) -> None:
        pytest.importorskip("lightning", reason="needs the extra [lightning]")

    def module(self, network: nn.Module) -> Any:
        from lightning.pytorch import LightningModule

        class Module(LightningModule):
            def __init__(self) -> None:
                super().__init__()
                self.network = network

            def training_step(self, batch: Any, batch_idx: int) -> Tensor:
                return cross_entropy(self.network(batch[0]), batch[1])

            def configure_optimizers(self) -> Any:
                return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)

            def train_dataloader(self) -> Any:
                return torch.utils.data.DataLoader(data(), batch_size=None)  # type: ignore[arg-type]

        return Module()

    def fit(self, module: Any, callbacks: list[Any], epochs: int, **options: Any) -> Any:
        from lightning.pytorch import Trainer

        trainer = Trainer(
            max_epochs=epochs,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=callbacks,
        )
        trainer.fit(module, **options)
        return trainer

    def callback(self, attach: Any) -> Any:
        from groupsparse.prune.integrations.lightning import PruningCallback

        return PruningCallback(attach)

    def test_it_is_the_plain_loop(self, mlp: nn.Module) -> None:
        expected = by_hand(copy.deepcopy(mlp), epochs=2)
        callback = self.callback(inducing)
        trainer = self.fit(self.module(mlp), [callback], epochs=2)
        assert callback.attached.steps == 12
        assert all(map(torch.equal, expected.parameters(), mlp.parameters()))
        assert hooks(trainer.optimizers[0]) == 0

    def test_it_resumes(self, mlp: nn.Module, tmp_path: Path) -> None:
        expected = by_hand(copy.deepcopy(mlp), epochs=3)
        first = copy.deepcopy(mlp)
        trainer = self.fit(self.module(first), [self.callback(inducing)], epochs=2)
        trainer.save_checkpoint(tmp_path / "run.ckpt")
        second, callback = copy.deepcopy(mlp), self.callback(inducing)
        self.fit(self.module(second), [callback], epochs=3, ckpt_path=tmp_path / "run.ckpt")
        assert callback.attached.steps == 18
        assert all(map(torch.equal, expected.parameters(), second.parameters()))

    def test_frozen_masks(self, mlp: nn.Module) -> None:
        module = self.module(mlp)
        masks = prune.cut(module, sparsity=0.9)
        trainer = self.fit(module, [self.callback(masks.frozen)], epochs=1)
        assert prune.Masks.of(module) == masks
        assert hooks(trainer.optimizers[0]) == 0

    def test_hooks_go_when_training_fails(self, mlp: nn.Module) -> None:
        module = self.module(mlp)
        callback = self.callback(inducing)
        module.on_train_batch_end = lambda *_: 1 / 0
        with pytest.raises(ZeroDivisionError):
            self.fit(module, [callback], epochs=1)
        assert not callback.attached._handles


class TestTransformers:
    @pytest.fixture(autouse=True)
    def _framework(self) -> None:
        pytest.importorskip("transformers", reason="needs the extra [transformers]")
        pytest.importorskip("accelerate", reason="the Hugging Face Trainer needs accelerate")

    def trainer(self, network: nn.Module, folder: Path, epochs: int, callbacks: list[Any]) -> Any:
        from transformers import Trainer, TrainingArguments

        class Classifier(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.network = network

            def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
                logits = self.network(x)
                return {"loss": cross_entropy(logits, labels), "logits": logits}

        rows = [{"x": x, "labels": y} for xs, ys in data() for x, y in zip(xs, ys, strict=True)]
        arguments = TrainingArguments(
            output_dir=str(folder),
            per_device_train_batch_size=8,
            num_train_epochs=epochs,
            max_grad_norm=0.0,
            save_strategy="epoch",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            data_seed=0,
        )
        model = Classifier()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        schedule = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)
        return Trainer(
            model=model,
            args=arguments,
            train_dataset=rows,
            optimizers=(optimizer, schedule),
            callbacks=callbacks,
        )

    def callback(self, attach: Any) -> Any:
        from groupsparse.prune.integrations.transformers import PruningCallback

        return PruningCallback(attach)

    def test_it_induces_and_resumes(self, mlp: nn.Module, tmp_path: Path) -> None:
        straight, resumed = copy.deepcopy(mlp), copy.deepcopy(mlp)
        callback = self.callback(inducing)
        trainer = self.trainer(straight, tmp_path / "a", 3, [callback])
        trainer.train()
        assert callback.attached.steps == 18
        assert hooks(trainer.optimizer.optimizer) == 0
        assert prune.report(straight).total.hoyer > 0.75

        again = self.callback(inducing)
        trainer = self.trainer(resumed, tmp_path / "b", 3, [again])
        trainer.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-12"))
        assert again.attached.steps == 18
        assert all(map(torch.equal, straight.parameters(), resumed.parameters()))

    def test_frozen_masks(self, mlp: nn.Module, tmp_path: Path) -> None:
        masks = None

        def attach(model: nn.Module, optimizers: Any) -> Any:
            nonlocal masks
            masks = prune.cut(model, sparsity=0.9)
            return masks.frozen(model, optimizers)

        self.trainer(mlp, tmp_path, 1, [self.callback(attach)]).train()
        assert masks is not None
        assert prune.Masks.of(mlp).zeros == masks.zeros
