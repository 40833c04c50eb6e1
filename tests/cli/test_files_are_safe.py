"""Checkpoints larger than the memory, and commands that are killed in the middle."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

from tests.cli.examples import Ran, tensors, write_shards

# What the process may use beyond what it has when it starts, and the file that it works on.
ENTRIES, TENSORS, ROOM = 1 << 20, 40, 32 << 20

LIMITED = """
import json, resource, sys
import numpy as np
from groupsparse.cli import main
command, path, out, *options = sys.argv[1:]
x = np.random.default_rng(0).normal(size=(4, 1 << 18)).astype("f4")
header = json.dumps({"x": {"dtype": "F32", "shape": x.shape, "data_offsets": [0, x.nbytes]}})
with open("warm.safetensors", "wb") as file:
    file.write(len(header).to_bytes(8, "little") + header.encode() + x.tobytes())
# Compiles, and loads every library.
assert main([command, "warm.safetensors", "warm.safetensors", *options]) == 0
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + ROOM, used + ROOM))
try:
    np.empty(2 * ROOM, "u1")
    sys.exit("the limit does not hold")
except MemoryError:
    pass
sys.exit(main([command, path, out, *options]) or main(["inspect", out]))
"""


def write_large(folder: Path, dtype: str, files: int) -> None:
    """Equal tensors in one safetensors file, or in several with an index."""
    values = np.random.default_rng(0).normal(size=ENTRIES).astype(np.float32)
    raw = (values if dtype == "F32" else (values.view(np.uint32) >> 16).astype("<u2")).tobytes()
    each, where = TENSORS // files, {}
    for number in range(files):
        header = {
            f"layer.{number}.{i}": {
                "dtype": dtype,
                "shape": [256, ENTRIES // 256],
                "data_offsets": [i * len(raw), (i + 1) * len(raw)],
            }
            for i in range(each)
        }
        where |= dict.fromkeys(header, f"large-{number}.safetensors")
        text = json.dumps(header).encode()
        with (folder / f"large-{number}.safetensors").open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            file.writelines([raw] * each)
    if files > 1:
        index = folder / "large.safetensors.index.json"
        index.write_text(json.dumps({"weight_map": where}), encoding="utf-8")


@pytest.mark.skipif(sys.platform != "linux", reason="limits the memory as only Linux does")
@pytest.mark.parametrize(
    ("command", "options", "dtype", "files"),
    [
        ("project", [], "F32", 1),
        ("project", [], "BF16", 4),
        ("project", ["--shared"], "F32", 4),
        ("project", ["--shared"], "BF16", 1),
        ("prune", ["--sparsity", "0.9"], "F32", 4),
        ("prune", ["--sparsity", "0.9", "--budget", "layer", "--scope", "layer"], "BF16", 1),
        ("prune", ["--sparsity", "0.9", "--values", "original"], "F32", 1),
    ],
)
def test_memory_stays_at_the_largest_tensor(
    tmp_path: Path, command: str, options: list[str], dtype: str, files: int
) -> None:
    folder = tmp_path / "large"
    folder.mkdir()
    write_large(folder, dtype, files)
    size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    assert size > (4.5 if dtype == "F32" else 2.2) * ROOM
    path = folder if files > 1 else folder / "large-0.safetensors"
    program = LIMITED.replace("ROOM", str(ROOM))
    done = subprocess.run(
        [sys.executable, "-c", program, command, path, path, "--hoyer", "0.6", *options],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"GROUPSPARSE_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"},
    )
    assert done.returncode == 0, done.stderr
    total = done.stdout.splitlines()[-1].split()
    assert total[0] == "total"
    if command == "project":
        assert total[-2] == "0.6000"
    else:
        assert total[-3] == "90.00%"


KILLED = """
import os, signal, sys
from pathlib import Path
from groupsparse.cli import main
moment, at, *arguments = sys.argv[1:]
left = int(at)

def counted(function, after):
    def call(*given, **options):
        global left
        left -= 1
        if after:
            function(*given, **options)
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        if not after:
            return function(*given, **options)
    return call

if moment == "tensor":
    from groupsparse.cli import project
    project.project_each_ = counted(project.project_each_, False)
elif moment == "replace":
    Path.replace = counted(Path.replace, False)
elif moment == "replaced":
    Path.replace = counted(Path.replace, True)
elif moment == "rename":
    Path.rename = counted(Path.rename, False)
elif moment == "remove":
    Path.unlink = counted(Path.unlink, False)
sys.exit(main(arguments))
"""


def kill(moment: str, at: int, *arguments: object) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED, moment, str(at), *map(str, arguments)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == -signal.SIGKILL, (done.returncode, done.stderr)


def is_new(found: dict[str, object]) -> bool:
    """Whether all of a checkpoint is projected; an error where only a part of it is."""
    zeros = {
        name: bool((found[name] == 0).any())  # type: ignore[attr-defined]
        for name in ("embed.weight", "layer.0.weight", "layer.1.weight", "head.weight")
    }
    assert len(set(zeros.values())) == 1, zeros
    assert set(found) == set(tensors())
    return zeros["embed.weight"]


@pytest.mark.parametrize(
    ("moment", "at", "new"),
    [("tensor", 3, False), ("replace", 1, False), ("replaced", 1, True)],
)
def test_a_killed_command_leaves_the_old_file_or_the_new_one(
    checkpoint: Path, moment: str, at: int, new: bool
) -> None:
    before = checkpoint.read_bytes()
    kill(moment, at, "project", checkpoint, checkpoint, "--hoyer", 0.8)
    assert is_new(load_file(checkpoint)) is new
    assert new or checkpoint.read_bytes() == before


@pytest.mark.parametrize(
    ("moment", "at", "new"),
    [
        ("tensor", 3, False),  # inside the second shard
        ("replaced", 1, False),  # one new shard is there
        ("replace", 3, False),  # all are, the index is still the old one
        ("replaced", 3, True),
        ("remove", 5, True),  # between the removal of the old shards
    ],
)
def test_a_killed_command_leaves_one_whole_checkpoint(
    run: Callable[..., Ran], shards: Path, moment: str, at: int, new: bool
) -> None:
    kill(moment, at, "project", shards, shards, "--hoyer", 0.8)
    assert is_new(read_shards(shards)) is new
    # And what it left behind is in nobody's way.
    assert run("project", shards, shards, "--hoyer", 0.9).code == 0
    assert is_new(read_shards(shards))


def test_a_killed_command_leaves_no_half_folder(shards: Path, tmp_path: Path) -> None:
    out = tmp_path / "new"
    for moment, at in (("tensor", 3), ("rename", 1)):
        kill(moment, at, "project", shards, out, "--hoyer", 0.8)
        assert not out.exists()
    write_shards(shards)
    assert not is_new(read_shards(shards))


def read_shards(folder: Path) -> dict[str, object]:
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    files = {file: load_file(folder / file) for file in set(index["weight_map"].values())}
    return {name: files[file][name] for name, file in index["weight_map"].items()}
