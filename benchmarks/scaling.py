"""Cost against size from ten thousand to a hundred million entries, and the workspace."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

import groupsparse as gs
from benchmarks.timing import Contender, side_by_side
from experiments.tables import table

SEED = 0
PICTURE = Path(__file__).with_name("scaling.png")
SIZES = tuple(10**power for power in range(4, 9))
LENGTH = 1000
TARGET = 0.9

# The peak of the resident set counts what compiled code allocates too, which tracemalloc cannot
# see. Writing 5 to clear_refs sets the peak back to the present size.
_WORKSPACE = """
import numpy, pathlib, groupsparse
def kib(name):
    status = pathlib.Path("/proc/self/status").read_text()
    return int(status.split(name + ":")[1].split()[0])
random = numpy.random.default_rng(0)
groupsparse.project_(random.standard_normal((2000, 1000), dtype="float32"), {target}, axis={axis})
array = random.standard_normal(({count}, 1000), dtype="float32")
pathlib.Path("/proc/self/clear_refs").write_text("5")
before = kib("VmRSS")
groupsparse.project_(array, {target}, axis={axis})
print((kib("VmHWM") - before) * 1024 / array.nbytes)
"""


def run(quick: bool) -> dict[str, Any]:
    """Time growing problems, draw them, and measure the workspace in fresh processes."""
    sizes = SIZES[:3] if quick else SIZES
    points = [{"entries": entries, "seconds": _seconds(entries)} for entries in sizes]
    if not quick:
        _draw(points)
    count = 4_000 if quick else 64_000
    workspace = [
        {"target": target, "axis": axis, "share": _workspace(count, target, axis)}
        for target in (0.5, 0.9, 0.99)
        for axis in (1, 0)
    ]
    return {"points": points, "workspace": workspace, "workspace_mib": count * 4000 / 2**20}


def _seconds(entries: int) -> dict[str, float]:
    random = np.random.default_rng(SEED)
    matrix = random.standard_normal((entries // LENGTH, LENGTH), dtype=np.float32)
    work = np.empty_like(matrix)
    return side_by_side(
        {
            "copyto": lambda: np.copyto(work, matrix),
            "project_": Contender(
                lambda: gs.project_(work, TARGET), lambda: np.copyto(work, matrix)
            ),
        }
    )


def _workspace(count: int, target: float, axis: int) -> float:
    program = _WORKSPACE.format(count=count, target=target, axis=axis)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return float(done.stdout)


def _draw(points: list[dict[str, Any]]) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.5, 3.6), layout="constrained")
    axes = figure.subplots()
    entries = [point["entries"] for point in points]
    for name, marker, color in (("project_", "o", "#0072B2"), ("copyto", "s", "#D55E00")):
        seconds = [point["seconds"][name] for point in points]
        axes.loglog(entries, seconds, marker=marker, color=color, label=name)
    last = points[-1]
    line = [last["seconds"]["project_"] * count / last["entries"] for count in entries]
    axes.loglog(entries, line, ":", color="0.5", label="proportional")
    axes.set(xlabel="entries", ylabel="seconds", title=f"float32, hoyer {TARGET}, cold start")
    axes.grid(which="major", alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(PICTURE, dpi=150)


def report(results: dict[str, Any]) -> str:
    """Return the table of times, the picture and the table of workspaces."""
    times = []
    for point in results["points"]:
        seconds = point["seconds"]
        per_entry = 1e9 * seconds["project_"] / point["entries"]
        ratio = seconds["project_"] / seconds["copyto"]
        milliseconds = 1e3 * seconds["project_"]
        entries = f"{point['entries']:,}"
        times.append([entries, f"{milliseconds:.3g}", f"{per_entry:.2f}", f"{ratio:.1f}"])
    workspace = [
        ["rows" if case["axis"] else "columns", case["target"], f"{100 * case['share']:.0f} %"]
        for case in results["workspace"]
    ]
    return "\n\n".join(
        [
            f"float32 rows of length {LENGTH}, hoyer {TARGET}, cold start:",
            table(["entries", "project_ ms", "ns an entry", "times copyto"], times),
            f"![seconds against entries]({PICTURE.name})",
            f"Workspace of `project_` on {results['workspace_mib']:.0f} MiB, as a share of the "
            "input (peak resident set of a fresh process, so compiled code's memory counts):",
            table(["vectors", "hoyer", "workspace"], workspace),
        ]
    )
