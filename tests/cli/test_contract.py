"""What holds for every command: how it ends, what it prints, and that it is a real process."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import groupsparse
from tests.cli.examples import Ran, damage

ROOT = Path(__file__).resolve().parents[2]
COMMAND = (sys.executable, "-m", "groupsparse")
Run = Callable[..., Ran]


def process(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        capture_output=True,
        text=True,
        env=os.environ | environment,
        timeout=120,
    )


def test_the_script_is_the_module() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    module, _, name = project["scripts"]["groupsparse"].partition(":")
    assert callable(getattr(import_module(module), name))
    done = process("--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"groupsparse {groupsparse.__version__}\n"


def test_output_is_plain_text_when_piped(checkpoint: Path) -> None:
    # FORCE_COLOR and a narrow terminal are what most often spoils a pipe.
    done = process("inspect", checkpoint, COLUMNS="20", TERM="xterm-256color")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.isascii()
    assert "\x1b" not in done.stdout
    assert len(done.stdout.splitlines()) == 12  # header, ten tensors, total: nothing is wrapped
    done = process("project", "--help", TERM="xterm-256color")
    assert done.stdout.isascii()
    assert "--hoyer" in done.stdout


def test_a_reader_that_leaves_is_no_error(checkpoint: Path) -> None:
    command = subprocess.Popen(
        [*COMMAND, "inspect", str(checkpoint)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert command.stdout is not None
    assert command.stderr is not None
    command.stdout.close()
    assert command.stderr.read() == b""
    command.stderr.close()
    command.wait(60)


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_a_missing_extra_is_named(missing: str) -> None:
    program = f"import sys; sys.modules['{missing}'] = None; from groupsparse.cli import main; " + (
        "sys.exit(main(['inspect', 'x.npy']))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == (
        f"groupsparse: {missing} is not installed; this part needs it: "
        "pip install 'groupsparse[cli]'\n"
    )


@pytest.mark.parametrize("module", ["torch", "sklearn"])
def test_a_missing_library_is_named(checkpoint: Path, module: str) -> None:
    program = f"import sys; sys.modules['{module}'] = None; from groupsparse.cli import main; "
    arguments = ["prune", str(checkpoint), str(checkpoint), "--hoyer", ".8", "--sparsity", ".9"]
    if module == "sklearn":
        np.save(checkpoint.with_name("x.npy"), np.ones((3, 4)))
        arguments = ["nmf", str(checkpoint.with_name("x.npy")), "--rank", "2"]
    done = subprocess.run(
        [sys.executable, "-c", f"{program}sys.exit(main({arguments}))"],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert f"pip install 'groupsparse[{module}]'" in done.stderr
    assert done.stderr.count("\n") == 1


def test_checkpoints_are_projected_without_torch(checkpoint: Path) -> None:
    program = (
        "import sys; sys.modules['torch'] = sys.modules['safetensors'] = None; "
        "from groupsparse.cli import main; "
        f"sys.exit(main(['project', {str(checkpoint)!r}, {str(checkpoint)!r}, '--hoyer', '0.8']))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_shells_complete(tmp_path: Path) -> None:
    done = process(
        _GROUPSPARSE_COMPLETE="complete_bash", COMP_WORDS="groupsparse pr", COMP_CWORD="1"
    )
    assert done.stdout.split() == ["project", "prune"]
    done = process(_GROUPSPARSE_COMPLETE="complete_bash", COMP_CWORD="3",
                   COMP_WORDS="groupsparse nmf --solver n")  # fmt: skip
    assert done.stdout.split() == ["nenmf"]


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["frobnicate"], 2, "No such command 'frobnicate'"),
        (["project", "x.npy"], 2, "OUT"),
        (["project", "x.npy", "y.npy"], 2, "--hoyer"),
        (["project", "x.npy", "y.npy", "--hoyer", "1.5"], 2, "--hoyer"),
        (["project", "x.npy", "y.npy", "--hoyer", "0.5", "--axis", "first"], 2, "'first'"),
        (["project", "x.npy", "y.npy", "--hoyer", "0.5", "--axis", "2"], 1, "--axis 2"),
        (
            ["project", "x.npy", "y.npz", "--hoyer", "0.5"],
            2,
            "groupsparse: OUT is y.npz; expected a name",
        ),
        (["project", "none.npy", "y.npy", "--hoyer", "0.5"], 1, "there is no file none.npy"),
        (["project", "integers.npy", "y.npy", "--hoyer", "0.5"], 1, "integers is I64"),
        (["project", "x.npy", "y.npy", "--hoyer", "0.5", "-t", "y"], 1, "selects none of the 1"),
        (["project", "x.npy", "y.npy", "--hoyer", "0.5", "-t", "re:("], 1, "regular expression"),
        (["project", "two.npz", "y.npz", "--hoyer", "0.5", "-t", "a.w", "-t", "c"], 1, "c selects"),
        (["project", "two.npz", "y.npz", "--hoyer", "0.5", "-i", "a.v"], 1, "did you mean a.w?"),
        (
            ["project", "two.npz", "y.npz", "--hoyer", "0.5", "-i", "re:.*"],
            1,
            "less re:.*, selects",
        ),
        (["project", "x.npy", "no/y.npy", "--hoyer", "0.5"], 2, "there is no folder no to write"),
        (["inspect", "notes.txt"], 1, "expected .npy, .npz, .safetensors"),
        (["inspect", "."], 1, "a folder without a checkpoint"),
        (["inspect", "damaged.npz"], 1, "damaged.npz is damaged: Bad CRC-32"),
        (["project", "damaged.npz", "y.npz", "--hoyer", "0.5"], 1, "damaged.npz is damaged"),
        (["inspect", "bad.npy"], 1, "bad.npy"),
        (["inspect", "bad.npz"], 1, "no .npz file"),
        (["inspect", "bad.safetensors"], 1, "no safetensors file"),
        (["inspect", "short.safetensors"], 1, "cut off"),
        (["inspect", "bad.safetensors.index.json"], 1, "no checkpoint index"),
        (["inspect", "lost.safetensors.index.json"], 1, "names the shard a.safetensors"),
        (["inspect", "evil.safetensors.index.json"], 1, "outside its own folder"),
        (["prune", "x.npy", "y.npy", "--hoyer", "0.5", "--sparsity", "0.5"], 2, "checkpoint"),
    ],
)
def test_mistakes_are_one_sentence(
    run: Run,
    checkpoint: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    code: int,
    sentence: str,
) -> None:
    whole = checkpoint.read_bytes()
    monkeypatch.chdir(checkpoint.parent)
    checkpoint.unlink()
    np.save("x.npy", np.ones((3, 4)))
    np.save("integers.npy", np.arange(5))
    Path("short.safetensors").write_bytes(whole[:-100])
    for name in ("notes.txt", "bad.npy", "bad.npz", "bad.safetensors"):
        Path(name).write_text("nothing of the kind")
    np.savez("whole.npz", x=np.ones((30, 40)))
    np.savez("two.npz", **{"a.w": np.ones((3, 4)), "deep.z": np.ones((3, 4))})
    damage("whole.npz", "damaged.npz")
    Path("bad.safetensors.index.json").write_text("{}")
    Path("lost.safetensors.index.json").write_text('{"weight_map": {"w": "a.safetensors"}}')
    Path("evil.safetensors.index.json").write_text('{"weight_map": {"w": "../a.safetensors"}}')
    if arguments == ["inspect", "."]:
        Path("empty").mkdir()
        monkeypatch.chdir("empty")
    before = sorted(Path().iterdir())
    ran = run(*arguments)
    assert (ran.code, ran.out) == (code, "")
    assert sentence in ran.err
    assert ran.err.startswith("groupsparse: ")
    assert ran.err.count("\n") == 1
    assert "Traceback" not in ran.err
    assert sorted(Path().iterdir()) == before


def test_what_may_not_be_written_is_named_before_the_work(
    run: Run, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed = os.access
    monkeypatch.setattr(os, "access", lambda path, how: how != os.W_OK and allowed(path, how))
    monkeypatch.delattr("groupsparse.cli.project.project_each_")  # not reached
    for out in (checkpoint, checkpoint.with_name("other.safetensors")):
        ran = run("project", checkpoint, out, "--hoyer", 0.8)
        folder = checkpoint.parent
        assert ran.err == f"groupsparse: {folder}: this folder may not be written into\n"
        assert (ran.code, ran.out) == (1, "")


def test_errors_name_the_file_that_was_meant(
    run: Run, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Path.open

    def refuse(path: Path, mode: str = "r", **options: Any) -> Any:
        if "w" in mode:
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, mode, **options)

    monkeypatch.setattr(Path, "open", refuse)
    ran = run("project", checkpoint, checkpoint, "--hoyer", 0.8)
    assert ran.err == f"groupsparse: {checkpoint}: Permission denied\n"


def test_a_warning_is_one_sentence(checkpoint: Path) -> None:
    program = (
        "import warnings, sys; from groupsparse.cli import main, inspect\n"
        "inspect.measured = lambda *_: warnings.warn('rather odd')\n"
        f"sys.exit(main(['inspect', {str(checkpoint)!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stderr.splitlines()[0] == "groupsparse: warning: rather odd"


def test_debug_shows_where(run: Run) -> None:
    for place in (("--debug", "inspect", "none.npy"), ("inspect", "none.npy", "--debug")):
        ran = run(*place)
        assert ran.code == 1
        assert "Traceback" in ran.err
        assert ran.err.splitlines()[-1] == "groupsparse: there is no file none.npy"


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (KeyboardInterrupt(), 130, "interrupted; every file is as it was, or complete"),
        (MemoryError("8 GiB"), 1, "not enough memory: 8 GiB"),
        (RuntimeError("can't allocate memory"), 1, "not enough memory: can't allocate memory"),
        (OSError(28, "No space left on device", "out"), 1, "out: No space left on device"),
        (EOFError("no data left"), 1, "a file ends too early: no data left"),
        (ZeroDivisionError("by zero"), 1, "unexpected ZeroDivisionError: by zero (--debug shows"),
    ],
)
def test_whatever_happens_in_the_middle_is_one_sentence(
    run: Run,
    checkpoint: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    code: int,
    sentence: str,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    before = checkpoint.read_bytes()
    monkeypatch.setattr("groupsparse.cli.project.project_each_", fail)
    ran = run("project", checkpoint, checkpoint, "--hoyer", 0.8)
    assert (ran.code, ran.out) == (code, "")
    assert ran.err.startswith(f"groupsparse: {sentence}")
    assert ran.err.count("\n") == 1
    assert checkpoint.read_bytes() == before
    assert list(checkpoint.parent.iterdir()) == [checkpoint]


def test_a_command_that_is_ended_tidies_up(run: Run, checkpoint: Path) -> None:
    program = (
        "import os, signal, sys; from groupsparse.cli import main, project\n"
        "project.project_each_ = lambda *_, **__: os.kill(os.getpid(), signal.SIGTERM)\n"
        f"sys.exit(main(['project', {str(checkpoint)!r}, {str(checkpoint)!r}, '--hoyer', '0.8']))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 130, done.stderr
    assert list(checkpoint.parent.iterdir()) == [checkpoint]
    assert run("inspect", checkpoint).code == 0
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_bench_measures_this_machine(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from groupsparse.cli import bench

    monkeypatch.setattr(bench, "CASES", ((16, 40, "float32"),))
    monkeypatch.setattr(bench, "SECONDS", 0.0)
    ran = run("bench")
    assert ran.code == 0, ran.err
    assert ran.out.splitlines()[1].startswith("16 x 40")


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_ctrl_c_keeps_the_best_factors(tmp_path: Path, ending: signal.Signals) -> None:
    np.save(tmp_path / "x.npy", np.random.default_rng(0).random((300, 200)))
    arguments = ("nmf", "x.npy", "--rank", "20", "--hoyer-h", "0.7", "--tol", "0")
    terminal, end = pty.openpty()  # a terminal for the progress bar, to see when it has begun
    command = subprocess.Popen(
        [*COMMAND, *arguments, "--max-iter", "10000000"],
        stdout=subprocess.PIPE,
        stderr=end,
        cwd=tmp_path,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "120"},
    )
    os.close(end)
    shown = b""
    while b"left" not in shown:
        shown += os.read(terminal, 4096)
    command.send_signal(ending)
    assert command.stdout is not None
    while True:  # the bar is still being drawn, and the terminal must not fill up
        try:
            if not os.read(terminal, 4096):
                break
        except OSError:  # the other end is closed: this is how Linux says so
            break
    said = command.stdout.read().decode()
    command.stdout.close()
    os.close(terminal)
    assert command.wait(60) == 130
    assert "error" in shown.decode()
    assert "interrupted, the best factors are kept" in said
    with np.load(tmp_path / "parts.npz", allow_pickle=False) as found:
        # In its first iterations a fit may be sparser than asked for, and it may end there.
        assert groupsparse.average_hoyer(found["H"]) >= 0.7 - 1e-9
