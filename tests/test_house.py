"""The rules of the house: who may import whom, how files look, what documentation promises."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from types import ModuleType

import pytest
from numpydoc.validate import validate

import groupsparse

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "groupsparse"

# What each part may import besides itself. Everything that is not named here is the core.
MAY_IMPORT: dict[str, set[str]] = {
    "core": set(),
    "nmf": {"core"},
    "prune": {"core"},
    "plotting": {"core"},
    "cli": {"core", "nmf", "prune", "plotting"},
}
HEAVY = ("torch", "numba", "sklearn", "scipy", "dask", "matplotlib", "typer", "rich")
LONGEST_FILE = 400
# numpydoc's checks: a docstring, a summary, parameters named as they are, returns, an example.
DOCSTRING_ERRORS = {"GL08", "SS01", "PR01", "PR02", "RT01", "EX01"}


def part_of(module: str) -> str:
    """Return which part of the package a dotted module name belongs to."""
    names = module.split(".")
    if names[1:] == ["__main__"]:
        return "cli"  # python -m groupsparse
    return names[1] if len(names) > 1 and names[1] in MAY_IMPORT else "core"


def imports(source: str, module: str) -> Iterator[str]:
    """Yield the absolute names of all modules that `source` imports, at any depth."""
    package = module.rpartition(".")[0]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) + 1 - node.level]
            origin = ".".join([*base, node.module or ""]).strip(".") if node.level else node.module
            yield from (f"{origin}.{alias.name}" for alias in node.names)


def forbidden(source: str, module: str) -> list[str]:
    """Return the imports of `module` that the layering does not allow."""
    own = part_of(module)
    allowed = {own} | MAY_IMPORT[own]
    found = []
    for name in imports(source, module):
        top = name.split(".")[0]
        upwards = top == "groupsparse" and part_of(name) not in allowed
        if upwards or top in ("experiments", "benchmarks", "tests"):
            found.append(name)
    return found


def module_name(path: Path) -> str:
    """Return the dotted name of a source file; a package counts as its ``__init__`` module."""
    return ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts)


SOURCES = sorted(SOURCE.rglob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=module_name)
def test_layers_only_import_downwards(path: Path) -> None:
    assert forbidden(path.read_text(encoding="utf-8"), module_name(path)) == []


@pytest.mark.parametrize(
    ("module", "line", "wrong"),
    [
        ("groupsparse.nmf.updates", "from groupsparse.prune import plan", True),
        ("groupsparse.nmf.updates", "from ..prune import plan", True),
        ("groupsparse.nmf.__init__", "from ..plotting import grid", True),
        ("groupsparse.plotting", "from .prune import plan", True),
        ("groupsparse.dual", "def late():\n    import groupsparse.nmf", True),
        ("groupsparse.dual", "from . import cli", True),
        ("groupsparse.prune.report", "from experiments import record", True),
        ("groupsparse.nmf.updates", "from .. import projection", False),
        ("groupsparse.nmf.updates", "from .loss import error", False),
        ("groupsparse.cli.nmf", "from groupsparse.nmf import SparseNMF", False),
    ],
)
def test_the_layering_check_sees_violations(module: str, line: str, wrong: bool) -> None:
    assert bool(forbidden(line, module)) is wrong


def test_importing_the_package_loads_nothing_heavy() -> None:
    program = "import sys, groupsparse; print(*sorted({m.split('.')[0] for m in sys.modules}))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    assert "numpy" in loaded, "the check itself must see imports"
    assert loaded.isdisjoint(HEAVY)


@pytest.mark.parametrize(
    ("module", "missing", "extra"),
    [
        ("groupsparse.nmf", "sklearn", "sklearn"),
        ("groupsparse.prune", "torch", "torch"),
        ("groupsparse.prune", "safetensors", "torch"),
    ],
)
def test_a_missing_extra_is_named(module: str, missing: str, extra: str) -> None:
    program = f"import sys; sys.modules['{missing}'] = None; import {module}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 1
    assert f"pip install 'groupsparse[{extra}]'" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    "path",
    [
        path
        for folder in ("src", "tests", "experiments", "benchmarks", "docs")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if "auto_examples" not in path.parts
    ],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_files_can_be_read_in_one_sitting(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) < LONGEST_FILE


# Public, but in modules of their own, since each needs its framework.
CALLBACKS = [
    "groupsparse.prune.integrations.lightning.PruningCallback",
    "groupsparse.prune.integrations.transformers.PruningCallback",
]


def public_names() -> list[str]:
    """Return the dotted names in the ``__all__`` of the package and of its public subpackages."""
    names = names_of(groupsparse) + CALLBACKS
    for found in pkgutil.iter_modules(groupsparse.__path__, "groupsparse."):
        if part_of(found.name) in ("nmf", "prune", "plotting"):
            names += names_of(importlib.import_module(found.name))
    return names


def names_of(module: ModuleType) -> list[str]:
    """Return the names in a module's ``__all__``, and in those of the modules among them."""
    names = []
    for name in module.__all__:
        thing = getattr(module, name)
        names += names_of(thing) if inspect.ismodule(thing) else [f"{module.__name__}.{name}"]
    return names


def resolve(name: str) -> object:
    """Return the object behind a dotted public name."""
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


@pytest.mark.parametrize("name", public_names())
def test_public_names_are_documented(name: str) -> None:
    thing = resolve(name)
    wanted = DOCSTRING_ERRORS
    if inspect.isclass(thing) and issubclass(thing, Exception | Enum):
        wanted = {"GL08", "SS01"}  # nobody constructs these
    elif is_dataclass(thing):
        wanted = DOCSTRING_ERRORS - {"PR01"}  # its fields stand under Attributes
        described = inspect.getdoc(thing) or ""
        assert [field.name for field in fields(thing) if field.name not in described] == []
    assert [error for error in validate(name)["errors"] if error[0] in wanted] == []


def test_the_api_reference_lists_every_public_name() -> None:
    page = (ROOT / "docs" / "api" / "index.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^ *(groupsparse[\w.]*)$", page, flags=re.MULTILINE))
    assert listed == set(public_names())


def test_the_version_is_the_same_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.search(r"^## (\d\S*)", changelog, flags=re.MULTILINE)
    citation = re.search(
        r"^version: (\S+)", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    assert newest is not None
    assert citation is not None
    assert {project["version"], newest[1], citation[1], groupsparse.__version__} == {
        project["version"]
    }
