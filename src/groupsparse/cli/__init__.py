"""The command ``groupsparse``: where it starts, and how it ends when something is wrong.

An error is one sentence on stderr and an exit code: 2 for a command that cannot be understood, 1
for data that cannot be used. ``--debug`` shows where it came from.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

EXIT_DATA, EXIT_USAGE, EXIT_INTERRUPTED = 1, 2, 130


class Interrupted(Exception):
    """Ctrl-C inside a command, in a form that typer does not answer itself."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Parameters
    ----------
    arguments : list of str, optional
        What follows the name of the command; that of this process if not given.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    given = [argument for argument in given if argument != "--debug"]
    try:
        from .app import run

        with warnings.catch_warnings(), _ended_gently():
            warnings.showwarning = _say
            return run(given or ["--help"])
    except (KeyboardInterrupt, Interrupted):
        return _complain("interrupted; every file is as it was, or complete", EXIT_INTERRUPTED)
    except BrokenPipeError:
        # Whoever read the output has left; what is still buffered has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_DATA
    except Exception as error:
        if debug:
            traceback.print_exc()
        return _complain(*_described(error))


@contextmanager
def _ended_gently() -> Iterator[None]:
    """Let SIGTERM, as clusters send it, do what Ctrl-C does: keep the best so far, and tidy up."""
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield  # somebody else has plans for it
        return
    try:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    except ValueError:  # not in the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _described(error: Exception) -> tuple[str, int]:
    from ..errors import MissingExtra, missing_extra

    if hasattr(error, "format_message"):  # how click and typer say that a command is wrong
        return error.format_message().removeprefix("Invalid value: "), EXIT_USAGE
    if isinstance(error, ModuleNotFoundError) and error.name:
        package = error.name.partition(".")[0]
        if package in ("typer", "rich"):
            return str(missing_extra(package, "cli")), EXIT_DATA
    if isinstance(error, OSError) and error.strerror and not isinstance(error, MissingExtra):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror}", EXIT_DATA
    if isinstance(error, MemoryError) or _out_of_memory(error):
        return f"not enough memory: {error}", EXIT_DATA
    if isinstance(error, ValueError | TypeError | ImportError) and str(error):
        return str(error), EXIT_DATA
    name = type(error).__name__
    return f"unexpected {name}: {error} (--debug shows where; please report it)", EXIT_DATA


def _out_of_memory(error: Exception) -> bool:
    """Whether it is what torch raises in the place of a MemoryError."""
    return isinstance(error, RuntimeError) and "allocate memory" in str(error)


def _say(message: Warning | str, *_: object, **__: object) -> None:
    """A warning as a sentence, without the line of code that it comes from."""
    print(f"groupsparse: warning: {' '.join(str(message).split())}", file=sys.stderr)


def _complain(message: str, code: int) -> int:
    sentence = " ".join(message.split())
    print(f"groupsparse: {sentence}", file=sys.stderr)
    return code


__all__ = ["main"]
