"""Many runs side by side on one GPU: a thread, a stream and a network for each.

A thread only replays graphs and waits for its own stream, so seven of them keep a GPU busy that
one network leaves half idle. Whatever the library does between steps happens on one stream of high
priority, one thread at a time. On a CPU the same threads run the same steps without graphs.
"""

from __future__ import annotations

import os
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")  # a queue of its own for every stream

import torch

from experiments.jobs import Job, Journal, Schedule, model_epochs, rates
from experiments.methods import SCORES, Attached, attach, cut
from experiments.slot import Data, Settings, Slot
from groupsparse import prune

LAST = 3  # accuracy is the mean of so many last epochs
MOST_FAILURES = 8  # in a row, after which the GPU is taken to be broken


class OutOfTime(Exception):
    """The budget is used up; what a run had done so far is kept."""


class Fleet:
    """Slots for each network, and the threads that work through a schedule.

    Parameters
    ----------
    data : Data
        The set, on its device.
    settings : Settings
        Of every network's training.
    slots : mapping of network names to numbers
        How many runs of each go side by side.
    deadline : float, optional
        In the time of ``time.monotonic``.
    """

    def __init__(
        self,
        data: Data,
        settings: Settings,
        slots: Mapping[str, int],
        deadline: float | None = None,
    ) -> None:
        self.data, self.settings, self.deadline = data, settings, deadline
        self.on_gpu = data.device.type == "cuda"
        self.guard = threading.Condition()
        self.library = threading.Lock()
        self.urgent = torch.cuda.Stream(priority=-1) if self.on_gpu else None
        self.epoch_seconds: dict[str, float] = {}
        self.epochs_done = 0
        self.failures = 0  # in a row
        if self.on_gpu:
            torch.backends.cudnn.benchmark_limit = 5  # the likely ones; building each takes a while
        self.slots = [
            # The step with DeepHoyer's regulariser is only needed by one run in three.
            Slot(network, data, settings, regularised=number % 3 == 0)
            for network, count in slots.items()
            for number in range(count)
        ]
        self.fresh: dict[tuple[str, int], dict[str, torch.Tensor]] = {}
        for slot in self.slots:
            slot.prepare()
            for name, trouble in slot.trouble.items():
                print(f"{slot.network}: no graph for {name!r}: {trouble}", flush=True)
        # From here on only scores at initialisation run a convolution outside of a graph.
        torch.backends.cudnn.benchmark = False

    # Time.

    def left(self) -> float:
        """Seconds until the deadline; none where nothing works any more."""
        if self.failures >= MOST_FAILURES:
            return 0.0
        return float("inf") if self.deadline is None else self.deadline - time.monotonic()

    def fits(self, job: Job, after: Iterable[Job] = ()) -> bool:
        """Whether a job, and the shortest that waits for it, would end in time."""
        if self.deadline is None:
            return True
        epochs = job.epochs + min((child.epochs for child in after), default=0)
        return self.left() > 1.05 * epochs * self.epoch_seconds.get(job.network, 0.0) + 0.5

    # Working through jobs.

    def run(
        self,
        jobs: Iterable[Job],
        journal: Journal,
        later: Callable[[Schedule], list[Job] | None] | None = None,
        every: float = 20.0,
    ) -> Schedule:
        """Work through the jobs until all are done or the time is over.

        ``later`` is asked now and then for the jobs that depend on results; None: not yet.
        """
        schedule = Schedule(jobs, journal)
        schedule.growing = later is not None
        began = time.monotonic()
        with warnings.catch_warnings():
            # A network that a cut disconnects is a result like any other, seen in its zeros.
            warnings.simplefilter("ignore", prune.LayerCollapse)
            threads = [
                threading.Thread(target=self._work, args=(slot, schedule), daemon=True)
                for slot in self.slots
            ]
            for thread in threads:
                thread.start()
            spoken = began
            for thread in threads:
                while thread.is_alive():
                    thread.join(0.2)
                    if later is not None and schedule.growing:
                        self._grow(schedule, later)
                    if time.monotonic() - spoken > every:
                        spoken = time.monotonic()
                        print(self.progress(schedule, began), flush=True)
        print(self.progress(schedule, began), flush=True)
        return schedule

    def _grow(self, schedule: Schedule, later: Callable[[Schedule], list[Job] | None]) -> None:
        with self.guard:
            try:
                more = later(schedule)
                if more is not None:
                    schedule.add(more)
                    schedule.growing = False
            except Exception:
                schedule.growing = False  # or the threads would wait for ever
                raise
            finally:
                self.guard.notify_all()

    def progress(self, schedule: Schedule, began: float) -> str:
        """One line: how far, how fast, how much longer."""
        with self.guard:
            epochs = model_epochs(schedule.open())
            epochs += model_epochs(schedule.jobs[name] for name in schedule.running)
            done, total = len(schedule.finished), len(schedule.jobs)
            running, failed = len(schedule.running), len(schedule.failed)
        spent = time.monotonic() - began
        pace = spent / self.epochs_done if self.epochs_done else float("nan")
        own = ", ".join(f"{n} {s:.2f} s/epoch" for n, s in sorted(self.epoch_seconds.items()))
        return (
            f"[{spent:6.1f} s] {done}/{total} jobs done, {running} running, {failed} failed; "
            f"{pace:.3f} s per model-epoch ({own}); {epochs} model-epochs to go, "
            f"about {epochs * pace:.0f} s; time left {self.left():.0f} s"
        )

    def _work(self, slot: Slot, schedule: Schedule) -> None:
        while (job := self._next(slot, schedule)) is not None:
            try:
                with slot.active():
                    results, state = self._run_job(slot, job, schedule)
                if state is not None:
                    schedule.journal.keep(job.name, state)
            except OutOfTime:
                with self.guard:
                    schedule.running.discard(job.name)
                    self.guard.notify_all()
                return
            except Exception:
                trouble = traceback.format_exc()
                print(f"{job.name} failed:\n{trouble}", flush=True)
                with self.guard:
                    self.failures += 1
                    schedule.journal.add(job, {"error": trouble.splitlines()[-1]})
                    schedule.fail(job)
                    self.guard.notify_all()
                continue
            with self.guard:
                self.failures = 0
                schedule.journal.add(job, results)
                schedule.journal.drop(job.name, "part")
                schedule.finish(job, state)
                self.guard.notify_all()

    def _next(self, slot: Slot, schedule: Schedule) -> Job | None:
        """Wait for a job that this slot can start; None if there will be none."""
        regularised = slot.regulariser is not None
        with self.guard:
            while True:
                for job in schedule.ready(slot.network, regularised):
                    if self.fits(job, schedule.children(job.name)):
                        schedule.running.add(job.name)
                        return job
                waiting = any(job.network == slot.network for job in schedule.open())
                parents = any(
                    schedule.jobs[name].network == slot.network for name in schedule.running
                )
                hopeless = not (waiting and parents) and not schedule.growing
                if hopeless or self.left() <= 0:
                    return None
                self.guard.wait(1.0)

    # One job.

    def _run_job(
        self, slot: Slot, job: Job, schedule: Schedule
    ) -> tuple[dict[str, Any], dict[str, torch.Tensor] | None]:
        journal, began = schedule.journal, time.monotonic()
        steps = self.data.count(job.split) // self.settings.batch
        attached, losses, accuracies, first = self._begin(slot, job, steps, schedule)
        for epoch in range(first, job.epochs):
            if self.left() <= 0:
                # Queued work is done, so this is a whole number of epochs.
                self._park(slot, job, attached, losses, accuracies, journal)
                raise OutOfTime
            since = time.monotonic()
            self._epoch(slot, job, epoch, attached)
            losses.append(round(float(slot.loss) / max(steps, 1), 4))
            if epoch >= job.epochs - LAST:
                accuracies.append(round(slot.accuracy(job.split), 3))
            self._timed(job, time.monotonic() - since)
        zeros = slot.zeros()
        entries = {name: mask.numel() for name, mask in slot.masks.items()}
        results = {
            "accuracy": round(sum(accuracies) / len(accuracies), 3),
            "accuracies": accuracies,
            "losses": losses,
            "zeros": zeros,
            "sparsity": sum(zeros.values()) / sum(entries.values()),
            "collapsed": [name for name in zeros if zeros[name] == entries[name]],
            "seconds": round(time.monotonic() - began, 2),
        }
        with self.guard:
            wanted = schedule.needed(job.name)
        state = slot.state() if wanted else None
        slot.wait()
        return results, state

    def _begin(
        self, slot: Slot, job: Job, steps: int, schedule: Schedule
    ) -> tuple[Attached | None, list[float], list[float], int]:
        """Parameters, zeros and the method; or all of that as an earlier session left it."""
        with self.guard:
            start = schedule.start_of(job, self.data.device)
        with self._aside(slot):
            slot.start(self._fresh(slot, job.seed) if start is None else start)
            slot.strength.fill_(job.method.strength)
            attached = attach(slot, job, steps)
            parked = self._unpark(slot, job, attached, schedule.journal)
        if parked is None:
            # Scores at initialisation take seconds, and nothing of the others'.
            with nullcontext() if job.cut in SCORES else self._aside(slot):
                masks = cut(slot, job)
                if masks is not None:
                    slot.hold(masks)
            parked = ([], [], 0)
        return (attached, *parked)

    def _fresh(self, slot: Slot, seed: int) -> dict[str, torch.Tensor]:
        """Drawing 15 million normal numbers takes a while; rows with one seed share them."""
        key = (slot.network, seed)
        if key not in self.fresh:
            self.fresh[key] = slot.fresh(seed)
        return self.fresh[key]

    def _epoch(self, slot: Slot, job: Job, epoch: int, attached: Attached | None) -> None:
        steps = self.data.count(job.split) // self.settings.batch
        slot.load_epoch(job.split, job.seed, job.first + epoch, rates(job, steps, epoch))
        for _ in range(steps):
            slot.step(job.regularised)
            if attached is None:
                continue
            with self._aside(slot) if attached.due() else nullcontext():
                attached.act()

    @contextmanager
    def _aside(self, slot: Slot) -> Iterator[None]:
        """For what the library does: one thread at a time, ahead of everybody's steps."""
        slot.wait()
        with self.library:
            if self.urgent is None:
                yield
                return
            with torch.cuda.stream(self.urgent):
                yield
            self.urgent.synchronize()

    def _timed(self, job: Job, seconds: float) -> None:
        with self.guard:
            before = self.epoch_seconds.get(job.network, seconds)
            self.epoch_seconds[job.network] = 0.8 * before + 0.2 * seconds
            self.epochs_done += 1

    def _park(
        self,
        slot: Slot,
        job: Job,
        attached: Attached | None,
        losses: Sequence[float],
        accuracies: Sequence[float],
        journal: Journal,
    ) -> None:
        """Write down a run in the middle, so that the next session goes on with it."""
        if not losses or not journal.networks:
            return
        state = {
            "model": slot.state(),
            "momenta": [m.clone() for m in slot.momenta],
            "masks": {name: m.clone() for name, m in slot.masks.items()},
            "attached": attached.state_dict() if attached is not None else {},
            "losses": list(losses),
            "accuracies": list(accuracies),
        }
        slot.wait()
        journal.keep(job.name, state, "part")

    def _unpark(
        self, slot: Slot, job: Job, attached: Attached | None, journal: Journal
    ) -> tuple[list[float], list[float], int] | None:
        if not journal.kept(job.name, "part"):
            return None
        state = journal.fetch(job.name, self.data.device, "part")
        slot.start(state["model"])
        with torch.no_grad():
            for own, value in zip(slot.momenta, state["momenta"], strict=True):
                own.copy_(value)
            for name, value in state["masks"].items():
                slot.masks[name].copy_(value)
        if attached is not None:
            attached.load_state_dict(state["attached"])
        return state["losses"], state["accuracies"], len(state["losses"])


def measure(fleet: Fleet, network: str, steps: int = 60) -> dict[str, float]:
    """Seconds an epoch takes: one network alone, and all of its kind side by side."""
    slots = [slot for slot in fleet.slots if slot.network == network]
    total = fleet.data.count("final") // fleet.settings.batch
    steps = min(steps, total)
    found = {}
    for name, chosen in (("alone", slots[:1]), ("side by side", slots)):
        for slot in chosen:
            slot.start(slot.fresh(0))
            slot.load_epoch("final", 0, 0, [0.01] * total)
        if fleet.on_gpu:
            torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(steps):
            for slot in chosen:
                with slot.active():
                    slot.step()
        if fleet.on_gpu:
            torch.cuda.synchronize()
        seconds = time.perf_counter() - began
        found[name] = seconds * total / steps / len(chosen)
    return found
