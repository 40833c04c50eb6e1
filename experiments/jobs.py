"""What is to be run: jobs that start from each other's networks, and what is known of them so far.

A *trunk* trains from fresh parameters, a *leaf* goes on from a trunk: it cuts and finetunes. One
trunk serves many leaves. Finished jobs are lines of a file, so a killed session goes on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from experiments.earlier import lines_of


@dataclass(frozen=True)
class Method:
    """What happens to the parameters while a trunk trains; shares are those of its steps.

    ``plain``: nothing. ``induced``: the projection every so many steps, to a target that is ramped
    between ``start`` and ``until`` and held until ``stop``; if ``frozen``, the network is cut by
    magnitude to ``level`` right there, and the rest of the trunk already trains what is left.
    ``gradual-gsp``: the target is raised so that the projection itself has the zeros wanted by
    then. ``gradual-magnitude``: Zhu and Gupta. ``induced-gradual``: that, and the projection ahead
    of it. ``deephoyer``: its regulariser in the loss, with this ``strength``.
    """

    kind: str = "plain"
    hoyer: float = 0.0
    level: float = 0.0
    budget: str = "model"
    start: float = 0.2
    until: float = 0.7
    stop: float = 1.0
    every: int = 150
    ramp: str = "cubic"
    momentum: bool = False
    frozen: bool = False
    values: str = "projected"
    floor: int = 0
    strength: float = 0.0


@dataclass(frozen=True)
class Job:
    """One run. ``cut`` is what happens before its first step; see `methods.cut`."""

    name: str
    network: str
    seed: int
    split: str
    epochs: int
    rate: float
    schedule: str
    label: str
    table: str
    method: Method = Method()
    cut: str = "none"
    level: float = 0.0
    parent: str | None = None
    first: int = 0
    priority: tuple[int, ...] = (0,)

    @property
    def regularised(self) -> bool:
        """Whether the step has DeepHoyer's regulariser in it."""
        return self.method.kind == "deephoyer"


@dataclass(frozen=True)
class Setting:
    """What the jobs of one table share, and how their names begin."""

    table: str
    network: str
    epochs: int
    finetune: int
    batch: int
    split: str = "final"
    rate: float = 0.1
    finetune_rate: float = 0.05
    schedule: str = "linear"

    @property
    def prefix(self) -> str:
        """How the names of its jobs begin: what their accuracies have in common, but the seed."""
        return (
            f"{self.network} {self.split} {self.epochs}+{self.finetune} b{self.batch} "
            f"{self.schedule} {self.rate:g} s"
        )

    def trunk(
        self,
        label: str,
        seed: int,
        method: Method | None = None,
        *,
        cut: str = "none",
        level: float = 0.0,
        priority: tuple[int, ...] = (0,),
    ) -> Job:
        """A job that trains from fresh parameters."""
        return Job(
            name=f"{self.prefix}{seed} {label}{_percent(level)}",
            network=self.network,
            seed=seed,
            split=self.split,
            epochs=self.epochs,
            rate=self.rate,
            schedule=self.schedule,
            label=label,
            table=self.table,
            method=method or Method(),
            cut=cut,
            level=level,
            priority=priority,
        )

    def leaf(
        self,
        trunk: Job,
        label: str,
        cut: str,
        level: float,
        *,
        rate: float | None = None,
        priority: tuple[int, ...] = (0,),
    ) -> Job:
        """A job that cuts a trunk's network and finetunes it."""
        rate = self.finetune_rate if rate is None else rate
        return replace(
            trunk,
            name=f"{trunk.name} > {label}{_percent(level)} f{rate:g}",
            epochs=self.finetune,
            rate=rate,
            schedule="paper" if self.schedule == "paper" else "decay",
            label=label,
            table=self.table,
            method=Method(),
            cut=cut,
            level=level,
            parent=trunk.name,
            first=trunk.epochs,
            priority=priority,
        )


def _percent(level: float) -> str:
    return f" {100 * level:g}" if level else ""


