"""The commands, put together; each lives in a file of its own."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core
import typer.main

from .. import __version__
from . import Interrupted
from .bench import bench
from .inspect import inspect
from .nmf import nmf
from .project import project
from .prune import prune

DEMO = (
    "Do all of it on real data, and write a report.\n\n"
    "Projects, factorises and prunes in under two minutes; the report is one page with pictures "
    "that opens in any browser."
)


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code; errors come out as exceptions."""
    command = typer.main.get_command(create())
    code = command.main(list(arguments), prog_name="groupsparse", standalone_mode=False)
    sys.stdout.flush()
    return code if isinstance(code, int) else 0


class _Commands(typer.core.TyperGroup):
    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as interrupt:
            raise Interrupted from interrupt
        except EOFError as error:  # which typer takes for the end of what somebody types
            raise ValueError(f"a file ends too early: {error}") from error


def create() -> typer.Typer:
    """The application. Its help has frames on a terminal and is plain text elsewhere."""
    app = typer.Typer(
        name="groupsparse",
        cls=_Commands,
        help="Project vectors to a target average Hoyer measure; factor and prune with it.",
        rich_markup_mode="rich" if sys.stdout.isatty() else None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_common)
    for command in (project, inspect, prune, nmf, bench):
        app.command()(command)
    app.command(help=DEMO)(demo)
    return app


def _version(asked: bool) -> None:
    if asked:
        print(f"groupsparse {__version__}")
        raise typer.Exit


def _common(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", callback=_version, is_eager=True),
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show where an error came from.")
    ] = False,  # taken out of the arguments before they are parsed, so that it may stand anywhere
) -> None:
    pass


def demo(
    out: Annotated[Path, typer.Option(help="The folder for pictures and report.html.")] = Path(
        "groupsparse-demo"
    ),
    open_: Annotated[bool, typer.Option("--open", help="Open the report in a browser.")] = False,
) -> Any:
    from .demo import demo as show

    show(out=out, open_=open_)
