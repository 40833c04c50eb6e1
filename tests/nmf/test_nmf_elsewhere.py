"""Data that is not an array in memory: memory maps, Dask arrays on a cluster."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_matrix

import groupsparse as gs
from tests.nmf.problems import error, noisy, start

pytest.importorskip("sklearn")

from groupsparse.nmf import GroupSparseNMF
from groupsparse.nmf import samples as samples_module

TARGETS = [{}, {"hoyer_H": 0.6}, {"hoyer_W": 0.4}, {"hoyer_W": 0.4, "hoyer_H": 0.5}]


def fitted(x: Any, **arguments: Any) -> tuple[GroupSparseNMF, Any]:
    settings = {"max_iter": 25, "tol": 0, "init": "random", "random_state": 0, **arguments}
    model = GroupSparseNMF(5, **settings)
    return model, model.fit_transform(x)


def assert_same(one: tuple[GroupSparseNMF, Any], two: tuple[GroupSparseNMF, Any]) -> None:
    (a, codes_a), (b, codes_b) = one, two
    np.testing.assert_allclose(b.loss_curve_, a.loss_curve_, rtol=1e-6)
    np.testing.assert_allclose(np.asarray(b.components_), a.components_, atol=1e-6)
    np.testing.assert_allclose(np.asarray(codes_b), codes_a, atol=1e-6)
    assert b.hoyer_W_ == pytest.approx(a.hoyer_W_, abs=1e-6)
    assert b.hoyer_H_ == pytest.approx(a.hoyer_H_, abs=1e-6)


# --- memory maps ----------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", TARGETS)
def test_a_memory_map_gives_the_same_result(
    arguments: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = noisy(300)
    np.save(tmp_path / "x.npy", x)
    monkeypatch.setattr(samples_module, "BLOCK_BYTES", 77 * 40 * 8)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert len(samples_module.blocks_of(mapped.shape)) == 4
    assert_same(fitted(x, **arguments), fitted(mapped, **arguments))
    model, _ = fitted(mapped, **arguments)
    np.testing.assert_allclose(model.transform(mapped), model.transform(x), atol=1e-9)


def test_a_map_of_integers_is_converted_block_by_block(tmp_path: Path) -> None:
    x = (100 * noisy()).astype(np.uint8)
    np.save(tmp_path / "x.npy", x)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert_same(fitted(x.astype(np.float64)), fitted(mapped))
    with pytest.raises(gs.InvalidInput, match="needs a memory map of floats"):
        fitted(mapped, init="nndsvd")


@pytest.mark.parametrize("init", ["nndsvd", "nndsvda", "nndsvdar"])
def test_a_map_of_floats_may_start_from_its_svd(init: str, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", noisy())
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert_same(fitted(noisy(), init=init), fitted(mapped, init=init))


LIMITED = """
    import resource, sys
    import numpy as np
    from groupsparse.nmf import GroupSparseNMF

    def fit(x):
        return GroupSparseNMF(4, hoyer_H=0.6, max_iter=2, tol=0, random_state=0).fit(x)

    fit(np.random.default_rng(0).random((200, 100), dtype=np.float32))  # compiles, loads all
    used = next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith("VmData"))
    limit = (used << 10) + (128 << 20)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    x = np.load(sys.argv[1], mmap_mode="r")
    try:
        np.array(x)
    except MemoryError:
        print("does not fit")
    print(f"{fit(x).hoyer_H_:.4f}")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the memory limit is set the Linux way")
def test_data_larger_than_memory(tmp_path: Path) -> None:
    path = tmp_path / "large.npy"
    rows = np.random.default_rng(0).random((1000, 1000), dtype=np.float32)
    large = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(60_000, 1000))
    for i in range(0, len(large), len(rows)):
        large[i : i + len(rows)] = rows
    del large
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(LIMITED), str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split("\n")[:2] == ["does not fit", "0.6000"], done.stderr


