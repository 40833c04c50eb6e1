"""What the page of the experiments says of a choice, from numbers made up for it."""

from __future__ import annotations

from experiments import recipe, report_cifar

CHOICE = recipe.Choice(recipe="GSP 0.8")


def test_a_rival_is_compared_over_the_seeds_that_both_ran_with() -> None:
    cells = {
        ("GSP 0.8", 0.98): {0: 90.0, 1: 91.0},
        ("magnitude", 0.98): {0: 10.0, 1: 10.0},
        ("gradual magnitude", 0.98): {1: 91.5, 2: 80.0},  # the best one, though not with seed 0
    }
    page = report_cifar._against(cells, CHOICE, (0.95, 0.98))
    [row] = [line for line in page.splitlines() if line.startswith("| 98 %")]
    assert [cell.strip() for cell in row.strip("|").split("|")] == [
        "98 %", "gradual magnitude", "91.50", "91.00", "-0.50",
    ]  # fmt: skip
    assert "95 %" not in page


def test_what_finished_after_the_choice_and_better_is_named() -> None:
    means = [(88.0, ["magnitude"]), (87.5, ["GSP 0.9"]), (87.0, ["GSP 0.8"])]
    assert "GSP 0.9 finished later, and better" in report_cifar._verdict(means, CHOICE)
    means[1] = (86.5, ["GSP 0.9"])
    said = report_cifar._verdict(means, CHOICE)
    assert "later" not in said
    assert "below the best rival" in said
