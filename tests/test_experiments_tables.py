"""The tables' jobs, the choice of a recipe, a whole session on the CPU, and its page."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments import cifar, gpu_session, networks, recipe, record, report, runs, table1, table2
from experiments.candidates import EVERYTHING, RECIPES
from experiments.cifar import Images
from experiments.jobs import Job, Setting, read_lines
from experiments.recipe import Choice

SETTING = Setting("table1", "vgg16", epochs=16, finetune=6, batch=128)


def totals(jobs: list[Job]) -> set[int]:
    """How many epochs lie behind each final network."""
    named = {job.name: job for job in jobs}
    return {job.epochs + named[job.parent].epochs for job in jobs if job.parent is not None}


def test_all_rows_have_the_same_number_of_epochs() -> None:
    jobs = table1.jobs(SETTING, [0, 1, 2], Choice())
    assert totals(jobs) == {22}
    assert totals(table2.jobs(SETTING, "resnet56", [0])) == {22}
    assert totals(recipe.jobs(SETTING)) == {22}
    assert len({job.name for job in jobs}) == len(jobs)
    # Finetuning goes on with the draws of the epochs after the trunk's.
    assert {job.first for job in jobs} == {0, 16}
    assert {job.first for job in jobs if job.parent is None} == {0}


def test_table_1_has_the_rows_of_the_issue() -> None:
    jobs = table1.jobs(SETTING, [0, 1, 2], Choice(recipe="finishing GSP"))
    rows = {(job.label, job.level, job.seed) for job in jobs if job.parent is not None}
    for label in ("magnitude", "random", "DeepHoyer 1e-7", "finishing GSP"):
        assert all((label, level, 0) in rows for level in table1.LEVELS)
    for label in ("SNIP", "GraSP", "SynFlow"):
        assert {level for name, level, _ in rows if name == label} == {0.9, 0.95, 0.98}
    for label in ("dense", "magnitude", "finishing GSP", "induced GSP, paper 0.9"):
        assert {seed for name, _, seed in rows if name == label} == {0, 1, 2}
    assert {seed for name, _, seed in rows if name == "random"} == {0}
    first = [j.priority[0] for j in jobs if j.seed == 0 and j.label in ("magnitude", "random")]
    assert max(first) < min(job.priority[0] for job in jobs if job.seed > 0)
    assert max(job.priority[0] for job in jobs if job.seed < 2) == 9  # what nobody waits for
    # What does not depend on the choice is there before it.
    early = {job.name for job in table1.jobs(SETTING, [0, 1, 2], None)}
    assert early < {job.name for job in jobs}
    assert any("gradual magnitude" in name for name in early)
    assert not any("finishing" in name or "paper" in name for name in early)
    assert {job.split for job in jobs} == {"final"}


def test_candidates_share_the_trunks_they_can_share() -> None:
    jobs = recipe.jobs(SETTING)
    plain = [job for job in jobs if job.parent is None and job.method.kind == "plain"]
    assert len(plain) == 1
    assert {job.split for job in jobs} == {"search"}
    labels = {job.label for job in jobs if job.parent is not None}
    assert labels >= set(RECIPES) | set(recipe.COMPARED)


def line(
    label: str, level: float, accuracy: float, rate: float = SETTING.finetune_rate
) -> dict[str, Any]:
    job = {"table": "recipe", "label": label, "level": level, "rate": rate, "parent": "trunk"}
    name = f"{replace(SETTING, split='search').prefix}0 {label}"
    return {"name": name, "job": job, "accuracy": accuracy}


def test_the_choice() -> None:
    setting = replace(SETTING, table="recipe", split="search")
    assert recipe.choose([], setting) == Choice()
    levels = (0.95, 0.99)
    lines = [line("GSP 0.8", lv, 91.0) for lv in levels]
    lines += [line("GSP 0.9", 0.95, 92.0), line("GSP 0.9", 0.99, 91.0)]
    lines += [line("GSP 0.95", 0.95, 99.0)]  # did not run at the other level
    lines += [line("magnitude", lv, 95.0) for lv in levels]
    lines += [line("GSP 0.8", lv, 99.0, 0.1) for lv in levels]  # another rate of finetuning
    lines += [line("induced GSP, paper 0.8", lv, 90.0) for lv in levels]
    other = replace(setting, epochs=200).prefix  # a schedule that others did not run at
    lines += [line("GSP 0.95", lv, 99.0) | {"name": f"{other}0 GSP 0.95"} for lv in levels]
    found = recipe.choose(lines, setting, levels)
    assert found.recipe == "GSP 0.9"
    assert found.paper == "induced GSP, paper 0.8"
    assert found.ranking[0] == ("magnitude", 95.0)


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Arguments of a session that is over in seconds."""
    torch.set_num_threads(1)
    for name in ("tiny", "other"):
        monkeypatch.setitem(networks.NETWORKS, name, lambda: networks.cifar_resnet(8))
    monkeypatch.setitem(table2.LEVELS, "other", table2.LEVELS["resnet56"])
    monkeypatch.setenv("GROUPSPARSE_COMMIT", "0123456789abcdef")

    def images(count: int) -> Images:
        pixels = torch.randint(0, 256, (count, 3, 8, 8), generator=torch.Generator().manual_seed(0))
        return Images(pixels.to(torch.uint8), torch.arange(count) % 10)

    monkeypatch.setattr(gpu_session, "load_cifar10", lambda folders: (images(60), images(20)))
    few = {"LEVELS": (0.9,), "RATES": (0.02,), "COMPARED": ("magnitude",)}
    for name, value in few.items():
        monkeypatch.setattr(recipe, name, value)
    monkeypatch.setattr(table1, "LEVELS", (0.9, 0.98))
    for name in ("FIRST_LEVELS", "SEED_LEVELS", "GRADUAL_LEVELS", "FLOOR_LEVELS"):
        monkeypatch.setattr(table1, name, (0.98,))
    monkeypatch.setattr(table1, "OTHER_LEVELS", (0.9,))
    monkeypatch.setattr(table1, "SINGLE_LEVELS", (0.9,))
    monkeypatch.setattr(table1, "INITIAL_LEVELS", (0.9,))
    arguments = (
        f"--data D --only 60 --network tiny --table2-networks other --batch 20 --epochs 1 "
        f"--finetune 1 --search-epochs 1 --search-finetune 1 --slots 2 --table2-slots 1 "
        f"--seeds 0 1 --state {tmp_path / 'state'} --out {tmp_path / 'out'}"
    )
    return arguments.split()


