"""``groupsparse nmf``: every kind of data, every algorithm, and going on from a file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat
from scipy.sparse import csc_array, save_npz

import groupsparse as gs
from tests.cli.examples import Ran, damage

Run = Callable[..., Ran]
DATA = np.random.default_rng(0).random((30, 48))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    np.save(tmp_path / "x.npy", DATA)
    return tmp_path / "x.npy"


def contents(path: Path) -> dict[str, Any]:
    with np.load(path, allow_pickle=False) as file:
        found = dict(file)
    return found | {"settings": json.loads(str(found["settings"]))}


def test_the_file_holds_all_of_it(run: Run, data: Path, tmp_path: Path) -> None:
    out, plot = tmp_path / "parts.npz", tmp_path / "parts.png"
    arguments = ("--rank", 4, "--hoyer-h", 0.6, "--max-iter", 20, "--out", out, "--plot", plot)
    ran = run("nmf", data, *arguments, "--shape", "8x6")
    assert ran.code == 0, ran.err
    found = contents(out)
    assert found["W"].shape == (30, 4)
    assert found["H"].shape == (4, 48)
    assert gs.average_hoyer(found["H"]) == pytest.approx(0.6, abs=1e-9)
    error = np.linalg.norm(DATA - found["W"] @ found["H"]) / np.linalg.norm(DATA)
    assert found["loss_curve"][-1] == pytest.approx(error)
    assert f"{100 * error:.4f} %" in ran.out
    assert len(found["time_curve"]) == len(found["loss_curve"]) == found["settings"]["iterations"]
    assert found["settings"]["hoyer_h"] == 0.6
    with Image.open(plot) as picture:
        assert min(picture.size) > 100


@pytest.mark.parametrize("solver", ["auto", "ahals", "nenmf", "l1-ahals", "csp", "gsp"])
def test_every_algorithm_runs(run: Run, data: Path, tmp_path: Path, solver: str) -> None:
    out = tmp_path / "parts.npz"
    targets = [] if solver in ("ahals", "nenmf") else ["--hoyer-h", 0.5, "--hoyer-w", 0.3]
    arguments = ("--rank", 3, "--solver", solver, "--max-iter", 5, "--out", out)
    ran = run("nmf", data, *arguments, *targets)
    assert ran.code == 0, ran.err
    assert contents(out)["settings"]["solver"] == solver


def test_every_kind_of_file_gives_the_same(run: Run, data: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", other=np.eye(3), X=DATA)
    savemat(tmp_path / "x.mat", {"X": DATA, "size": 3})
    header = ",".join(f"pixel {i}" for i in range(48))
    np.savetxt(tmp_path / "x.csv", DATA, delimiter=",", header=header, comments="", fmt="%.18g")
    np.savetxt(tmp_path / "x.tsv", DATA, delimiter="\t", fmt="%.18g")
    save_npz(tmp_path / "sparse.npz", csc_array(DATA))
    savemat(tmp_path / "sparse.mat", {"X": csc_array(DATA)})
    np.save(tmp_path / "turned.npy", DATA.T)
    np.save(tmp_path / "stack.npy", DATA.reshape(30, 8, 6))
    results = []
    for name, extra in {
        "x.npy": [],
        "x.npz": ["--key", "X"],
        "x.mat": [],
        "x.csv": [],
        "x.tsv": [],
        "sparse.npz": [],
        "sparse.mat": [],
        "turned.npy": ["--columns"],
        "stack.npy": [],
    }.items():
        out = tmp_path / "parts.npz"
        arguments = ("--rank", 3, "--hoyer-h", 0.5, "--max-iter", 4, "--out", out)
        ran = run("nmf", tmp_path / name, *arguments, *extra)
        assert ran.code == 0, ran.err
        results.append(contents(out)["H"])
    for found in results[1:]:
        np.testing.assert_allclose(found, results[0], atol=1e-10)


def test_a_folder_of_images(run: Run, tmp_path: Path) -> None:
    folder, out = tmp_path / "images", tmp_path / "parts.npz"
    folder.mkdir()
    (folder / "notes.txt").write_text("not an image")
    pixels = np.random.default_rng(0).integers(0, 256, (9, 8, 6), dtype=np.uint8)
    for i, picture in enumerate(pixels):
        Image.fromarray(picture).save(folder / f"{i}.png")
    plot = tmp_path / "parts.png"
    how = ("--rank", 9, "--init", "random", "--out", out)
    ran = run("nmf", folder, *how, "--plot", plot, "--max-iter", 300, "--tol", 0)
    assert ran.code == 0, ran.err
    found = contents(out)
    rebuilt = (found["W"] @ found["H"]).reshape(pixels.shape)
    assert np.abs(rebuilt - pixels / 255).max() < 0.3  # rank 9 of 9 images
    assert plot.exists()
    Image.fromarray(pixels[0, :4]).save(folder / "small.png")
    ran = run("nmf", folder, *how)
    assert (ran.code, "small.png has 4x6 pixels" in ran.err) == (1, True)


def test_resume_goes_on_from_the_saved_factors(run: Run, data: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first.npz", tmp_path / "second.npz"
    how = ("--hoyer-h", 0.5, "--tol", 0)
    run("nmf", data, "--rank", 4, *how, "--max-iter", 120, "--out", first)
    ran = run("nmf", data, "--resume", first, "--tol", 0, "--max-iter", 30, "--out", second)
    assert ran.code == 0, ran.err
    before, after = contents(first), contents(second)
    assert after["settings"]["hoyer_h"] == 0.5  # as it was, since nothing else was said
    assert len(after["loss_curve"]) == 150
    assert (np.diff(after["loss_curve"]) <= 0).all()
    assert (np.diff(after["time_curve"]) >= 0).all()
    assert after["loss_curve"][-1] <= before["loss_curve"][-1]
    error = np.linalg.norm(DATA - after["W"] @ after["H"]) / np.linalg.norm(DATA)
    assert error == pytest.approx(after["loss_curve"][-1])
    assert gs.average_hoyer(after["H"]) == pytest.approx(0.5, abs=1e-9)
    # A start of its own would not be there after one iteration.
    run("nmf", data, "--resume", first, *how, "--max-iter", 1, "--out", second)
    fresh = tmp_path / "fresh.npz"
    run("nmf", data, "--rank", 4, *how, "--max-iter", 1, "--out", fresh)
    assert contents(second)["loss_curve"][-1] < 0.99 * contents(fresh)["loss_curve"][-1]


def test_the_same_seed_gives_the_same_bits(run: Run, data: Path, tmp_path: Path) -> None:
    found = []
    for seed in (3, 3, 4):
        how = ("--rank", 3, "--seed", seed, "--init", "random", "--max-iter", 5)
        run("nmf", data, *how, "--out", tmp_path / "parts.npz")
        found.append(contents(tmp_path / "parts.npz")["H"])
    assert np.array_equal(found[0], found[1])
    assert not np.array_equal(found[0], found[2])


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["x.npy"], 2, "give --rank"),
        (["x.npy", "--rank", "3", "--out", "nowhere/parts.npz"], 2, "no folder nowhere"),
        (["x.npy", "--rank", "3", "--plot", "parts.xyz"], 2, "expected one of .png"),
        (["x.npy", "--rank", "3", "--shape", "5x5", "--plot", "a.png"], 1, "samples have 48"),
        (["x.npy", "--rank", "3", "--solver", "best"], 2, "best"),
        (["two.npz", "--rank", "3"], 1, "holds a, b; choose one with --key"),
        (["two.npz", "--rank", "3", "--key", "c"], 1, "no 'c'; it has a, b"),
        (["two.npz", "--rank", "3", "--key", "b"], 1, "two.npz: the entry at"),
        (["x.npy", "--resume", "two.npz"], 1, "was not written by groupsparse nmf"),
        (["x.npy", "--resume", "old.npz", "--rank", "5"], 1, "old.npz has 3 parts of data of"),
        (["other.npy", "--resume", "old.npz"], 1, "the data have shape (4, 4)"),
        (["bad.mat", "--rank", "3"], 1, "no .mat file"),
        (["bad.csv", "--rank", "3"], 1, "bad.csv"),
        (["bad.csv", "--rank", "3"], 1, "row 2 of the data, column 2, is 'x'; expected a number"),
        (["hole.csv", "--rank", "3"], 1, "hole.csv: row 1 of the data, column 2, is empty"),
        (["empty.csv", "--rank", "3"], 1, "empty.csv holds no numbers"),
        (["bytes.csv", "--rank", "3"], 1, "bytes.csv is not text in UTF-8"),
        (["empty.npy", "--rank", "3"], 1, "empty.npy is no .npy file that can be read"),
        (["empty.npz", "--rank", "3"], 1, "empty.npz is no .npz file that can be read"),
        (["archive.npy", "--rank", "3"], 1, "archive.npy is no .npy file"),
        (["array.npz", "--rank", "3"], 1, "array.npz is no .npz file"),
        (
            ["damaged.npz", "--rank", "3", "--key", "a"],
            1,
            "damaged.npz is no .npz file that can be read",
        ),
        (["flat.npy", "--rank", "3"], 1, "flat.npy holds an array of shape (3,)"),
        (["none.npy", "--rank", "3"], 1, "none.npy holds an array of shape (0, 4)"),
        (["below.npy", "--rank", "3", "--columns"], 1, "below.npy: the entry at (0, 2) is -1.0"),
        (["hollow.npz", "--rank", "3"], 1, "hollow.npz: the entry at (2, 1) is nan"),
        (["x.npy", "--resume", "empty.npz"], 1, "was not written by groupsparse nmf"),
        (["x.npy", "--rank", "3", "--out", "folder.npz"], 2, "folder.npz is a folder"),
        (["nan.npy", "--rank", "3"], 1, "nan.npy: the entry at (1, 2) is nan"),
    ],
)
def test_mistakes_are_named(
    run: Run,
    data: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    code: int,
    sentence: str,
) -> None:
    monkeypatch.chdir(data.parent)
    np.savez("two.npz", a=np.eye(3), b=-np.eye(3))
    Path("bad.mat").write_text("nothing")
    Path("bad.csv").write_text("1,2\n3,x\n")
    Path("empty.csv").write_text("")
    np.save("nan.npy", np.where(np.arange(12).reshape(3, 4) == 6, np.nan, 1.0))
    np.save("other.npy", np.eye(4))
    Path("hole.csv").write_text("a,b\n1,\n2,3\n")
    for name in ("empty.npy", "empty.npz", "bytes.csv"):
        Path(name).write_bytes(b"\x93" if name == "bytes.csv" else b"")
    Path("archive.npy").write_bytes(Path("two.npz").read_bytes())
    Path("array.npz").write_bytes(Path("other.npy").read_bytes())
    damage("two.npz", "damaged.npz")
    np.save("flat.npy", np.ones(3))
    save_npz("hollow.npz", csc_array([[1.0, 0.0], [0.0, 2.0], [3.0, np.nan]]))
    np.save("none.npy", np.ones((0, 4)))
    np.save("below.npy", np.array([[1.0, 2.0, -1.0], [1.0, -2.0, 0.0]]))
    Path("folder.npz").mkdir()
    if "old.npz" in arguments:
        run("nmf", "x.npy", "--rank", 3, "--max-iter", 1, "--out", "old.npz")
    ran = run("nmf", *arguments)
    assert (ran.code, ran.out) == (code, "")
    assert sentence in ran.err
    assert ran.err.count("\n") == 1
    assert not Path("parts.npz").exists()
