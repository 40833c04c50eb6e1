"""Recipe search, Table 2 and Table 1 in one process, within a budget of seconds.

    python -m experiments.gpu_session --data DIR --state DIR --budget-seconds 380

Runs go side by side, those of the networks in ``--last`` after all others: an epoch of ResNet-110
takes as long as seven of VGG-16. What is most valuable comes first. What finished is a line of
``runs.jsonl`` at once, and a record at the end; a second call goes on from both (``--fresh``: from
nothing), and a killed one has lost nothing that was finished. ``--dry-run`` lists the jobs.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from experiments import candidates, recipe, record, table1, table2
from experiments.cifar import data_folder, load_cifar10
from experiments.earlier import choice_in, records_of
from experiments.fleet import Fleet, measure
from experiments.jobs import Job, Journal, Schedule, Setting, model_epochs
from experiments.runs import TABLES, write_records
from experiments.slot import Data, Settings


def options_of(tables: Sequence[str], arguments: Sequence[str] | None) -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--data", nargs="+", help="folders with the sheets (default: GROUPSPARSE_DATA)")
    add("--out", type=Path, default=record.RECORDS, help="where the records go")
    add("--state", type=Path, default=record.ROOT / "build" / "fleet", help="to go on from")
    add("--resume", type=Path, nargs="*", default=[], help="runs.jsonl of earlier sessions")
    add("--choice", type=Path, help="choice.json of an earlier session, or one of its records")
    add("--fresh", action="store_true", help="not from the records in --out; they are replaced")
    add("--tables", nargs="+", choices=TABLES, default=list(tables))
    add("--seeds", type=int, nargs="+", default=[0, 1, 2])
    add("--epochs", type=int, default=12)
    add("--finetune", type=int, default=4)
    add("--search-epochs", type=int, default=8)
    add("--search-finetune", type=int, default=3)
    add("--search-seconds", type=float, default=150.0, help="then choose from what there is")
    add("--search-seeds", type=int, nargs="+", default=[0])
    add("--search-levels", type=float, nargs="+", default=list(recipe.LEVELS))
    labels = list(candidates.EVERYTHING)
    known: dict[str, Any] = {"nargs": "+", "choices": labels, "metavar": "LABEL"}
    add("--search-labels", **known, default=[], help="only these, in this order of priority")
    add("--recipes", **known, default=[], help="rows of Table 1 besides the chosen recipe")
    add("--rivals", **known, default=[], help="the same, at the levels of further seeds only")
    add("--batch", type=int, default=256)
    add("--rate", type=float, default=0.1, help="at a batch of 128")
    add("--finetune-rate", type=float, default=0.05, help="at a batch of 128")
    add("--schedule", choices=("linear", "paper"), default="linear")
    add("--smoothing", type=float, default=0.1)
    add("--network", default="vgg16", help="of the recipe search and Table 1")
    add("--table2-networks", nargs="+", default=list(table2.NETWORKS))
    add("--table2-seeds", type=int, nargs="+", default=[0])
    add("--slots", type=int, default=7, help="runs of the main network side by side")
    add("--table2-slots", type=int, default=1, help="of each network of Table 2")
    add("--last", nargs="*", default=["resnet110"], help="networks that wait for all others")
    add("--last-slots", type=int, default=3, help="of each of these")
    add("--measure", action="store_true", help="first the seconds of an epoch, alone and not")
    add("--budget-seconds", type=float)
    add("--began", type=float, help="when the budget's clock started, in seconds since 1970")
    add("--journal-only", action="store_true", help="no networks on the disk, and no records")
    add("--only", type=int, help="train on so many images only, to try things out")
    add("--dry-run", action="store_true")
    return parser.parse_args(arguments)


def setting_of(options: argparse.Namespace, table: str) -> Setting:
    """The schedule of a table; rates grow with the batch."""
    search, scale = table == "recipe", options.batch / 128
    paper = options.schedule == "paper"
    return Setting(
        table=table,
        network=options.network,
        epochs=options.search_epochs if search else options.epochs,
        finetune=options.search_finetune if search else options.finetune,
        batch=options.batch,
        split="search" if search else "final",
        rate=options.rate * scale,
        finetune_rate=(0.01 if paper else options.finetune_rate) * scale,
        schedule=options.schedule,
    )


class Plan:
    """Which jobs there are from the start, and which follow from the search."""

    def __init__(self, options: argparse.Namespace, began: float) -> None:
        self.options, self.began = options, began
        self.choice: recipe.Choice | None = None
        searching = "recipe" in options.tables and not self.remembered.exists()
        searched = setting_of(options, "recipe")
        everything = []
        if searching:
            seeds, levels = options.search_seeds, options.search_levels
            everything = recipe.jobs(searched, seeds, levels, labels=options.search_labels)
        self.search = [job for job in everything if job.priority[0] < recipe.LAST]
        self.extras = [job for job in everything if job.priority[0] >= recipe.LAST]

    @property
    def remembered(self) -> Path:
        """Where the choice of an earlier session is, so that all of Table 1 has the same."""
        return self.options.choice or self.options.state / "choice.json"

    def first(self) -> list[Job]:
        """The jobs that need no choice."""
        jobs = [*self.search, *self.extras]
        if "table1" in self.options.tables:
            jobs += self.table1(None)
        if "table2" in self.options.tables:
            for network in self.options.table2_networks:
                setting = setting_of(self.options, "table2")
                jobs += table2.jobs(setting, network, self.options.table2_seeds)
        return jobs

    def table1(self, choice: recipe.Choice | None) -> list[Job]:
        """The rows of Table 1, with those that were asked for besides."""
        options = self.options
        return table1.jobs(
            setting_of(options, "table1"),
            options.seeds,
            choice,
            recipes=options.recipes,
            rivals=options.rivals,
        )

    def then(self, schedule: Schedule) -> list[Job] | None:
        """The jobs of the chosen recipe, once the search is over."""
        over = {j.name for j in self.search} <= schedule.finished | schedule.failed
        late = time.monotonic() - self.began > self.options.search_seconds
        if not over and not late:
            return None
        kept: list[Job] = []
        if not over:
            # What was trained already is worth its finetuning, but not before the tables.
            begun = schedule.running | schedule.finished
            kept = [
                replace(job, priority=(recipe.LAST, *job.priority[1:]))
                for job in self.search
                if job.parent in begun and job.name not in begun
            ]
            schedule.withdraw(self.search)
        return [*kept, *self.decided(schedule.journal)]

    def decided(self, journal: Journal) -> list[Job]:
        """Choose, and say so."""
        new = self.choice is None
        if self.choice is not None:
            pass
        elif self.remembered.exists():
            self.choice = recipe.Choice(**choice_in(self.remembered))
        else:
            searched = setting_of(self.options, "recipe")
            levels = self.options.search_levels
            self.choice = recipe.choose(journal.done.values(), searched, levels)
            if self.search and not self.options.dry_run:
                text = json.dumps(asdict(self.choice), indent=1)
                self.remembered.write_text(text, encoding="utf-8")
        if new and not self.options.dry_run:
            journal.say({"choice": asdict(self.choice)})
            say(self.began, f"chosen on held-out images: {self.choice}")
        jobs: list[Job] = []
        if "table1" in self.options.tables:
            jobs += self.table1(self.choice)
        if "table2" in self.options.tables:
            setting = setting_of(self.options, "table2")
            for network in self.options.table2_networks:
                jobs += table2.chosen_jobs(setting, network, self.options.table2_seeds, self.choice)
        return jobs


def load(options: argparse.Namespace, device: torch.device) -> Data:
    """The data set on the device, or the first images of it."""
    folders = [Path(f) for f in options.data] if options.data else [data_folder(None)]
    train, test = load_cifar10(folders)
    if options.only:
        train, test = train[: options.only], test[: options.only]
        return Data(train, test, device, held=options.only // 10)
    return Data(train, test, device)


def main(tables: Sequence[str] = TABLES, arguments: Sequence[str] | None = None) -> None:
    """Run what the command line says."""
    began = time.monotonic()
    options = options_of(tables, arguments)
    if options.began is not None:
        began -= max(time.time() - options.began, 0.0)
    plan = Plan(options, began)
    earlier = [] if options.fresh else records_of(options.out, TABLES)
    journal = Journal(options.state, [*earlier, *options.resume], networks=not options.journal_only)
    if options.dry_run:
        dry_run(plan, journal)
        return
    torch.set_num_threads(1)  # of each of many threads, which would only wait for each other
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    say(began, "started")
    data = load(options, device)
    say(began, "data loaded")
    hidden = ("data", "out", "state", "resume", "choice", "began")  # of this machine
    about = {k: v for k, v in vars(options).items() if k not in hidden}
    journal.begin({**record.provenance(), "options": about})
    try:
        for slots in turns(options):
            work(plan, journal, data, slots)
            gc.collect()
            if device.type == "cuda":
                torch.cuda.empty_cache()
    finally:
        journal.say({"seconds": round(time.monotonic() - began, 1)})
        if not options.journal_only:
            for path in write_records(journal, options.out):
                print(f"wrote {path.name}", flush=True)


def turns(options: argparse.Namespace) -> list[dict[str, int]]:
    """Networks and how many of each go side by side: at first all but the last, then these."""
    slots: dict[str, int] = {}
    if set(options.tables) & {"recipe", "table1"}:
        slots[options.network] = options.slots
    if "table2" in options.tables:
        beside = options.table2_slots if slots else options.last_slots
        slots |= dict.fromkeys(options.table2_networks, beside)
    late = [network for network in slots if network in options.last]
    first = {network: count for network, count in slots.items() if network not in late}
    return [turn for turn in (first, dict.fromkeys(late, options.last_slots)) if turn]


def work(plan: Plan, journal: Journal, data: Data, slots: dict[str, int]) -> None:
    """Run the jobs of these networks; the graphs and the memory of others are gone by then."""
    options, began = plan.options, plan.began
    deadline = None if options.budget_seconds is None else began + options.budget_seconds
    if deadline is not None and time.monotonic() > deadline:
        return
    jobs = [job for job in plan.first() if job.network in slots]
    searching = any(job.table == "recipe" for job in jobs)
    if not searching:
        jobs += [job for job in plan.decided(journal) if job.network in slots]
        if not Schedule(jobs, journal).open():
            return
    settings = Settings(batch=options.batch, smoothing=options.smoothing)
    fleet = Fleet(data, settings, slots, deadline)
    say(began, f"{len(fleet.slots)} networks ready")
    if options.measure:
        speeds = {network: measure(fleet, network) for network in slots}
        for network, speed in speeds.items():
            fleet.epoch_seconds[network] = speed["side by side"] * slots[network]
        say(began, f"seconds an epoch: {speeds}")
        before = journal.sessions[-1].get("seconds per epoch", {})
        journal.say({"seconds per epoch": before | speeds})

    def later(schedule: Schedule) -> list[Job] | None:
        found = plan.then(schedule)
        return None if found is None else [job for job in found if job.network in slots]

    fleet.run(jobs, journal, later if searching else None)


def say(began: float, what: str) -> None:
    """One line, with the time."""
    print(f"[{time.monotonic() - began:6.1f} s] {what}", flush=True)


def dry_run(plan: Plan, journal: Journal) -> None:
    """List the jobs and what they take, without a choice that is not made yet."""
    jobs = list({job.name: job for job in [*plan.first(), *plan.decided(journal)]}.values())
    for job in sorted(jobs, key=lambda job: (job.priority, job.name)):
        state = "done" if job.name in journal.done else f"{job.epochs} epochs"
        print(f"{'.'.join(map(str, job.priority)):>7}  {job.name}: {state}")
    for key, epochs in candidates.tables_of(jobs).items():
        print(f"{key}: {epochs} model-epochs")
    left = Schedule(jobs, journal).open()  # trunks whose networks are gone as well
    print(f"{len(jobs)} jobs, {model_epochs(jobs)} model-epochs, {model_epochs(left)} of them left")


if __name__ == "__main__":
    main()