def test_a_session_and_its_page(
    session: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gpu_session.main(arguments=[*session, "--measure"])
    first = capsys.readouterr().out
    assert "chosen on held-out images" in first
    assert "side by side" in first
    names = {path.name for path in (tmp_path / "out").glob("*")}
    assert names == {
        "recipe_tiny_seed0.json",
        "table1_tiny_seed0.json",
        "table1_tiny_seed1.json",
        "table2_other_seed0.json",
    }
    found = record.load("table1_tiny_seed0", folder=tmp_path / "out")
    assert found["commit"] == "0123456789abcdef"
    assert str(tmp_path) not in json.dumps(found)
    runs = {(run["label"], run["level"]): run for run in found["results"]["runs"] if run["parent"]}
    assert runs["magnitude", 0.98]["sparsity"] == pytest.approx(0.98, abs=1e-4)
    assert len(runs["magnitude", 0.98]["zeros"]) == len(found["results"]["layers"])

    # Nothing is done twice, and what was chosen stays chosen.
    lines = read_lines(tmp_path / "state" / "runs.jsonl")
    gpu_session.main(arguments=session)
    again = read_lines(tmp_path / "state" / "runs.jsonl")
    assert again[: len(lines)] == lines
    assert [next(iter(line)) for line in again[len(lines) :]] == ["session", "said", "said"]
    gpu_session.main(arguments=[*session, "--dry-run"])
    assert ", 0 of them left" in capsys.readouterr().out

    report.report_cifar_figure.draw(tmp_path / "out", tmp_path / "figures")
    assert (tmp_path / "figures" / "cifar_vgg16.png").stat().st_size < 300_000
    page = report.page(tmp_path / "out")
    chosen = json.loads((tmp_path / "state" / "choice.json").read_text())["recipe"]
    assert f"**{chosen}** (chosen)" in page
    assert "– in the paper" in page
    assert "(2)" in page  # two seeds
    assert "**Not run**" in page
    assert "seed 2" in page
    assert f"{runs['random', 0.98]['accuracy']:.2f}" in page


def test_the_last_networks_wait_and_records_are_gone_on_from(
    session: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    late = ["--last", "other", "--last-slots", "2", "--seeds", "0"]
    gpu_session.main(arguments=[*session, *late])
    said = capsys.readouterr().out
    assert said.count("2 networks ready") == 2
    assert "side by side" not in said
    names = [each["name"] for each in read_lines(tmp_path / "state" / "runs.jsonl")
             if "name" in each]  # fmt: skip
    assert {name.split()[0] for name in names[-10:]} == {"other"}
    assert not any(name.startswith("other") for name in names[:10])

    # The state is gone, the records are there: only what is new runs, and nothing is lost.
    before = record.load("table1_tiny_seed0", folder=tmp_path / "out")
    fresh = ["--state", str(tmp_path / "new"), "--choice", str(tmp_path / "state" / "choice.json")]
    gpu_session.main(arguments=[*session, *late, *fresh])
    assert "networks ready" not in capsys.readouterr().out
    assert record.load("table1_tiny_seed0", folder=tmp_path / "out") == before
    gpu_session.main(arguments=[*session, *late, *fresh, "--seeds", "0", "1", "--journal-only"])
    added = read_lines(tmp_path / "new" / "runs.jsonl")
    assert {each["job"]["seed"] for each in added if "job" in each} == {1}

    # A journal that is merged leaves what the records had; a fresh session does not.
    lines = [json.dumps(each) for each in added]
    first = next(each for each in before["results"]["runs"] if each["label"] == "magnitude")
    again = {"name": first["name"], "accuracy": 1.0, "accuracies": [1.0], "seconds": 0.0}
    job = next(
        each["job"]
        for each in read_lines(tmp_path / "state" / "runs.jsonl")
        if each.get("name") == first["name"]
    )
    zeros = dict(zip(before["results"]["layers"], first["zeros"], strict=True))
    (tmp_path / "more.jsonl").write_text(
        "\n".join([*lines, json.dumps({**again, "job": job, "zeros": zeros})])
    )
    with pytest.MonkeyPatch.context() as patch:
        out = str(tmp_path / "out")
        patch.setattr("sys.argv", ["runs", str(tmp_path / "more.jsonl"), "--out", out])
        runs.main()
    after = record.load("table1_tiny_seed0", folder=tmp_path / "out")["results"]
    changed = [a["name"] for a, b in zip(after["runs"], before["results"]["runs"], strict=True)
               if a["accuracy"] != b["accuracy"]]  # fmt: skip
    assert changed == [first["name"]]
    assert len(after["sessions"]) == 2
    assert (tmp_path / "out" / "table1_tiny_seed1.json").exists()


EARLY, SECOND, RIVAL = "GSP 0.9, cut at 50 %", "GSP 0.8, cut at 70 %", "gradual magnitude, to 50 %"


def test_a_search_among_a_few_and_further_rows(
    session: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = ["--tables", "recipe", "table1", "--search-labels", EARLY, "magnitude"]
    few += ["--search-levels", "0.8", "0.95", "--recipes", SECOND, "--rivals", RIVAL]
    gpu_session.main(arguments=[*session, *few, "--dry-run"])
    listed = capsys.readouterr().out
    assert " search 1+1 " in listed
    gpu_session.main(arguments=[*session, *few])
    found = record.load("recipe_tiny_seed0", folder=tmp_path / "out")["results"]["runs"]
    leaves = [(run["label"], run["level"]) for run in found if run["parent"]]
    assert sorted(leaves) == [(EARLY, 0.8), (EARLY, 0.95), ("magnitude", 0.8), ("magnitude", 0.95)]
    choice = json.loads((tmp_path / "state" / "choice.json").read_text())
    assert choice["recipe"] == EARLY, "it is the only recipe"
    assert {label for label, _ in choice["ranking"]} == {EARLY, "magnitude"}
    # What the dry run lists is what ran; it does not know the choice.
    names = {each["name"] for each in read_lines(tmp_path / "state" / "runs.jsonl")
             if "name" in each}  # fmt: skip
    mine = {name for name in names if EARLY in name or "search" in name}
    assert {name for name in names - mine if f" {name}: " not in listed} == set()
    assert len(mine) == sum(" search " in text for text in listed.splitlines()[:-1]) + 8

    page = report.page(tmp_path / "out")
    rows = [text.split("|")[1].strip() for text in page.splitlines() if text.startswith("| ")]
    for seed in (0, 1):
        table = record.load(f"table1_tiny_seed{seed}", folder=tmp_path / "out")["results"]["runs"]
        labels = {run["label"] for run in table if run["parent"]}
        assert {EARLY, SECOND, RIVAL} <= labels
        assert labels - {EARLY} <= set(rows)
        levels = {run["level"] for run in table if run["parent"] and run["label"] == SECOND}
        assert levels == ({0.98} if seed else {0.9, 0.98})
        assert [r["level"] for r in table if r["parent"] and r["label"] == RIVAL] == [0.98]
    assert f"**{EARLY}** (chosen)" in rows
    assert "Not finished" not in page


def test_the_order_of_a_search_and_of_further_rows(tmp_path: Path) -> None:
    few = ["--search-labels", EARLY, "magnitude", "GSP 0.8", "--recipes", SECOND, "--rivals", RIVAL]
    plan = gpu_session.Plan(gpu_session.options_of(["recipe"], [*few, "--state", str(tmp_path)]), 0)
    order = [job.label for job in sorted(plan.search, key=lambda job: job.priority) if job.parent]
    assert list(dict.fromkeys(order)) == [EARLY, "magnitude", "GSP 0.8"]
    assert {job.level for job in plan.search if job.parent} == set(recipe.LEVELS)
    assert plan.extras == []
    jobs = plan.table1(Choice(recipe="GSP 0.9"))
    chosen = [job for job in jobs if job.label == "GSP 0.9" and job.priority[0] < 9]
    last = max(job.priority for job in chosen)
    for label in (SECOND, RIVAL):
        further = [job for job in jobs if job.label == label and job.parent]
        assert {job.seed for job in further} == {job.seed for job in chosen} == {0, 1, 2}
        assert last < min(job.priority for job in further)
        assert max(job.priority for job in further) < (6, 0)
    assert {job.level for job in jobs if job.label == RIVAL and job.parent} == set(
        table1.SEED_LEVELS
    )
    assert {
        job.level for job in jobs if job.label == SECOND and not job.seed and job.parent
    } == set(table1.LEVELS)
    # The chosen one asked for again is no second row.
    twice = table1.jobs(SETTING, [0, 1, 2], Choice(recipe="GSP 0.9"), recipes=["GSP 0.9"])
    assert {job.name for job in twice} == {
        job.name for job in table1.jobs(SETTING, [0, 1, 2], Choice(recipe="GSP 0.9"))
    }
    with pytest.raises(SystemExit):
        gpu_session.options_of(["recipe"], ["--search-labels", "GSP 0.99"])


def test_a_budget_that_is_used_up(session: list[str], tmp_path: Path) -> None:
    gpu_session.main(arguments=[*session, "--budget-seconds", "0"])
    assert not (tmp_path / "state" / "choice.json").exists()
    assert not list((tmp_path / "out").glob("*.json"))


def test_a_journal_from_a_machine_that_is_gone(
    session: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu_session.main(arguments=[*session, "--journal-only", "--tables", "recipe", "table2"])
    assert not (tmp_path / "out").exists()
    names = {path.name for path in (tmp_path / "state").iterdir()}
    assert names == {"runs.jsonl", "choice.json"}
    monkeypatch.setenv("GROUPSPARSE_COMMIT", "another")
    journal = str(tmp_path / "state" / "runs.jsonl")
    monkeypatch.setattr("sys.argv", ["runs", journal, "--out", str(tmp_path / "records")])
    runs.main()
    found = record.load("table2_other_seed0", folder=tmp_path / "records")
    assert found["commit"] == "0123456789abcdef"
    assert found["parameters"]["options"]["epochs"] == 1
    assert found["parameters"]["choice"]["recipe"] in RECIPES
    # The records written on the spot say the same.
    monkeypatch.setenv("GROUPSPARSE_COMMIT", "later")
    gpu_session.main(arguments=[*session, "--tables", "table1", "--seeds", "0"])
    assert record.load("table1_tiny_seed0", folder=tmp_path / "out")["commit"] == "later"
    both = record.load("table2_other_seed0", folder=tmp_path / "out")
    assert both["commit"] == "0123456789abcdef"
    assert both["results"] == found["results"]


def test_a_dry_run_of_everything(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_session, "load_cifar10", lambda folders: pytest.fail("needs no data"))
    gpu_session.main(arguments=["--dry-run", "--state", str(tmp_path), "--seeds", "0", "1", "2"])
    text = capsys.readouterr().out
    assert "model-epochs" in text.splitlines()[-1]
    for label in EVERYTHING:
        assert label in text


def test_a_record_with_its_own_table(tmp_path: Path) -> None:
    shown = {
        "title": "Something else",
        "note": "About it.",
        "table": {"columns": ["method", "figure"], "rows": [["ours", "1.25"]]},
        "figures": ["figures/else.png"],
    }
    record.save("else", shown, seconds=1.0, folder=tmp_path)
    page = report.page(tmp_path)
    assert "## Something else" in page
    assert "| ours   |   1.25 |" in page
    assert "](figures/else.png)" in page
    assert "`records/else.json`" in page


def test_without_git_the_commit_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GROUPSPARSE_COMMIT", "feed")
    monkeypatch.setenv("PATH", "")
    assert record.provenance()["commit"] == "feed"
    monkeypatch.delenv("GROUPSPARSE_COMMIT")
    assert record.provenance()["commit"] is None


def test_sheets_in_several_folders(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="needs pillow")
    numpy = pytest.importorskip("numpy")
    one, two = tmp_path / "one", tmp_path / "two" / "cifar10"
    one.mkdir()
    two.mkdir(parents=True)
    shade = numpy.zeros((3200, 3200, 3), dtype=numpy.uint8)
    shade[:32, 32:64, 0] = 7  # the second image, its red channel
    for number, name in enumerate(cifar.SHEETS):
        image.fromarray(shade).save((one if number % 2 else two) / f"{name}.webp", lossless=True)
    labels = {"train": numpy.zeros(50_000, numpy.uint8), "test": numpy.ones(10_000, numpy.uint8)}
    numpy.savez(one / "labels.npz", **labels)
    train, test = cifar.load_cifar10([tmp_path / "two", one])
    assert (len(train), len(test)) == (50_000, 10_000)
    assert train.pixels[1, 0].unique().tolist() == [7]
    assert int(train.pixels[1, 1:].sum()) == int(train.pixels[0].sum()) == 0
    with pytest.raises(SystemExit, match=r"no train_1\.webp"):
        cifar.load_cifar10(tmp_path)
