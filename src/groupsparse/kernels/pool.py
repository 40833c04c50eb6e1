"""Share independent pieces of compiled work among the cores.

The loops release the interpreter lock, so plain threads do; unlike a parallel compiler they cost
nothing to build and survive being called from several threads at once.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue
from typing import Any, TypeVar

R = TypeVar("R")


class _Batch:
    """The tasks of one call, taken from both ends: by the caller in order, by others from the end.

    So each core meets nearly the same part of the data in every pass, which it has in its cache,
    and a core that is late, because somebody else uses it, is not waited for.
    """

    def __init__(self, tasks: Sequence[Callable[[], Any]]) -> None:
        self.tasks = tasks
        self.left = deque(range(len(tasks)))
        self.results: list[Any] = [None] * len(tasks)
        self.finished: SimpleQueue[BaseException | None] = SimpleQueue()

    def help(self) -> None:
        """What another thread does: take tasks until none is left."""
        for i in self._take(self.left.pop):
            try:
                self.results[i] = self.tasks[i]()
            except BaseException as error:  # raised where the results are waited for
                self.finished.put(error)
            else:
                self.finished.put(None)

    def work(self) -> list[Any]:
        """What the caller does: take tasks too, then wait for those that others have taken.

        After an error as well, so that nobody writes into the caller's memory behind its back.
        """
        own = 0
        try:
            for i in self._take(self.left.popleft):
                own += 1
                self.results[i] = self.tasks[i]()
        finally:
            own += sum(1 for _ in self._take(self.left.popleft))  # after an error: not to be done
            errors = [self.finished.get() for _ in range(len(self.tasks) - own)]
        for error in errors:
            if error is not None:
                raise error
        return self.results

    def _take(self, next_one: Callable[[], int]) -> Iterator[int]:
        while True:
            try:
                i = next_one()
            except IndexError:
                return
            yield i


# A plain queue wakes a sleeping thread in half the time that an executor and its futures need.
_calls: SimpleQueue[_Batch] = SimpleQueue()
_threads = 0
_lock = threading.Lock()


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
    if len(tasks) == 1:
        return [tasks[0]()]
    helpers = min(cores(), len(tasks)) - 1
    if helpers == 0:
        return [task() for task in tasks]
    if _threads < helpers:
        _start(helpers)
    batch = _Batch(tasks)
    for _ in range(helpers):
        _calls.put(batch)
    return batch.work()


def _start(count: int) -> None:
    global _threads
    with _lock:
        while _threads < count:
            name = f"groupsparse-{_threads}"
            threading.Thread(target=_serve, args=(_calls,), name=name, daemon=True).start()
            _threads += 1


def _serve(calls: SimpleQueue[_Batch]) -> None:
    while True:
        calls.get().help()


def _forget() -> None:
    global _calls, _threads, _lock
    _calls, _threads, _lock = SimpleQueue(), 0, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)  # a fork copies no threads but this one
