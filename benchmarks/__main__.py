"""Run the benchmarks and rewrite ``benchmarks/RESULTS.md`` from their records.

``python -m benchmarks`` runs all of them, ``python -m benchmarks cpu`` one, ``--quick`` small sizes
(their records are kept apart and do not reach RESULTS.md), ``--report-only`` none.
"""

from __future__ import annotations

import argparse
import importlib
import os
import pkgutil
import time
from pathlib import Path
from types import ModuleType
from typing import Any

from experiments import record

FOLDER = Path(__file__).resolve().parent
RECORDS = FOLDER / "records"
_INTRODUCTION = """# Benchmark results

Written by `make bench` (`python -m benchmarks`) from `benchmarks/records/*.json`; each section
names the commit and the machine its figures come from. Competitors take turns within one process,
figures are medians, and what to compare is the ratio.
"""


def modules() -> dict[str, ModuleType]:
    """Return the benchmarks of this folder: the modules that have `run` and `report`."""
    names = [found.name for found in pkgutil.iter_modules([str(FOLDER)])]
    loaded = {
        name: importlib.import_module(f"benchmarks.{name}") for name in names if name != "__main__"
    }
    return {name: module for name, module in loaded.items() if hasattr(module, "run")}


def main() -> None:
    """Run what was asked for, print its tables, and bring RESULTS.md up to date."""
    available = modules()
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of: {', '.join(available)}")
    parser.add_argument("--quick", action="store_true", help="small sizes, no change to RESULTS.md")
    parser.add_argument("--report-only", action="store_true", help="only rewrite RESULTS.md")
    options = parser.parse_args()
    unknown = set(options.names) - set(available)
    if unknown:
        parser.error(
            f"no benchmark named {', '.join(sorted(unknown))}; there is {', '.join(available)}"
        )

    folder = FOLDER.parent / "build" / "benchmarks" if options.quick else RECORDS
    possible = [name for name, module in available.items() if _possible(module)]
    for name in () if options.report_only else options.names or possible:
        load = round(os.getloadavg()[0], 2)  # what others had the machine do when this began
        began = time.perf_counter()
        results = available[name].run(options.quick)
        seconds = time.perf_counter() - began
        parameters = {"quick": options.quick, "load before": load}
        record.save(name, results, seconds=seconds, parameters=parameters, folder=folder)
        print(section(name, available[name], folder), flush=True)
    if not options.quick:
        write_results(available)


def _possible(module: ModuleType) -> bool:
    """Whether this machine has what the benchmark needs."""
    if not getattr(module, "NEEDS_CUDA", False):
        return True
    import torch

    return torch.cuda.is_available()


def write_results(available: dict[str, ModuleType]) -> None:
    """Rewrite RESULTS.md from the records that exist."""
    recorded = [name for name in available if (RECORDS / f"{name}.json").exists()]
    sections = [section(name, available[name], RECORDS) for name in recorded]
    (FOLDER / "RESULTS.md").write_text("\n".join([_INTRODUCTION, *sections]), encoding="utf-8")


def section(name: str, module: ModuleType, folder: Path) -> str:
    """Return one benchmark's part of RESULTS.md."""
    found = record.load(name, folder=folder)
    summary = (module.__doc__ or "").splitlines()[0]
    return f"## {name}\n\n{summary}\n\n{module.report(found['results'])}\n\n{_origin(found)}\n"


def _origin(found: dict[str, Any]) -> str:
    machine, versions = found["machine"], found["versions"]
    libraries = ", ".join(f"{library} {version}" for library, version in versions.items())
    commit = (found["commit"] or "no commit")[:12] + (
        " with uncommitted changes" if found["dirty"] else ""
    )
    gpu = f", {machine['gpu']}" if "gpu" in machine else ""
    return (
        f"Commit {commit}, {found['utc']}, {machine['processor']}, {machine['cores']} cores, "
        f"{machine['memory_gib']} GiB{gpu}, load before {found['parameters']['load before']}; "
        f"{libraries}; {found['seconds']:.0f} s."
    )


if __name__ == "__main__":
    main()
