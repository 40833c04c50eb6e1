"""The pretrained ResNet-50 and its small sets, and the recipe for the whole of ImageNet."""

from __future__ import annotations

import io
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("PIL", reason="needs pillow")
from PIL import Image

from experiments import imagenet, imagenet_oneshot, imagenet_report, imagenet_sets, record
from experiments.cifar import Images
from experiments.imagenet_convert import _module, load_pretrained, pack, read_keras, to_state
from experiments.imagenet_distil import (
    Arithmetic,
    Lessons,
    accuracy,
    distil,
    divergence,
    recalibrate,
)
from experiments.imagenet_folder import (
    MEAN,
    Folder,
    Shuffled,
    centre_box,
    normalised,
    random_box,
    validation_batches,
)
from experiments.imagenet_methods import TOLERANCE, Methods, Targets, state_of
from experiments.imagenet_training import Phase
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
    losses = distil(model, masks, lessons, Arithmetic(), rate=3e-3)
    assert sum(losses[-6:]) < 0.7 * sum(losses[:6])
    assert prune.Masks.of(model) == masks
    assert not model.training


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
    results = run_command(monkeypatch, tmp_path, "--resume", str(path))
    assert "complete" in capsys.readouterr().out
    assert results["runs"][0] == first, "what was there is not measured again"
    assert len(results["runs"]) == 2 * 2 * 10
    assert {run["zeros"] for run in results["runs"] if run["level"] == 0.8} == {4288}
    distilled = [run["level"] for run in results["runs"] if run["distilled"]]
    assert distilled == [0.8] * 10 + [0.5] * 10
    table = results["table"]
    assert table["columns"] == ["method", "stage", "50% zeros", "80% zeros"]
    assert len(table["rows"]) == 2 + 20
    assert {len(row) for row in table["rows"]} == {4}
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


