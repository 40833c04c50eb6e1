"""Render experiments/README.md: every table and figure from the records, the paper beside ours.

    python -m experiments.report

Nothing in the page is typed in: a row that has no record is listed as not run. A record whose
results hold ``title``, ``table`` (``columns`` and ``rows``) and, if wanted, ``note`` and
``figures`` (paths beside the page) gets a section of its own.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiments import (
    imagenet_report,
    nmf_cbcl,
    nmf_orl,
    nmf_scaling,
    nmf_synthetic,
    record,
    report_cifar,
    report_cifar_figure,
    report_cifar_table2,
)
from experiments.tables import table

HEAD = """# The paper's experiments, measured again

Made by `python -m experiments.report` from the JSON files in `records/`; each of them names its
commit, command, seed, versions and machine. Accuracies on CIFAR-10 are the mean of the last three
epochs, never the best one. Recipes were chosen on 5 000 images held out of the training set; the
test set was only used for Tables 1 and 2. *Zeros* are the fraction of exactly zero entries among
the parameters of convolutions and linear layers; *Hoyer* is the target of the projection. What all
of this means for a user is in `docs/choosing_a_method.md`."""

COMMANDS = (
    ("recipe search, Tables 1 and 2, in a time budget", "gpu_session --data DIR --seeds 0 1 2"),
    ("recipe search alone", "recipe --data DIR"),
    ("Table 1 (VGG-16, CIFAR-10)", "table1 --data DIR --seeds 0 1 2"),
    ("Table 2 (ResNet-56 and -110, CIFAR-10)", "table2 --data DIR"),
    ("Table 3 (cost of the projection)", "table3"),
    ("ResNet-50 on ImageNet", "imagenet --help"),
    ("sparse NMF", "nmf_synthetic"),
    ("", "nmf_cbcl --data DIR"),
    ("", "nmf_orl --data DIR"),
    ("", "nmf_scaling"),
)


def page(folder: Path = record.RECORDS) -> str:
    """The whole page."""
    found = report_cifar.records_in(folder)
    commands = [[what, f"`python -m experiments.{command}`"] for what, command in COMMANDS]
    sections = [
        HEAD,
        table(["what", "command"], commands),
        *report_cifar.sections(found),
        report_cifar_table2.section(found),
        *_general(found),
        *_factorisation(found, folder),
    ]
    return "\n\n".join(section.strip("\n") for section in sections) + "\n"


def _general(found: dict[str, Any]) -> list[str]:
    """Records that bring their own table."""
    sections = []
    for name, each in found.items():
        results = each["results"]
        if not isinstance(results, dict) or not isinstance(results.get("table"), dict):
            continue
        if name == imagenet_report.NAME:
            results = imagenet_report.refreshed(results)
        parts = [f"## {results.get('title', name)}"]
        if results.get("note"):
            parts.append(results["note"])
        shown = results["table"]
        parts.append(table(shown["columns"], shown["rows"]))
        parts += [f"![{results.get('title', name)}]({path})" for path in results.get("figures", ())]
        parts.append(source(name, each))
        sections.append("\n\n".join(parts))
    return sections


def source(name: str, each: dict[str, Any]) -> str:
    """Where a table comes from."""
    machine = each["machine"]
    place = machine.get("gpu") or f"{machine['processor']}, {machine['cores']} cores"
    return (
        f"Source: `records/{name}.json` ({report_cifar.commit_of(each)}, {place}, torch "
        f"{each['versions'].get('torch', '–')}, {each['seconds']:.0f} s)."
    )


def _factorisation(found: dict[str, Any], folder: Path) -> list[str]:
    """Sparse NMF and Table 3."""
    parts = ["## Sparse NMF and the projection"]
    prefixes: list[tuple[str, str, Callable[[Any], str]]] = [
        ("nmf_synthetic", "Synthetic data", nmf_synthetic.report),
        ("nmf_cbcl", "CBCL faces", nmf_cbcl.report),
    ]
    for prefix, title, render in prefixes:
        own = {
            name.removeprefix(f"{prefix}_"): each["results"]
            for name, each in found.items()
            if name.startswith(f"{prefix}_")
        }
        if own:
            parts.append(f"### {title}\n\n{render(own)}{_pictures(prefix)}")
    single: list[tuple[str, str, Callable[[Any], str]]] = [
        ("nmf_orl", "ORL faces, weighted projection", nmf_orl.report),
        ("nmf_scaling", "How a distributed iteration scales", nmf_scaling.report),
    ]
    for name, title, render in single:
        if name in found:
            parts.append(f"### {title}\n\n{render(found[name]['results'])}{_pictures(name)}")
    if (folder / "table3.md").exists():
        text = (folder / "table3.md").read_text("utf-8").strip("\n")
        parts.append(f"### Table 3: what the projection costs\n\n{text}")
    return ["\n\n".join(parts)] if len(parts) > 1 else []


def _pictures(prefix: str) -> str:
    figures = record.ROOT / "experiments" / "figures"
    paths = sorted(figures.glob(f"{prefix}*.png"))
    return "".join(f"\n\n![{path.stem}](figures/{path.name})" for path in paths)


def main() -> None:
    """Write the page and its pictures."""
    parser = argparse.ArgumentParser(prog="python -m experiments.report", description=__doc__)
    parser.add_argument("--records", type=Path, default=record.RECORDS)
    parser.add_argument("--out", type=Path, default=record.ROOT / "experiments" / "README.md")
    options = parser.parse_args()
    report_cifar_figure.draw(options.records, options.out.parent / "figures")
    options.out.write_text(page(options.records), encoding="utf-8")
    print(f"wrote {options.out.name}")


if __name__ == "__main__":
    main()
