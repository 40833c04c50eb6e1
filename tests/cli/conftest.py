"""What the tests of the command line share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import save_file

from groupsparse.cli import main
from tests.cli.examples import Ran, tensors, write_shards


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Run a command inside this process."""

    def command(*arguments: object) -> Ran:
        capfd.readouterr()
        code = main([str(argument) for argument in arguments])
        return Ran(code, *capfd.readouterr())

    return command


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """One safetensors file."""
    path = tmp_path / "model.safetensors"
    save_file(tensors(), path, {"format": "pt", "who": "me"})
    return path


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """The folder of a sharded checkpoint."""
    folder = tmp_path / "sharded"
    folder.mkdir()
    write_shards(folder)
    return folder