# ImageNet as a folder.


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three classes of 40 × 48 JPEGs, in each of which another colour is full."""
    root = tmp_path_factory.mktemp("imagenet")
    generator = np.random.default_rng(0)
    for part, count in (("train", 10), ("val", 3)):
        for label in range(3):
            place = root / part / f"n{label:08d}"
            place.mkdir(parents=True)
            for which in range(count):
                pixels = generator.integers(0, 200, (40, 48, 3))
                pixels[..., label] = 255
                Image.fromarray(pixels.astype(np.uint8)).save(place / f"{which}.JPEG")
            (place / "notes.txt").write_text("no image")
    return root


def test_patches_have_the_papers_sizes() -> None:
    draw = random.Random(0)
    areas, ratios = [], []
    for _ in range(400):
        left, top, right, bottom = random_box(500, 375, draw)
        assert 0 <= left < right <= 500
        assert 0 <= top < bottom <= 375
        areas.append((right - left) * (bottom - top) / (500 * 375))
        ratios.append((right - left) / (bottom - top))
    assert 0.078 < min(areas) < 0.12
    assert 0.8 < max(areas) <= 1.0
    assert 0.74 < min(ratios) < 0.78
    assert 1.28 < max(ratios) < 1.35
    assert random_box(1000, 10, draw) == (493, 0, 506, 10), "nothing fits: the widest allowed"
    assert centre_box(256, 300) == (16, 38, 240, 262)


def test_an_image_depends_on_seed_epoch_and_number_only(folder: Path) -> None:
    images = Folder(folder / "train", 32, seed=0)
    assert (len(images), images.classes) == (30, ["n00000000", "n00000001", "n00000002"])
    pixels, label = images[(12, 4)]
    assert (pixels.shape, pixels.dtype, label) == ((3, 32, 32), torch.uint8, 1)
    assert pixels[1].float().mean() > 230, "its green is full"
    assert torch.equal(Folder(folder / "train", 32, seed=0)[(12, 4)][0], pixels)
    assert not torch.equal(images[(12, 5)][0], pixels)
    assert not torch.equal(Folder(folder / "train", 32, seed=1)[(12, 4)][0], pixels)
    check = Folder(folder / "val", 32)
    assert torch.equal(check[(3, 0)][0], check[(3, 9)][0])
    grey = torch.tensor(MEAN).mul(255).view(1, 3, 1, 1)
    torch.testing.assert_close(normalised(grey), torch.zeros(1, 3, 1, 1))


def test_processes_share_an_epoch() -> None:
    parts = [Shuffled(30, 4, 0, rank, 2) for rank in range(2)]
    for part in parts:
        part.start_at(3, 0)
    first, second = (list(part) for part in parts)
    assert len(first) == len(second) == len(parts[0]) == 3
    keys = [key for batch in first + second for key in batch]
    assert len(set(keys)) == 24
    assert {epoch for _, epoch in keys} == {3}
    parts[0].start_at(3, 2)
    assert list(parts[0]) == first[2:]
    parts[0].start_at(4, 0)
    assert list(parts[0]) != first
    with pytest.raises(SystemExit, match="do not fill one batch"):
        Shuffled(5, 4, 0, 0, 2)
    checked = [key for rank in range(2) for b in validation_batches(9, 2, rank, 2) for key in b]
    assert sorted(checked) == [(which, 0) for which in range(9)]


# The recipe.

RECIPE = (
    "--epochs 3 --project-from 1 --every 2 --hoyer 0.6 --finetune 2 --milestones 2 --batch 8 "
    "--rate 1 --finetune-rate 0.3 --size 32 --width 4 --workers 0 --warmup 1 --sparsity 0.9"
)


def recipe(monkeypatch: pytest.MonkeyPatch, folder: Path, place: Path, *more: str) -> Any:
    words = ["imagenet", "--data", str(folder), "--checkpoints", str(place), "--out", str(place)]
    monkeypatch.setattr("sys.argv", [*words, *RECIPE.split(), *more])
    imagenet.main()
    return record.load("imagenet_recipe", folder=place)


def without_seconds(curve: list[dict[str, float]]) -> list[dict[str, float]]:
    return [{k: v for k, v in point.items() if k != "seconds"} for point in curve]


@pytest.mark.parametrize("after", [2, 7, 9, 12])
def test_a_killed_recipe_ends_as_one_that_was_not(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    straight = recipe(monkeypatch, folder, tmp_path / "straight")
    original, seen = Phase.save, []

    def dies(phase: Phase) -> None:
        original(phase)
        seen.append(phase.step)
        if len(seen) == after:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Phase, "save", dies)
        with pytest.raises(KeyboardInterrupt):
            recipe(monkeypatch, folder, tmp_path / "killed", "--save-every", "1")
    resumed = recipe(monkeypatch, folder, tmp_path / "killed", "--save-every", "1")
    for name in ("curve", "finetune curve"):
        first, second = (without_seconds(run["results"][name]) for run in (straight, resumed))
        assert first == second
    for name in ("train.pt", "finetune.pt"):
        first, second = (
            torch.load(tmp_path / run / name, weights_only=True)["model"]
            for run in ("straight", "killed")
        )
        assert all(map(torch.equal, first.values(), second.values()))


def test_the_recipe_induces_cuts_and_holds_the_zeros(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = recipe(monkeypatch, folder, tmp_path)["results"]
    before, after = results["layers before the cut"]["total"], results["layers"]["total"]
    entries = after["parameters"]
    assert before["zeros"] > 0.1 * entries, "the projection's own zeros"
    assert after["zeros"] == results["zeros"] == round(0.9 * entries)
    assert len(results["curve"]) == 3
    assert len(results["finetune curve"]) == 2
    state = torch.load(tmp_path / "train.pt", weights_only=True)
    assert state["attached"]["inducer"]["steps"] == 9


def test_without_projections_the_recipe_is_plain_training(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dense = recipe(monkeypatch, folder, tmp_path, "--hoyer", "0", "--epochs", "12", "--rate", "0.3")
    assert "data" not in dense["parameters"]
    results = dense["results"]
    assert results["layers before the cut"]["total"]["zeros"] == 0
    losses = [point["loss"] for point in results["curve"]]
    assert min(losses) < 0.6 * losses[0]
    last = [point["top1"] for point in results["curve"][-3:]]
    assert results["trained"]["top1"] == pytest.approx(sum(last) / 3)


def test_the_rate_rises_and_falls() -> None:
    rate = imagenet.schedule(0.4, [70, 100], warmup=5)
    assert [rate(at) for at in (0.0, 2.5, 5.0, 69.9, 70.0, 100.5)] == pytest.approx(
        [0.04, 0.22, 0.4, 0.4, 0.04, 0.004]
    )


def test_two_processes_under_torchrun(folder: Path, tmp_path: Path) -> None:
    if not torch.distributed.is_available():
        pytest.skip("this PyTorch has no distributed")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    launcher += ["--nproc-per-node", "2", "-m", "experiments.imagenet"]
    places = ["--data", str(folder), "--checkpoints", str(tmp_path), "--out", str(tmp_path)]
    words = [*RECIPE.split(), "--batch", "4", "--precision", "bfloat16"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(record.ROOT)}
    done = subprocess.run(
        [*launcher, *places, *words],
        cwd=record.ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    written = record.load("imagenet_recipe", folder=tmp_path)
    assert written["parameters"]["processes"] == 2
    total = written["results"]["layers"]["total"]
    assert total["zeros"] == round(0.9 * total["parameters"])
    assert done.stdout.count("finetune 2/2") == 1, "one process speaks"


@pytest.mark.skipif("GROUPSPARSE_DATA" not in os.environ, reason="GROUPSPARSE_DATA is not set")
def test_the_real_sets_are_what_they_were() -> None:
    root = Path(os.environ["GROUPSPARSE_DATA"])
    check = imagenet_sets.load_images(imagenet_sets.find([root], "val1300.npz"), 6)
    train = imagenet_sets.load_images(imagenet_sets.find([root], "train1000.npz"), 6)
    assert check.pixels.shape == (6, 3, 227, 227)
    assert check.labels.tolist() == [472, 260, 300, 133, 625, 705]
    assert train.pixels.shape == (6, 3, 256, 256)
    assert train.labels.tolist() == list(range(6))
