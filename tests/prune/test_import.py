"""Without its extra the subpackage says which one to install; with it, it loads no more."""

from __future__ import annotations

import subprocess
import sys

import pytest


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("missing", ["torch", "safetensors"])
def test_a_missing_extra_is_named(missing: str) -> None:
    done = run(f"import sys; sys.modules[{missing!r}] = None; import groupsparse.prune")
    assert done.returncode != 0
    assert "MissingExtra" in done.stderr
    assert "groupsparse[torch]" in done.stderr


@pytest.mark.parametrize("framework", ["lightning", "transformers"])
def test_a_missing_framework_is_named(framework: str) -> None:
    done = run(
        f"import sys; sys.modules[{framework!r}] = None\n"
        f"import groupsparse.prune.integrations.{framework}"
    )
    assert done.returncode != 0
    assert f"groupsparse[{framework}]" in done.stderr


def test_frameworks_are_loaded_only_when_asked_for() -> None:
    program = (
        "import sys, groupsparse.prune\n"
        "heavy = {'lightning', 'transformers', 'sklearn', 'dask', 'matplotlib'}\n"
        "print(sorted(heavy & {name.split('.')[0] for name in sys.modules}))"
    )
    assert run(program).stdout.strip() == "[]"
