"""Share independent pieces of compiled work among the cores.

The loops release the interpreter lock, so plain threads do; unlike a parallel compiler they cost
nothing to build and survive being called from several threads at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

R = TypeVar("R")
_executor: ThreadPoolExecutor | None = None


def cores() -> int:
    """How many threads to use: the cores this process may run on, or GROUPSPARSE_NUM_THREADS."""
    asked = os.environ.get("GROUPSPARSE_NUM_THREADS")
    if asked:
        return max(1, int(asked))
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def run(tasks: Sequence[Callable[[], R]]) -> list[R]:
    """The results of all tasks, in order. Which thread runs which does not change them."""
    global _executor
    if len(tasks) == 1 or cores() == 1:
        return [task() for task in tasks]
    if _executor is None:
        _executor = ThreadPoolExecutor(cores(), thread_name_prefix="groupsparse")
    half = -(-len(tasks) // cores())
    # The calling thread takes the first share itself: one thread less to wake up.
    others = [
        _executor.submit(_in_turn, tasks[i : i + half]) for i in range(half, len(tasks), half)
    ]
    results = _in_turn(tasks[:half])
    for other in others:
        results += other.result()
    return results


def _in_turn(tasks: Sequence[Callable[[], R]]) -> list[R]:
    return [task() for task in tasks]


def _forget() -> None:
    global _executor
    _executor = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)  # a fork copies the executor but not its threads
