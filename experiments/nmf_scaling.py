"""How the time of a distributed iteration grows with samples and with workers.

A LocalCluster of single-threaded workers factorises random Dask arrays with r = 20, once with a
target on the parts and once with one on the codes, whose vectors run through all chunks::

    python -m experiments.nmf_scaling
"""

from __future__ import annotations

import argparse
import time
import warnings
from typing import Any

import numpy as np

from experiments import record
from experiments.tables import table
from groupsparse.nmf import GroupSparseNMF

FEATURES, RANK, ITERATIONS, CHUNK = 200, 20, 8, 12_500
SAMPLES = (25_000, 50_000, 100_000)
WORKERS = (1, 2)
COLUMNS = ["target", "samples", *(f"ms/iteration, workers: {w}" for w in WORKERS)]
TARGETS = {"hoyer_H": 0.6, "hoyer_W": 0.5}


def run() -> list[dict[str, Any]]:
    """Time every combination."""
    import dask.array as da
    from distributed import Client, LocalCluster

    cases = []
    for workers in WORKERS:
        cluster = LocalCluster(
            n_workers=workers, threads_per_worker=1, dashboard_address=None, silence_logs=50
        )
        with cluster, Client(cluster):
            for samples in SAMPLES:
                random = da.random.default_rng(0)
                x = random.random((samples, FEATURES), chunks=(CHUNK, FEATURES)).persist()
                for name, target in TARGETS.items():
                    cases.append(_case(x, workers, name, target))
    return cases


def _case(x: Any, workers: int, name: str, target: float) -> dict[str, Any]:
    model = GroupSparseNMF(RANK, max_iter=ITERATIONS, tol=0, random_state=0, **{name: target})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the size of graphs and the age of connections
        model.fit(x)
    seconds = np.diff(model.time_curve_)[1:]
    return {
        "workers": workers,
        "samples": int(x.shape[0]),
        "target": name,
        "seconds per iteration": float(np.median(seconds)),
    }


def report(cases: list[dict[str, Any]]) -> str:
    """Return one row per number of samples and target, one column per number of workers."""
    return table(COLUMNS, rows(cases))


def rows(cases: list[dict[str, Any]]) -> list[list[str]]:
    """Return the rows of that table."""
    found = []
    for name in TARGETS:
        for samples in SAMPLES:
            times = [
                case["seconds per iteration"]
                for workers in WORKERS
                for case in cases
                if (case["workers"], case["samples"], case["target"]) == (workers, samples, name)
            ]
            found.append([name, f"{samples}", *(f"{1e3 * seconds:.0f}" for seconds in times)])
    return found


def main() -> None:
    """Run, keep the record, print the table."""
    argparse.ArgumentParser(
        prog="python -m experiments.nmf_scaling", description=__doc__
    ).parse_args()
    began = time.perf_counter()
    cases = run()
    parameters = {"features": FEATURES, "rank": RANK, "chunk": CHUNK}
    record.save(
        "nmf_scaling", cases, seconds=time.perf_counter() - began, seed=0, parameters=parameters
    )
    print(report(cases))


if __name__ == "__main__":
    main()