# --- Dask -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [*TARGETS, {"hoyer_W": 0.4, "per_vector": True}, {"solver": "ahals"}],
)
def test_a_dask_array_gives_the_same_result(arguments: dict[str, Any]) -> None:
    da = pytest.importorskip("dask.array")
    x = noisy(700)
    chunked = da.from_array(x, chunks=(130, 17))
    one, two = fitted(x, **arguments), fitted(chunked, **arguments)
    assert isinstance(two[1], da.Array)
    assert two[1].chunks[0] == chunked.chunks[0]
    assert_same(one, two)
    if "hoyer_W" in arguments:
        each = gs.hoyer(two[1].compute(), axis=0)
        measured = each.min() if "per_vector" in arguments else each.mean()
        assert measured == pytest.approx(arguments["hoyer_W"], abs=1e-9)
    codes = two[0].transform(chunked)
    np.testing.assert_allclose(codes.compute(), two[0].transform(x), atol=1e-8)


def test_a_dask_array_starts_where_it_is_told() -> None:
    da = pytest.importorskip("dask.array")
    x = noisy(300)
    w, h = start(300, 40, 5)
    model = GroupSparseNMF(5, hoyer_H=0.6, init="custom", max_iter=10, tol=0)
    codes = model.fit_transform(x, W=w, H=h)
    expected = model.components_
    for given in (w, da.from_array(w, chunks=(50, 5))):
        chunked = model.fit_transform(da.from_array(x, chunks=(90, 40)), W=given, H=h)
        np.testing.assert_allclose(chunked.compute(), codes, atol=1e-9)
        np.testing.assert_allclose(model.components_, expected, atol=1e-9)


def test_the_extremes_of_distributed_vectors() -> None:
    da = pytest.importorskip("dask.array")
    x = noisy(300)
    chunked = da.from_array(x, chunks=(90, 40))
    model, codes = fitted(chunked, hoyer_W=1.0)
    assert ((codes.compute() > 0).sum(axis=0) <= 1).all()
    model, codes = fitted(chunked, hoyer_W=0.97)
    assert gs.average_hoyer(codes.compute(), axis=0) == pytest.approx(0.97, abs=1e-9)
    assert error(x, codes.compute(), model.components_) == pytest.approx(model.loss_curve_[-1])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"hoyer_W": 0.5, "solver": "gsp"}, "needs solver='auto'"),
        ({"hoyer_W": 0.5, "weights_W": np.ones(60)}, "not for the W of a Dask array"),
        ({"init": "nndsvd"}, "not for Dask arrays"),
    ],
)
def test_what_a_dask_array_cannot_have(arguments: dict[str, Any], message: str) -> None:
    da = pytest.importorskip("dask.array")
    with pytest.raises(gs.InvalidInput, match=message):
        fitted(da.from_array(noisy(), chunks=(20, 40)), **arguments)


def test_bad_chunks_are_found() -> None:
    da = pytest.importorskip("dask.array")
    x = noisy()
    x[50, 3] = np.nan
    sparse = da.from_array(np.eye(12), chunks=(6, 12)).map_blocks(csr_matrix)
    with pytest.raises(gs.UnsupportedType, match="chunks of type csr_matrix"):
        GroupSparseNMF(2).fit(sparse)
    no_lengths = da.from_array(np.eye(12), chunks=(6, 12))
    with pytest.raises(gs.InvalidInput, match="compute_chunk_sizes"):
        GroupSparseNMF(2).fit(no_lengths[no_lengths[:, 0] >= 0])
    with pytest.raises(gs.InvalidInput, match="NaN"):
        fitted(da.from_array(x, chunks=(20, 40)))
    with pytest.raises(gs.InvalidInput, match=r"X has shape \(0, 40\)"):
        fitted(da.ones((0, 40)))
    w, h = start(60, 40, 5)
    w[50, 3] = -1
    with pytest.raises(gs.InvalidInput, match="W has an entry -1"):
        GroupSparseNMF(5, init="custom").fit(da.from_array(noisy(), chunks=(20, 40)), W=w, H=h)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_worker_killed_in_the_middle_changes_nothing() -> None:
    distributed = pytest.importorskip("distributed")
    da = pytest.importorskip("dask.array")
    x = noisy(600)
    killed: list[int] = []

    def kill_one(progress: Any) -> None:
        if progress.iteration == 6:
            pid = next(iter(client.run(os.getpid).values()))
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)

    arguments = {"hoyer_H": 0.6, "hoyer_W": 0.4, "max_iter": 12}
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs=50
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        chunked = da.from_array(x, chunks=(150, 40))
        model, codes = fitted(chunked, callback=kill_one, **arguments)
        codes = codes.compute()
        assert killed
        assert killed[0] not in client.run(os.getpid).values()
    assert_same(fitted(x, **arguments), (model, codes))
