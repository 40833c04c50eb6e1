"""The tables of the NMF experiments, made from the records that exist, for pages and reports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from experiments import nmf_cbcl, nmf_common, nmf_orl, nmf_scaling, nmf_synthetic, record

NOTES = {
    "nmf_synthetic": (
        "Figure 1, left: 100 × 100, r = 10, an exact factorisation exists, and the sparse "
        "algorithms are told its average Hoyer measure (ℓ₁ A-HALS its fraction of zeros). "
        "50 draws, 500 iterations from the same uniform starts."
    ),
    "nmf_cbcl": (
        "Figure 1, right: 2429 faces, r = 49, Hoyer 0.85, 10 starts, 500 iterations. The last "
        "rows are other people's programs on the same data. Seconds come from a machine that "
        "others used at the same time."
    ),
    "nmf_orl": (
        "Appendix C.2: target 0.60, then weights that grow towards the edges and a weighted "
        "target of 0.95. The paper does not say how many parts it used."
    ),
    "nmf_scaling": "A LocalCluster of single-threaded workers, r = 20, random data.",
}


def tables() -> list[dict[str, Any]]:
    """Return title, note, table and figures of every experiment that has a record."""
    found = []
    for name, title, rows in (
        ("nmf_synthetic", "Sparse NMF of synthetic data", nmf_synthetic.rows),
        ("nmf_cbcl", "Sparse NMF of the CBCL faces", nmf_cbcl.rows),
    ):
        results = nmf_common.records_of(name)
        if results:
            found.append(_entry(name, title, nmf_common.COLUMNS, rows(results)))
    for name, title, columns, rows in (
        ("nmf_orl", "ORL faces, plain and weighted", nmf_orl.COLUMNS, nmf_orl.rows),
        ("nmf_scaling", "Time of a distributed iteration", nmf_scaling.COLUMNS, nmf_scaling.rows),
    ):
        if (record.RECORDS / f"{name}.json").exists():
            found.append(_entry(name, title, columns, rows(record.load(name)["results"])))
    return found


def _entry(name: str, title: str, columns: list[str], rows: list[list[str]]) -> dict[str, Any]:
    figures = sorted(path.name for path in Path(nmf_common.FIGURES).glob(f"{name}*.png"))
    return {
        "title": title,
        "note": NOTES[name],
        "table": {"columns": columns, "rows": rows},
        "figures": [f"figures/{figure}" for figure in figures],
    }
