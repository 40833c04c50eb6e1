"""The recipe for the whole of ImageNet, end to end on a few made JPEGs."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("PIL", reason="needs pillow")
from PIL import Image

from experiments import imagenet, record
from experiments.imagenet_folder import (
    MEAN,
    Folder,
    Shuffled,
    centre_box,
    normalised,
    random_box,
    validation_batches,
)
from experiments.imagenet_training import Phase


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
    "--rate 0.3 --finetune-rate 0.3 --size 32 --width 4 --workers 0 --warmup 1 "
    "--sparsity 0.9 --floor 1"
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
    dense = recipe(
        monkeypatch, folder, tmp_path, "--hoyer", "0", "--epochs", "12", "--sparsity", "0.3"
    )
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
