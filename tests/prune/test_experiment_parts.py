"""The networks have the sizes of the papers, and the trainer goes on where it was killed."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from experiments import cifar
from experiments.cifar import PAD, Images, Loader, data_folder, hold_out, load_cifar10
from experiments.methods import project_to_sparsity, target_of
from experiments.networks import NETWORKS, cifar_resnet, resnet50
from experiments.training import Trainer, stepwise
from groupsparse import prune

# Parameters: LeNets as in Han et al. (2015), ResNets as in He et al. (2016), and for ResNet-50 the
# public Keras checkpoint, whose count includes running averages (2 · 26 560).
SIZES = {
    "lenet-300-100": 266_610,
    "lenet-5": 431_080,
    "vgg16": 14_724_042,
    "resnet20": 269_722,
    "resnet56": 853_018,
    "resnet110": 1_727_962,
    "resnet50": 25_557_032,
}
INPUTS = {"lenet-300-100": (1, 28), "lenet-5": (1, 28), "resnet50": (3, 64)}


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_have_their_size(name: str) -> None:
    with torch.device("meta"):
        model = NETWORKS[name]()
        channels, side = INPUTS.get(name, (3, 32))
        out = model.eval()(torch.empty(2, channels, side, side))
    assert sum(p.numel() for p in model.parameters()) == SIZES[name]
    assert out.shape == (2, 1000 if name == "resnet50" else 10)


def test_the_layers_that_are_pruned() -> None:
    for name, count in (("vgg16", 14), ("resnet50", 54)):
        model = NETWORKS[name]()
        assert len(prune.select(model, ("Conv2d", "Linear"))) == count


def test_the_keras_variant() -> None:
    with torch.device("meta"):
        model = resnet50(keras=True)
    values = sum(p.numel() for p in model.parameters())
    values += sum(b.numel() for n, b in model.named_buffers() if "num_batches" not in n)
    assert values == 25_636_712
    block = model[7]
    assert (block.conv1.stride, block.conv2.stride) == ((2, 2), (1, 1))
    with pytest.raises(ValueError, match="6n \\+ 2"):
        cifar_resnet(21)


def images(count: int, side: int = 16) -> Images:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (count, 3, side, side), dtype=torch.uint8, generator=generator)
    labels = (pixels[:, 0].float().mean(dim=(1, 2)) > 127.5).long()
    return Images(pixels, labels)


def loader(batch: int = 16, seed: int = 0) -> Loader:
    return Loader(images(80), images(30), batch, seed)


def test_every_image_comes_once_in_an_epoch() -> None:
    draws = list(loader().epoch(3))
    assert len(draws) == 5
    assert sorted(torch.cat([draw[0] for draw in draws]).tolist()) == list(range(80))
    again, other = list(loader().epoch(3)), list(loader().epoch(4))
    assert all(map(torch.equal, draws, again))
    assert not torch.equal(draws[0], other[0])
    assert not torch.equal(draws[0], next(loader(seed=1).epoch(3)))


def test_crops_and_flips_are_those_of_the_padded_image() -> None:
    made = loader()
    draw = next(made.epoch(0))
    x, y = made.make(draw)
    for row, (which, top, left, flip) in enumerate(draw.t().tolist()):
        padded = nn.functional.pad(made.images.pixels[which], (PAD,) * 4)
        expected = padded[:, top : top + 16, left : left + 16]
        expected = expected.flip(2) if flip else expected
        torch.testing.assert_close(x[row : row + 1], made.normalised(expected[None]))
        assert y[row] == made.images.labels[which]
    assert {0, 1} == set(draw[3].tolist())


def make_trainer() -> Trainer:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(1568, 2)
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    data = loader()
    attached: dict[str, Any] = {
        "inducer": prune.Inducer(
            model, prune.Plan(0.7), optimizer, every=3, stop=25, schedule=prune.cubic()
        )
    }
    return Trainer(model, optimizer, data, stepwise(0.1, [3, 5]), attached=attached)


def test_a_killed_run_goes_on_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    straight = make_trainer()
    straight.run(6)
    assert straight.curve[-1]["loss"] < straight.curve[0]["loss"]
    assert straight.optimizer.param_groups[0]["lr"] == pytest.approx(0.001)

    path = tmp_path / "run.pt"
    make_trainer().run(2, path)
    killed = make_trainer()
    original, seen = os.replace, []

    def dies(*paths: Any) -> None:
        seen.append(paths)
        if len(seen) == 2:
            raise KeyboardInterrupt  # before the second checkpoint of this run is in place
        original(*paths)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", lambda self, target: dies(self, target))
        with pytest.raises(KeyboardInterrupt):
            killed.run(6, path)
    resumed = make_trainer()
    resumed.run(6, path)
    assert resumed.epoch == 6
    assert resumed.attached["inducer"].steps == 30
    for one, two in zip(straight.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(one, two)
    losses = [[point["loss"] for point in t.curve] for t in (straight, resumed)]
    assert losses[0] == losses[1]


def test_held_out_images_are_no_training_images() -> None:
    train, held = hold_out(images(60), 10)
    assert (len(train), len(held)) == (50, 10)
    rows = {tuple(p.flatten().tolist()) for p in train.pixels}
    assert not rows & {tuple(p.flatten().tolist()) for p in held.pixels}


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    records: list[Any] = []
    monkeypatch.setattr(cifar, "load_cifar10", lambda folder: (images(48, 32), images(16, 32)))
    monkeypatch.setattr(cifar.record, "ROOT", tmp_path)
    monkeypatch.setattr(cifar.record, "save", lambda *a, **options: records.append((a, options)))
    arguments = "cifar --data D --network resnet20 --epochs 2 --batch 16 --hoyer 0.6 --final"
    monkeypatch.setattr("sys.argv", arguments.split())
    cifar.main()
    (name, results), options = records[0]
    assert name == "cifar"
    assert len(results["curve"]) == 2
    assert results["layers"]["total"]["parameters"] == 268_336
    assert "data" not in options["parameters"]
    assert "accuracy" in capsys.readouterr().out
    assert (tmp_path / "build" / "checkpoints" / "cifar.pt").exists()


@pytest.mark.skipif("GROUPSPARSE_DATA" not in os.environ, reason="GROUPSPARSE_DATA is not set")
def test_cifar10_is_what_it_was() -> None:
    pytest.importorskip("PIL", reason="needs pillow")
    train, test = load_cifar10(data_folder(None))
    assert (len(train), len(test)) == (50_000, 10_000)
    assert train.labels.bincount().tolist() == [5000] * 10
    means = train.pixels.float().mean(dim=(0, 2, 3)) / 255
    torch.testing.assert_close(means, torch.tensor([0.4914, 0.4822, 0.4465]), atol=1e-4, rtol=0)


def test_without_data_it_says_how_to_give_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GROUPSPARSE_DATA", raising=False)
    with pytest.raises(SystemExit, match="GROUPSPARSE_DATA"):
        data_folder(None)
    assert data_folder("somewhere") == Path("somewhere")


def test_the_target_that_gives_so_many_zeros() -> None:
    torch.manual_seed(0)
    model = cifar_resnet(8)
    entries = prune.report(model).total.parameters
    target = target_of(model, 0.9)
    project_to_sparsity(model, 0.9, "model", "projected")
    assert prune.report(model).total.zeros == pytest.approx(0.9 * entries, rel=2e-3)
    assert prune.report(model).total.hoyer == pytest.approx(target, abs=1e-5)
    torch.manual_seed(0)
    model = cifar_resnet(8)
    pruned = prune.baselines.magnitude(copy.deepcopy(model), 0.9, floor=1)
    project_to_sparsity(model, 0.9, "even", "original")
    projected = prune.Masks.of(model)
    differ = sum(int((pruned[name] != projected[name]).sum()) for name in pruned)
    assert differ <= 2e-3 * entries, "one threshold, but for filters that keep a single entry"
    torch.manual_seed(0)
    model = cifar_resnet(8)
    project_to_sparsity(model, 0.9, "paper", "original")
    assert prune.report(model).total.zeros == pytest.approx(0.9 * entries, rel=5e-3)
