"""The Triton kernels compile for Hopper: the interpreter lets through what a compiler does not."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs the extra groupsparse[torch]")

ROOT = Path(__file__).parents[1]
# Two processes side by side, with about the same work each.
HALVES = [
    ["float32 network", "three types", "weighted network"],
    ["float32 columns", "bfloat16 matrices", "float64 rows", "weighted columns"],
]
REGISTERS_OF_A_MULTIPROCESSOR, SHARED_OF_A_MULTIPROCESSOR = 1 << 16, 227 << 10


def _ptxas() -> bool:
    found = importlib.util.find_spec("triton")
    if found is None or found.origin is None:
        return False
    tools = Path(found.origin).parent / "backends" / "nvidia" / "bin"
    return (tools / "ptxas").exists() and (tools / "cuobjdump").exists()


@pytest.mark.skipif(not _ptxas(), reason="needs Triton with its assembler for NVIDIA chips")
def test_every_kernel_compiles_and_its_programs_fit_on_the_chip_together():
    compiler = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.ahead_of_time"]
    started = [
        subprocess.Popen(
            [*command, *names], cwd=ROOT, env=compiler, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for names in HALVES
    ]  # fmt: skip
    ends = [process.communicate() for process in started]
    for process, (_, errors) in zip(started, ends, strict=True):
        assert process.returncode == 0, errors
    found = [json.loads(line) for lines, _ in ends for line in lines.splitlines()]
    assert len(found) == 2 * sum(map(len, HALVES))
    for one in found:
        # Programs that wait for each other must all be resident; see kernels/triton_launch.py.
        programs = one["programs"]
        registers = one["registers"] * one["threads"] * programs
        assert registers <= REGISTERS_OF_A_MULTIPROCESSOR, one
        assert (one["shared"] + 1024) * programs <= SHARED_OF_A_MULTIPROCESSOR, one
        assert one["together"] == one["kernel"].startswith("solve"), one
