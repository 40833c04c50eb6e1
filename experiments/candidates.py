"""Ways to get to a sparse network, each the jobs of a trunk and its leaves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from experiments.jobs import Job, Method, Setting

PLAIN = Method()
EVERY = 150  # steps between two projections, as in the paper


@dataclass(frozen=True)
class Candidate:
    """A method of training, what is cut after it, and whether it has to know the level before.

    ``initial`` is a cut of the fresh parameters, for methods that prune before training.
    """

    method: Method = PLAIN
    cut: str = "magnitude"
    per_level: bool = False
    initial: str = "none"
    rate: float = 1.0  # of the setting's finetuning rate


def induced(hoyer: float, **changes: object) -> Method:
    """Induced GSP with one multiplier for the whole model, the target ramped up."""
    return replace(Method("induced", hoyer=hoyer, every=EVERY), **changes)  # type: ignore[arg-type]


def as_in_the_paper(hoyer: float) -> Method:
    """One target per layer, from a fifth of the training on, at once and to the end."""
    return induced(hoyer, budget="paper", ramp="constant")


# When the ramp begins, when it has the whole target, and when the network is cut.
_AT_50 = {"start": 0.1, "until": 0.4, "stop": 0.5}
_AT_70 = {"start": 0.2, "until": 0.6, "stop": 0.7}


def cut_early(hoyer: float, shares: dict[str, float], **changes: object) -> Candidate:
    """Induced GSP that is cut within the trunk; the rest of it trains what is left."""
    return Candidate(induced(hoyer, frozen=True, **shares, **changes), "keep", per_level=True)


_GRADUAL = Method("gradual-magnitude", every=EVERY)
_GRADUAL_EARLY = replace(_GRADUAL, start=0.1, until=0.5)
_FINISHING = Method("gradual-gsp", every=EVERY)
_BOTH = Method("induced-gradual", every=EVERY)

RIVALS: dict[str, Candidate] = {
    "magnitude": Candidate(),
    "magnitude, floor": Candidate(cut="magnitude/floor"),
    "magnitude, per layer": Candidate(cut="magnitude/layer"),
    "random": Candidate(cut="random"),
    "gradual magnitude": Candidate(_GRADUAL, "keep", per_level=True),
    "gradual magnitude, floor": Candidate(replace(_GRADUAL, floor=1), "keep", per_level=True),
    "gradual magnitude, to 50 %": Candidate(_GRADUAL_EARLY, "keep", per_level=True),
    "DeepHoyer 1e-7": Candidate(Method("deephoyer", strength=1e-7)),
    "DeepHoyer 1e-6": Candidate(Method("deephoyer", strength=1e-6)),
    "SNIP": Candidate(cut="keep", per_level=True, initial="snip"),
    "GraSP": Candidate(cut="keep", per_level=True, initial="grasp"),
    "SynFlow": Candidate(cut="keep", per_level=True, initial="synflow"),
}

SINGLE_SHOT: dict[str, Candidate] = {
    "single-shot GSP, per layer": Candidate(cut="project/paper/projected"),
    "single-shot GSP, per layer, mask only": Candidate(cut="project/paper/original"),
    "single-shot GSP": Candidate(cut="project/model/projected"),
    "single-shot GSP, mask only": Candidate(cut="project/model/original"),
}

PAPER: dict[str, Candidate] = {
    "induced GSP, paper 0.8": Candidate(as_in_the_paper(0.8)),
    "induced GSP, paper 0.9": Candidate(as_in_the_paper(0.9)),
}

# The recipes that one is chosen from, on held-out images; the first is the choice without a search.
RECIPES: dict[str, Candidate] = {
    "GSP 0.9": Candidate(induced(0.9)),
    "GSP 0.8": Candidate(induced(0.8)),
    "GSP 0.95": Candidate(induced(0.95)),
    # Gradual pruning has its zeros long before the trunk ends; these have them as early.
    "GSP 0.9, cut at 50 %": cut_early(0.9, _AT_50),
    "GSP 0.8, cut at 50 %": cut_early(0.8, _AT_50),
    "GSP 0.9, cut at 70 %": cut_early(0.9, _AT_70),
    "GSP 0.8, cut at 70 %": cut_early(0.8, _AT_70),
    "GSP 0.9, one threshold, cut at 50 %": cut_early(0.9, _AT_50, budget="even"),
    "GSP 0.8, one threshold, cut at 50 %": cut_early(0.8, _AT_50, budget="even"),
    "GSP 0.9, cut at 50 %, every 30": cut_early(0.9, _AT_50, every=30),
    "GSP 0.7": Candidate(induced(0.7)),
    "GSP 0.8, gradual": Candidate(replace(_BOTH, hoyer=0.8), "keep", per_level=True),
    "GSP 0.7, gradual": Candidate(replace(_BOTH, hoyer=0.7), "keep", per_level=True),
    "finishing GSP": Candidate(_FINISHING, per_level=True),
    # A filter keeps an entry in every projection: the cut takes those few.
    "finishing GSP, held": Candidate(replace(_FINISHING, frozen=True), per_level=True),
    "finishing GSP, held, mask only": Candidate(
        replace(_FINISHING, frozen=True, values="original"), per_level=True
    ),
    "GSP 0.9, every 30": Candidate(induced(0.9, every=30)),
    "GSP 0.9, one threshold": Candidate(induced(0.9, budget="even")),
    "GSP 0.8, one threshold": Candidate(induced(0.8, budget="even")),
    "GSP 0.9, momentum too": Candidate(induced(0.9, momentum=True)),
    "GSP 0.9, ramp to 90 %": Candidate(induced(0.9, until=0.9)),
    "GSP 0.9, stop at 70 %": Candidate(induced(0.9, stop=0.7)),
    "GSP 0.9, floor": Candidate(induced(0.9), "magnitude/floor"),
    "GSP 0.9, cut by the projection": Candidate(induced(0.9), "project/model/original"),
    "single-shot GSP": SINGLE_SHOT["single-shot GSP"],
    "single-shot GSP, mask only": SINGLE_SHOT["single-shot GSP, mask only"],
}

EVERYTHING: dict[str, Candidate] = {**RIVALS, **SINGLE_SHOT, **PAPER, **RECIPES}


def jobs_of(
    setting: Setting,
    label: str,
    levels: Sequence[float],
    seed: int,
    *,
    candidate: Candidate | None = None,
    priority: tuple[int, ...] = (0,),
) -> list[Job]:
    """The trunk or trunks of a candidate, and a leaf for each level."""
    candidate = EVERYTHING[label] if candidate is None else candidate
    rate = candidate.rate * setting.finetune_rate
    jobs: list[Job] = []
    for level in levels:
        own = level if candidate.per_level else 0.0
        method = replace(candidate.method, level=own)
        name = label if candidate.per_level else _trunk_name(candidate.method)
        trunk = setting.trunk(
            name, seed, method, cut=candidate.initial, level=own, priority=priority
        )
        leaf = setting.leaf(trunk, label, candidate.cut, level, rate=rate, priority=priority)
        jobs += [leaf] if trunk in jobs else [trunk, leaf]
    return jobs


def dense(setting: Setting, seed: int, priority: tuple[int, ...] = (0,)) -> list[Job]:
    """The dense network, trained for as many epochs as all others."""
    trunk = setting.trunk("dense", seed, priority=priority)
    return [trunk, setting.leaf(trunk, "dense", "none", 0.0, priority=priority)]


def _trunk_name(method: Method) -> str:
    """The same name for the same training, so that candidates share it."""
    if method == PLAIN:
        return "dense"
    changed = [
        f"{name} {value}"
        for name, value in vars(method).items()
        if value != getattr(PLAIN, name) and name != "kind"
    ]
    return ", ".join([method.kind, *changed])


def tables_of(jobs: Iterable[Job]) -> dict[str, int]:
    """How many model-epochs each table and priority takes; for ``--dry-run``."""
    found: dict[str, int] = {}
    for job in sorted(jobs, key=lambda job: (job.table, job.priority)):
        key = f"{job.table} {job.network}, priority {'.'.join(map(str, job.priority))}"
        found[key] = found.get(key, 0) + job.epochs
    return found
