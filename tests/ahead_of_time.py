"""Compile the projection's Triton kernels for Hopper, which needs no GPU; run by a test.

``python -m tests.ahead_of_time NAME ...`` prints a line of JSON per kernel: what it needs of a
multiprocessor. It must run without ``TRITON_INTERPRET``.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from groupsparse.device import tables
from groupsparse.kernels import triton_gpu, triton_launch, triton_weighted_gpu

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
HOPPER = GPUTarget("cuda", 90, 32)
FLOAT32, BFLOAT16, FLOAT16, FLOAT64 = (1 << i for i in range(4))


def kinds(*members: int) -> int:
    return sum(1 << kind for kind in members)


NETWORK = kinds(tables.ROWS_16, tables.ROWS_64, tables.ROWS_LONG, tables.SPLIT)
LOOSE = kinds(tables.ROWS_LOOSE, tables.SPLIT)
COLUMNS = kinds(tables.COLUMNS_16, tables.COLUMNS)
CASES: dict[str, dict[str, Any]] = {
    "float32 network": {"KINDS": NETWORK, "ALIGNED": True, "DTYPES": FLOAT32, "IN_PLACE": True},
    "float32 columns": {"KINDS": COLUMNS, "ALIGNED": True, "DTYPES": FLOAT32, "IN_PLACE": False},
    "bfloat16 matrices": {
        "KINDS": kinds(tables.ROWS_LONG, tables.ROWS_LONGER), "ALIGNED": True,
        "DTYPES": BFLOAT16, "IN_PLACE": True,
    },
    "three types": {
        "KINDS": LOOSE, "ALIGNED": False, "DTYPES": FLOAT32 | BFLOAT16 | FLOAT16, "IN_PLACE": False,
    },
    "float64 rows": {
        "KINDS": kinds(tables.ROWS_128), "ALIGNED": True, "DTYPES": FLOAT64, "IN_PLACE": True,
    },
    "weighted network": {
        "KINDS": kinds(tables.ROWS_LONG), "DTYPES": FLOAT32 | FLOAT64, "IN_PLACE": True,
        "WIDE": True,
    },
    "weighted columns": {
        "KINDS": kinds(tables.COLUMNS_16), "DTYPES": FLOAT32, "IN_PLACE": False, "WIDE": True,
    },
}  # fmt: skip
PLAIN = (triton_gpu.solve_groups, triton_gpu.write_groups)
WEIGHTED = (triton_weighted_gpu.solve_weighted, triton_weighted_gpu.write_weighted)


def signature(kernel: Any, wide: bool) -> dict[str, str]:
    """The types of a kernel's arguments, as the plan has them."""
    integers = ("tensors", "weights", "segments", "programs", "groups", "splits", "counters")
    types = dict.fromkeys(kernel.arg_names, "*fp64") | dict.fromkeys(integers, "*i64")
    types |= dict.fromkeys(("tops", "factors"), "*fp64" if wide else "*fp32")
    types |= dict.fromkeys(("n_groups", "n_splits"), "i32")
    types |= {p.name: "constexpr" for p in kernel.params if p.is_constexpr}
    return {name: types[name] for name in kernel.arg_names}


def compiled(kernel: Any, constants: dict[str, Any]) -> dict[str, int]:
    """Compile one kernel as it is launched; what it needs of a multiprocessor."""
    wide = constants["WIDE"]
    types = signature(kernel, wide)
    places = {name: (i,) for i, name in enumerate(kernel.arg_names)}
    aligned = {places[name]: [["tt.divisibility", 16]] for name in types if types[name][0] == "*"}
    given = {places[name]: value for name, value in constants.items() if name in places}
    options: dict[str, Any] = triton_launch.options(wide)
    if kernel in (PLAIN[0], WEIGHTED[0]):
        options |= triton_launch.TOGETHER
    made = triton.compile(ASTSource(kernel, types, given, aligned), HOPPER, options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        command = [str(TOOLS / "cuobjdump"), "-res-usage", file.name]
        usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = {name: int(re.findall(rf"{name}:(\d+)", usage)[0]) for name in ("REG", "STACK")}
    return {
        "registers": found["REG"],
        "stack": found["STACK"],
        "shared": made.metadata.shared,
        "threads": 32 * made.metadata.num_warps,
        "together": int(made.metadata.launch_cooperative_grid),
    }


def main(names: list[str]) -> None:
    for name in names or CASES:
        constants = {"WIDE": bool(CASES[name]["DTYPES"] & FLOAT64), **CASES[name]}
        for kernel in WEIGHTED if name.startswith("weighted") else PLAIN:
            constants["BLOCK"] = triton_launch.BLOCK
            print(json.dumps({
                "case": name, "kernel": kernel.__name__,
                "programs": triton_launch.PER_UNIT[constants["WIDE"]],
                **compiled(kernel, constants),
            }), flush=True)  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1:])
