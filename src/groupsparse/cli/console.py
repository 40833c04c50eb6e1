"""What commands print: tables and bars on a terminal, plain text everywhere else."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

WIDE = 1 << 12  # columns: tables are never folded, a terminal too narrow wraps their lines itself
BAR = 12


def output() -> Console:
    """Where results go."""
    return Console(markup=False, highlight=False, emoji=False, width=WIDE)


def messages() -> Console:
    """Where progress and remarks go, so that results can be piped."""
    width = None if sys.stderr.isatty() else WIDE
    return Console(stderr=True, markup=False, highlight=False, emoji=False, width=width)


def show_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], total: Sequence[str] | None = None
) -> None:
    """A table without frames: numbers right, the first column and those in lower case left."""
    table = Table(box=None, pad_edge=False, header_style="bold", show_footer=total is not None)
    for i, column in enumerate(columns):
        foot = total[i] if total else ""
        left = i == 0 or column.islower()
        table.add_column(
            column,
            justify="left" if left else "right",
            no_wrap=True,
            footer=foot,
            footer_style="bold",
        )
    for row in rows:
        table.add_row(*row)
    console = output()
    with console.capture() as captured:
        console.print(table)
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))


def bar(fraction: float) -> str:
    """A bar for a fraction; of # signs where blocks might not be shown."""
    if not math.isfinite(fraction):
        return ""
    filled = round(BAR * min(max(fraction, 0.0), 1.0))
    blocks = sys.stdout.isatty() and "utf" in (sys.stdout.encoding or "").lower()
    return ("█" * filled + "░" * (BAR - filled)) if blocks else ("#" * filled).ljust(BAR, ".")


def number(value: float, form: str = ".4f") -> str:
    """A number, or a dash where there is none."""
    return format(value, form) if math.isfinite(value) else "-"


def shape_of(shape: Sequence[int]) -> str:
    """4x3x3 for (4, 3, 3)."""
    return "x".join(map(str, shape)) or "scalar"


class Advance(Protocol):
    """Called with the name of what comes next, and how much was done."""

    def __call__(self, name: str, done: int = 0) -> None: ...


@contextmanager
def progress(title: str, total: int) -> Iterator[Advance]:
    """A bar on stderr while it lasts; nothing where that is no terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    console = messages()
    live = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    with live:
        task = live.add_task(title, total=total)
        yield lambda name, done=0: live.update(task, description=f"{title} {name}", advance=done)