def rates(job: Job, steps: int, epoch: int) -> list[float]:
    """The learning rate of every step of an epoch."""
    total = max(job.epochs * steps, 1)
    if job.schedule == "paper":  # a tenth after 40, 60 and 80 % of the epochs
        passed = sum(epoch >= job.epochs * share / 10 for share in (4, 6, 8))
        return [job.rate * 0.1**passed] * steps
    warm = 0.0 if job.schedule == "decay" else 0.15
    found = []
    for step in range(epoch * steps, (epoch + 1) * steps):
        progress = (step + 1) / total
        rise = 0.1 + 0.9 * progress / warm if warm else 1.0
        fall = (1.0 - progress) / (1.0 - warm)
        # Finetuning is so short that the last epochs, which are reported, need a low rate soon.
        fall = max(fall, 0.0) if warm else max(fall, 0.0) ** 2
        found.append(job.rate * min(rise, fall))
    return found


@dataclass
class Journal:
    """What finished, as lines of JSON; the networks of trunks in files beside it.

    Parameters
    ----------
    folder : Path
        Where ``runs.jsonl`` and the networks lie.
    earlier : sequence of Path
        Lines of other sessions, for instance brought back from a machine that is gone, or records.
    networks : bool
        Whether networks are written at all: on a machine that is gone afterwards nobody reads them.

    Attributes
    ----------
    sessions : list of dict
        What each session said of itself; a run has the number of its session.
    """

    folder: Path
    earlier: Sequence[Path] = ()
    networks: bool = True
    done: dict[str, dict[str, Any]] = field(default_factory=dict)
    sessions: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.path = self.folder / "runs.jsonl"
        for path in (*self.earlier, self.path):
            if path.suffix == ".json":
                sessions, lines = lines_of(path, self.sessions)
                self.sessions += sessions
                self.done |= {line["name"]: line for line in lines}
                continue
            before = len(self.sessions)
            for line in read_lines(path):
                if "session" in line:
                    self.sessions.append(line["session"])
                elif "said" in line:
                    self.sessions[-1] |= line["said"]
                elif "error" not in line:
                    started = before < len(self.sessions)
                    own = {"of session": len(self.sessions) - 1} if started else {}
                    self.done[line["name"]] = {**line, **own}
        if self.path.exists() and not self.path.read_bytes().endswith(b"\n"):
            with self.path.open("a", encoding="utf-8") as file:
                file.write("\n")  # the session was killed within a line

    def begin(self, about: Mapping[str, Any]) -> None:
        """Write down what the following runs have in common: source, machine, settings."""
        self.sessions.append(dict(about))
        self._write({"session": self.sessions[-1]})

    def say(self, more: Mapping[str, Any]) -> None:
        """Add to what the session said of itself."""
        self.sessions[-1] |= more
        self._write({"said": dict(more)})

    def add(self, job: Job, results: Mapping[str, Any]) -> None:
        """Write down a finished job, or one that failed."""
        line = {"name": job.name, "job": asdict(job), **results}
        self._write(line)
        if "error" not in line:
            own = {"of session": len(self.sessions) - 1} if self.sessions else {}
            self.done[job.name] = {**line, **own}

    def _write(self, line: Mapping[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def _file(self, name: str, kind: str) -> Path:
        return self.folder / f"{re.sub(r'[^A-Za-z0-9.+-]+', '_', name)}.{kind}.pt"

    def keep(self, name: str, state: Mapping[str, Any], kind: str = "trunk") -> None:
        """Write a network, whole or not at all."""
        if not self.networks:
            return
        path = self._file(name, kind)
        beside = path.with_suffix(".part")
        torch.save(dict(state), beside)
        beside.replace(path)

    def kept(self, name: str, kind: str = "trunk") -> bool:
        """Whether there is one."""
        return self._file(name, kind).exists()

    def fetch(self, name: str, device: torch.device, kind: str = "trunk") -> Any:
        """Read it back."""
        return torch.load(self._file(name, kind), weights_only=True, map_location=device)

    def drop(self, name: str, kind: str = "trunk") -> None:
        """Delete it: nobody needs it any more."""
        self._file(name, kind).unlink(missing_ok=True)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a journal; one that a kill cut short is left out."""
    if not path.exists():
        return []
    found = []
    for text in path.read_text(encoding="utf-8").splitlines():
        try:
            found.append(json.loads(text))
        except json.JSONDecodeError:
            continue
    return found


class Schedule:
    """Which job comes next: of those that can start, the one with the smallest priority.

    Parameters
    ----------
    jobs : iterable of Job
        A parent may be among them or not; what is not finished and not there is an error.
    journal : Journal
        What finished before.
    """

    def __init__(self, jobs: Iterable[Job], journal: Journal) -> None:
        self.journal = journal
        self.jobs: dict[str, Job] = {}
        self.states: dict[str, dict[str, Tensor]] = {}
        self.running: set[str] = set()
        self.failed: set[str] = set()
        self.finished: set[str] = set()
        self.growing = False
        self.add(jobs)

    def add(self, jobs: Iterable[Job]) -> None:
        """Take in jobs; one that is known keeps the higher priority of the two."""
        for job in jobs:
            known = self.jobs.get(job.name)
            if known is None or job.priority < known.priority:
                self.jobs[job.name] = job
        for job in self.jobs.values():
            if job.parent is not None and job.parent not in self.jobs:
                raise ValueError(f"{job.name} starts from {job.parent}, which is no job")
        self.finished |= {name for name in self.jobs if name in self.journal.done}
        # A trunk whose network is gone has to train again for the leaves that still need it.
        for name in list(self.finished):
            if self.needed(name) and name not in self.states and not self.journal.kept(name):
                self.finished.discard(name)

    def withdraw(self, jobs: Iterable[Job]) -> None:
        """Forget jobs that have not started."""
        for job in jobs:
            if job.name not in self.running | self.finished:
                self.jobs.pop(job.name, None)
        orphans = [j for j in self.jobs.values() if j.parent and j.parent not in self.jobs]
        if orphans:
            self.withdraw(orphans)

    def children(self, name: str) -> list[Job]:
        """The jobs that start from this one."""
        return [job for job in self.jobs.values() if job.parent == name]

    def needed(self, name: str) -> bool:
        """Whether some job still has to start from this one."""
        return any(
            child.name not in self.finished and child.name not in self.failed
            for child in self.children(name)
        )

    def urgency(self, job: Job) -> tuple[Any, ...]:
        """A trunk is as urgent as the most urgent of what needs it; leaves free memory first."""
        mine = [job.priority]
        mine += [c.priority for c in self.children(job.name) if c.name not in self.finished]
        return (min(mine), job.parent is None, job.name)

    def open(self) -> list[Job]:
        """Everything that is neither finished nor failed nor running, most urgent first."""
        closed = self.finished | self.failed | self.running
        waiting = [job for job in self.jobs.values() if job.name not in closed]
        return sorted(waiting, key=self.urgency)

    def ready(self, network: str, regularised: bool) -> list[Job]:
        """What a slot for this network could start now."""
        return [
            job
            for job in self.open()
            if job.network == network
            and (regularised or not job.regularised)
            and (job.parent is None or job.parent in self.finished)
        ]

    def finish(self, job: Job, state: dict[str, Tensor] | None) -> None:
        """Mark a job as done; keep its network while others start from it."""
        self.running.discard(job.name)
        self.finished.add(job.name)
        if state is not None and self.needed(job.name):
            self.states[job.name] = state
        if job.parent is not None and not self.needed(job.parent):
            self.states.pop(job.parent, None)
            self.journal.drop(job.parent)

    def fail(self, job: Job) -> None:
        """Mark a job, and all that would have started from it, as failed."""
        self.running.discard(job.name)
        self.failed.add(job.name)
        for child in self.children(job.name):
            self.fail(child)

    def start_of(self, job: Job, device: torch.device) -> dict[str, Tensor] | None:
        """The network that a job starts from."""
        if job.parent is None:
            return None
        if job.parent not in self.states:
            self.states[job.parent] = self.journal.fetch(job.parent, device)
        return self.states[job.parent]


def model_epochs(jobs: Iterable[Job]) -> int:
    """How many epochs all of them train."""
    return sum(job.epochs for job in jobs)
