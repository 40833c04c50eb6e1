"""The pretrained ResNet-50: how it is converted, pruned in one shot, distilled and measured."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("PIL", reason="needs pillow")
from PIL import Image

from experiments import imagenet_oneshot, imagenet_report, imagenet_sets, record
from experiments.cifar import Images
from experiments.imagenet_convert import _module, load_pretrained, pack, read_keras, to_state
from experiments.imagenet_distil import (
    Arithmetic,
    Lessons,
    Student,
    accuracy,
    distil,
    divergence,
    recalibrate,
)
from experiments.imagenet_methods import TOLERANCE, Methods, Targets, state_of
from experiments.networks import resnet50
from groupsparse import prune

SIDE = 16


@pytest.fixture(autouse=True)
def _small_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imagenet_sets, "SIZE", SIDE)


# The converted network.


def keras_names() -> list[str]:
    names = [("conv1", "bn_conv1"), ("fc1000", None)]
    for stage, blocks in ((2, "abc"), (3, "abcd"), (4, "abcdef"), (5, "abc")):
        for block in blocks:
            branches = ["1", "2a", "2b", "2c"] if block == "a" else ["2a", "2b", "2c"]
            for branch in branches:
                end = f"{stage}{block}_branch{branch}"
                names.append((f"res{end}", f"bn{end}"))
    return [name for pair in names for name in pair if name]


def test_every_layer_of_keras_has_one_of_ours() -> None:
    with torch.device("meta"):
        model = resnet50(keras=True)
    ours = {name.rpartition(".")[0] for name in model.state_dict()}
    theirs = [_module(name) for name in keras_names()]
    assert sorted(theirs) == sorted(ours)
    assert _module("res4b_branch2c") == "12.conv3"
    assert _module("bn5a_branch1") == "17.shortcut.1"
    with pytest.raises(ValueError, match="no layer"):
        _module("res6a_branch1")


def test_shards_become_a_state_dict(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    arrays = {
        "conv1/kernel": generator.standard_normal((7, 7, 3, 4)).astype("f4"),
        "bn_conv1/moving_variance": np.full(4, 8e4, "f4"),
        "fc1000/kernel": generator.standard_normal((5, 2)).astype("f4"),
    }
    content = b"".join(array.tobytes() for array in arrays.values())
    (tmp_path / "one.bin").write_bytes(content[:1001])
    (tmp_path / "two.bin").write_bytes(content[1001:])
    weights = [
        {"name": name, "shape": list(array.shape), "dtype": "float32"}
        for name, array in arrays.items()
    ]
    manifest = {"weightsManifest": [{"paths": ["one.bin", "two.bin"], "weights": weights}]}
    (tmp_path / "model.json").write_text(json.dumps(manifest))
    state = to_state(read_keras(tmp_path))
    assert state["0.weight"].shape == (4, 3, 7, 7)
    assert state["0.weight"][3, 2, 6, 1] == arrays["conv1/kernel"][6, 1, 2, 3]
    assert state["22.weight"][1, 4] == arrays["fc1000/kernel"][4, 1]
    packed = pack(state)
    assert packed["0.weight"].dtype == torch.float16
    assert packed["1.running_var"].tolist() == [8e4] * 4, "float16 ends at 65504"

    (tmp_path / "two.bin").write_bytes(content[1001:] + b"more")
    with pytest.raises(ValueError, match="their list speaks of"):
        read_keras(tmp_path)


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"0.weight": torch.zeros(2)}, tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match="not the converted ResNet-50"):
        load_pretrained(tmp_path / "other.safetensors")


# The small sets.


def write_set(path: Path, count: int, side: int, classes: int = 10) -> np.ndarray:
    """Write images whose class is their brightness; return their first pixels."""
    generator = np.random.default_rng(count)
    files, corners = [], []
    for which in range(count):
        level = 20 + 20 * (which % classes)
        pixels = np.clip(generator.normal(level, 5.0, (side, side, 3)), 0, 255).astype(np.uint8)
        stream = io.BytesIO()
        Image.fromarray(pixels).save(stream, "JPEG", quality=95)
        files.append(stream.getvalue())
        corners.append(np.asarray(Image.open(io.BytesIO(files[-1])))[0, 0])
    offsets = np.cumsum([0, *map(len, files)])
    labels = np.arange(count) % classes
    path.parent.mkdir(exist_ok=True)
    blob = np.frombuffer(b"".join(files), np.uint8)
    np.savez(path, blob=blob, offsets=offsets, labels=labels.astype(np.int16))
    return np.stack(corners)


def test_images_are_read_in_their_order(tmp_path: Path) -> None:
    corners = write_set(tmp_path / "imagenet" / "set.npz", 12, 20)
    path = imagenet_sets.find([tmp_path / "nowhere", tmp_path], "set.npz")
    images = imagenet_sets.load_images(path)
    assert images.pixels.shape == (12, 3, 20, 20)
    assert images.pixels[:, :, 0, 0].tolist() == corners.tolist()
    assert images.labels.tolist() == [*range(10), 0, 1]
    assert len(imagenet_sets.load_images(path, 5)) == 5
    with pytest.raises(SystemExit, match=r"other\.npz is in none of"):
        imagenet_sets.find([tmp_path], "other.npz")


def test_the_network_gets_blue_first_and_centred() -> None:
    pixels = torch.tensor([10, 20, 30], dtype=torch.uint8).view(1, 3, 1, 1).expand(1, 3, 20, 20)
    x = imagenet_sets.network_input(imagenet_sets.centre(pixels))
    assert x.shape == (1, 3, SIDE, SIDE)
    expected = torch.tensor([30 - 103.939, 20 - 116.779, 10 - 123.68])
    torch.testing.assert_close(x[0, :, 0, 0], expected)


def some_images(count: int = 30, side: int = 20) -> Images:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (count, 3, side, side), dtype=torch.uint8, generator=generator)
    return Images(pixels, torch.arange(count) % 10)


def test_views_are_crops_and_each_image_comes_once() -> None:
    images = some_images()
    views = imagenet_sets.random_views(images, 10, seed=1, epoch=2)
    assert [tuple(view.shape) for view in views] == [(10, 3, SIDE, SIDE)] * 3
    sources = []
    for view in torch.cat(views):
        windows = images.pixels.unfold(2, SIDE, 1).unfold(3, SIDE, 1)  # image, channel, top, left
        same = [(windows == each[None, :, None, None]).all(dim=(1, 4, 5)) for each in _both(view)]
        (where,) = (same[0] | same[1]).nonzero().tolist()
        sources.append(where[0])
    assert sorted(sources) == list(range(30))
    again, other = (imagenet_sets.random_views(images, 10, 1, epoch) for epoch in (2, 3))
    assert all(map(torch.equal, views, again))
    assert not torch.equal(views[0], other[0])
    assert len(imagenet_sets.random_views(images, 12, 1, 0)) == 2


def _both(view: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return view, view.flip(2)


# The methods.


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )


def test_all_methods_reach_the_level_exactly() -> None:
    model = network()
    trained = state_of(model)
    methods = Methods(model, seed=0)
    entries = 16 * 27 + 32 * 144 + 320
    found = {}
    for name in methods.names:
        model.load_state_dict(trained)
        masks, facts = methods.prune(name, 0.7)
        weights = [model[i].weight for i in (0, 3, 8)]
        layered = name == "magnitude, per layer"
        expected = sum(round(0.7 * w.numel()) for w in weights) if layered else round(0.7 * entries)
        assert masks.zeros == expected
        assert sum(int((w == 0).sum()) for w in weights) == expected
        if name.startswith("GSP"):
            assert 0.7 - TOLERANCE <= facts["zeros before the cut"] <= 0.7
        found[name] = masks
        if name.endswith("original values"):
            assert masks == found[name.replace("original", "projected")]
            kept = masks["3.weight"]
            assert torch.equal(model[3].weight[kept], trained["3.weight"][kept])
        elif name.endswith("projected values"):
            kept = masks["3.weight"]
            assert not torch.allclose(model[3].weight[kept], trained["3.weight"][kept])
    assert found["magnitude, global"] != found["GSP whole model, original values"]
    assert found["GSP whole model, scaled, original values"] != found[
        "GSP whole model, original values"
    ]  # fmt: skip


def test_targets_leave_the_model_alone_and_learn() -> None:
    model = network()
    trained = state_of(model)
    targets, alone = (Targets(model, prune.Plan.paper) for _ in range(2))
    high, low = targets(0.9), alone(0.5)
    looked = len(targets.zeros)
    assert targets(0.5) == low < high
    assert len(targets.zeros) < looked + len(alone.zeros) - 2, "what was seen at 0.9 helps"
    looked = len(targets.zeros)
    assert (targets(0.9), targets(0.5)) == (high, low)
    assert len(targets.zeros) == looked
    assert all(torch.equal(model.state_dict()[name], value) for name, value in trained.items())


# Recalibration, distillation, accuracy.


def test_recalibration_measures_the_images() -> None:
    model = network()
    images = some_images()
    recalibrate(model, images, Arithmetic(), batch=30)
    x = imagenet_sets.network_input(imagenet_sets.centre(images.pixels))
    with torch.no_grad():
        inside = model[0](x)
    torch.testing.assert_close(model[1].running_mean, inside.mean(dim=(0, 2, 3)))
    torch.testing.assert_close(model[1].running_var, inside.var(dim=(0, 2, 3)), rtol=1e-4, atol=0)
    assert model[1].momentum == 0.1
    assert not model.training


def test_accuracy_counts() -> None:
    images = some_images(30)

    class Constant(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.arange(10.0).repeat(len(x), 1) * self.factor

        factor = 1.0

    model = Constant()
    found = accuracy(model, images, Arithmetic(), batch=7)
    assert found == {"top1": pytest.approx(10.0), "top5": pytest.approx(50.0)}
    model.factor = float("nan")
    with pytest.raises(FloatingPointError, match="not finite"):
        accuracy(model, images, Arithmetic())


def test_the_divergence_is_that_of_the_softened_probabilities() -> None:
    one, two = torch.randn(4, 6), torch.randn(4, 6)
    p, q = ((t.double() / 2).softmax(1) for t in (two, one))
    expected = 4 * (p * (p / q).log()).sum(1).mean()
    assert divergence(one, two, 2.0).item() == pytest.approx(expected.item(), rel=1e-5)
    assert divergence(one, one, 2.0).item() == pytest.approx(0.0, abs=1e-6)


def test_distillation_comes_closer_and_keeps_the_zeros() -> None:
    model, images = network(), some_images()
    recalibrate(model, images, Arithmetic())
    lessons = Lessons.by(model, images, Arithmetic(), epochs=12, batch=10, seed=0)
    assert len(lessons) == 36
    masks = prune.cut(model, 0.8)
    losses = distil(Student(model, Arithmetic()), masks, lessons, rate=3e-3)
    assert sum(losses[-6:]) < 0.7 * sum(losses[:6])
    assert prune.Masks.of(model) == masks
    assert not model.training


def test_numbers_that_float16_cannot_hold_are_measured_again() -> None:
    images = some_images(10)
    settings = {"seed": 0, "epochs": 1, "batch": 5, "rate": 1e-3}
    study = imagenet_oneshot.Study(network(), images, images, Arithmetic(), settings)
    tried: list[Arithmetic] = []

    def overflows(model: nn.Module, images: Images, arithmetic: Arithmetic) -> dict[str, float]:
        tried.append(arithmetic)
        if len(tried) == 1:
            raise FloatingPointError
        return {"top1": 1.0, "top5": 2.0}

    study.arithmetic = Arithmetic(answering=torch.bfloat16)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(imagenet_oneshot, "accuracy", overflows)
        assert study.recalibrated() == {"top1": 1.0, "top5": 2.0}
    assert tried == [study.arithmetic, Arithmetic()]


# The comparison as a command.


def run_command(monkeypatch: pytest.MonkeyPatch, folder: Path, *more: str) -> dict[str, Any]:
    arguments = ["oneshot", "--data", str(folder / "a"), str(folder / "b"), "--weights", "W"]
    arguments += ["--out", str(folder), "--levels", "0.5", "0.8", "--epochs", "1", "--batch", "10"]
    monkeypatch.setattr("sys.argv", [*arguments, *more])
    imagenet_oneshot.main()
    results: dict[str, Any] = record.load(imagenet_oneshot.NAME, folder=folder)["results"]
    return results


def test_the_comparison_goes_on_where_its_budget_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for part in ("a", "b"):
        (tmp_path / part).mkdir()
    write_set(tmp_path / "a" / "imagenet" / "val1300.npz", 20, 20)
    write_set(tmp_path / "b" / "imagenet" / "train1000.npz", 30, 20)
    monkeypatch.setattr(imagenet_oneshot, "load_pretrained", lambda path: network())
    results = run_command(monkeypatch, tmp_path, "--budget-seconds", "0")
    assert "the budget is spent" in capsys.readouterr().out
    assert results["runs"] == []
    assert set(results["dense"]) == {"trained", "recalibrated"}

    path = tmp_path / f"{imagenet_oneshot.NAME}.json"
    results = run_command(monkeypatch, tmp_path, "--only-eval", "--methods", "random")
    assert len(results["runs"]) == 2
    first = results["runs"][0]
    assert "sessions" not in results
    before = record.load(imagenet_oneshot.NAME, folder=tmp_path)
    monkeypatch.setenv("GROUPSPARSE_COMMIT", "another")
    only = ("--only-eval", "--methods", "magnitude, global")
    results = run_command(monkeypatch, tmp_path, "--resume", str(path), *only)
    results = run_command(monkeypatch, tmp_path, "--resume", str(path))
    assert "complete" in capsys.readouterr().out
    assert results["runs"][0] == first | {"of session": 0}, "what was there is not measured again"
    assert [run["of session"] for run in results["runs"]] == [0] * 2 + [1] * 2 + [2] * 36
    after = record.load(imagenet_oneshot.NAME, folder=tmp_path)
    assert [each["commit"] for each in results["sessions"]] == [before["commit"], *["another"] * 2]
    assert results["sessions"][0]["utc"] == before["utc"]
    assert after["seconds"] == pytest.approx(sum(each["seconds"] for each in results["sessions"]))
    assert len(results["runs"]) == 2 * 2 * 10
    assert {run["zeros"] for run in results["runs"] if run["level"] == 0.8} == {4288}
    distilled = [run["level"] for run in results["runs"] if run["distilled"]]
    assert distilled == [0.8] * 10 + [0.5] * 10
    table = results["table"]
    assert table["columns"] == ["method", "stage", "0 % zeros", "50 % zeros", "80 % zeros"]
    assert len(table["rows"]) == 2 + 20
    assert {len(row) for row in table["rows"]} == {5}
    with pytest.raises(SystemExit, match="was made with"):
        run_command(monkeypatch, tmp_path, "--resume", str(path), "--rate", "1")
    with pytest.raises(SystemExit, match="no method"):
        run_command(monkeypatch, tmp_path, "--methods", "magic")

    pytest.importorskip("matplotlib")
    assert set(imagenet_report.STYLES) == {run["method"] for run in results["runs"]}
    picture = tmp_path / "new" / "picture.png"
    monkeypatch.setattr("sys.argv", ["r", "--folder", str(tmp_path), "--out", str(picture)])
    imagenet_report.main()
    assert picture.read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out
    assert "do not quote them as ImageNet accuracy" in printed
    assert "magnitude, global, floor 1" in printed
    assert "2 at commit another" in printed
    assert "36 at commit another" in printed


@pytest.mark.skipif("GROUPSPARSE_DATA" not in os.environ, reason="GROUPSPARSE_DATA is not set")
def test_the_real_sets_are_what_they_were() -> None:
    root = Path(os.environ["GROUPSPARSE_DATA"])
    check = imagenet_sets.load_images(imagenet_sets.find([root], "val1300.npz"), 6)
    train = imagenet_sets.load_images(imagenet_sets.find([root], "train1000.npz"), 6)
    assert check.pixels.shape == (6, 3, 227, 227)
    assert check.labels.tolist() == [472, 260, 300, 133, 625, 705]
    assert train.pixels.shape == (6, 3, 256, 256)
    assert train.labels.tolist() == list(range(6))
