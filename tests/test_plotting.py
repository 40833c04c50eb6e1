"""What the pictures show: the data of what was drawn, not only that something was."""

from __future__ import annotations

import io
import subprocess
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import groupsparse as gs

matplotlib = pytest.importorskip("matplotlib", reason="pictures need matplotlib, extra [plot]")

from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402

from groupsparse import plotting  # noqa: E402
from groupsparse.plotting.canvas import COLORS, LINES, MARKERS  # noqa: E402

RAGGED = {"short": np.array([3.0, -2.0, 0.1]), "long": np.array([1.0, 2.0, -0.3, 0.2, 0.0])}


def model(errors: list[float], seconds: list[float]) -> SimpleNamespace:
    """Whatever has these two curves can be drawn."""
    return SimpleNamespace(loss_curve_=np.array(errors), time_curve_=np.array(seconds))


@dataclass
class Row:
    name: str
    parameters: int
    sparsity: float
    hoyer: float


def report(*rows: Row, total: Row) -> SimpleNamespace:
    return SimpleNamespace(rows=rows, total=total)


FIRST = report(Row("conv", 90, 0.5, 0.6), Row("head", 10, 0.1, 0.2), total=Row("", 100, 0.46, 0.5))
SECOND = report(Row("conv", 90, 0.4, 0.7), Row("head", 10, 1.0, 0.9), total=Row("", 100, 0.46, 0.8))

DRAWINGS: dict[str, Any] = {
    "basis_images": lambda ax: plotting.basis_images(np.eye(6), (2, 3), ax=ax),
    "error_curves": lambda ax: plotting.error_curves(model([0.5, 0.4], [1, 2]), ax=ax),
    "sparsity_before_after": lambda ax: plotting.sparsity_before_after(
        RAGGED, gs.project(RAGGED, 0.8), ax=ax
    ),
    "multiplier_curve": lambda ax: plotting.multiplier_curve(RAGGED, 0.8, points=6, ax=ax),
    "layer_sparsity": lambda ax: plotting.layer_sparsity({"a": FIRST, "b": SECOND}, ax=ax),
    "accuracy_curves": lambda ax: plotting.accuracy_curves({"ours": {0.9: [97, 99]}}, ax=ax),
}


def test_every_public_drawing_is_tested_below() -> None:
    assert set(DRAWINGS) == set(plotting.__all__)


@pytest.mark.parametrize("name", DRAWINGS)
def test_it_draws_on_the_given_axes_and_returns_them(name: str) -> None:
    left, right = Figure().subplots(1, 2)
    assert DRAWINGS[name](right) is right
    assert right.has_data()
    assert not left.has_data()
    assert left.figure.legends == [], "a legend of the whole figure is not ours to make"


@pytest.mark.parametrize("name", DRAWINGS)
def test_without_axes_there_is_a_figure_that_can_be_saved(name: str) -> None:
    file = io.BytesIO()
    DRAWINGS[name](None).figure.savefig(file, format="png")
    assert file.getvalue().startswith(b"\x89PNG")


def test_nothing_global_changes_and_pyplot_is_not_loaded(tmp_path: Path) -> None:
    program = """
import sys, numpy, matplotlib
before = matplotlib.rcParams.copy()  # reading them one by one would load pyplot
from groupsparse import plotting
plotting.basis_images(numpy.eye(4), (2, 2)).figure.savefig(sys.argv[1])
plotting.multiplier_curve([[3.0, 2.0, 0.1]], 0.8)
assert "matplotlib.pyplot" not in sys.modules
assert dict(matplotlib.rcParams.copy()) == dict(before)
"""
    picture = tmp_path / "parts.png"
    done = subprocess.run([sys.executable, "-c", program, picture], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert picture.stat().st_size > 0


def test_the_module_itself_needs_no_matplotlib() -> None:
    program = (
        "import sys; sys.modules['matplotlib'] = sys.modules['matplotlib.figure'] = None\n"
        "from groupsparse import plotting; plotting.error_curves([[0.5]])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "MissingExtra: matplotlib is not installed" in done.stderr
    assert "pip install 'groupsparse[plot]'" in done.stderr


def test_curves_differ_in_more_than_colour() -> None:
    looks = list(zip(COLORS, MARKERS, strict=True))
    assert len(set(looks)) == len({color for color, _ in looks}) == len({m for _, m in looks})
    assert len(set(LINES)) == len(LINES)


# basis_images


def test_parts_lie_in_reading_order_each_in_its_own_scale() -> None:
    parts = np.array([[1.0, 0, 0, 0], [0, 4.0, 2.0, 0], [0, 0, 0, 8.0]])
    page = plotting.basis_images(parts, (2, 2), columns=2).images[0].get_array()
    np.testing.assert_array_equal(page[:2, :2], [[1, 0], [0, 0]])
    np.testing.assert_array_equal(page[:2, 3:], [[0, 1], [0.5, 0]])
    np.testing.assert_array_equal(page[3:, :2], [[0, 0], [0, 1]])
    assert page.mask[2].all(), "between the rows there is nothing"
    assert page.mask[3:, 3:].all(), "and nothing where no part is left"


def test_parts_in_one_scale() -> None:
    ax = plotting.basis_images(np.diag([1.0, 4.0]), (1, 2), columns=1, scale="all")
    page = ax.images[0].get_array()
    np.testing.assert_array_equal(page.compressed(), [0.25, 0, 0, 1])


@pytest.mark.parametrize(("sign", "least", "colors"), [(1, 0, "gray_r"), (-1, -1, "PuOr_r")])
def test_signs_are_told_apart_by_colours(sign: int, least: float, colors: str) -> None:
    image = plotting.basis_images(sign * np.eye(4), (2, 2)).images[0]
    assert image.get_clim() == (least, 1)
    assert image.get_cmap().name == colors
    assert image.get_array().compressed().sum() == 4 * sign


def test_labels_stand_over_their_parts() -> None:
    ax = plotting.basis_images(np.eye(9), (3, 3), labels=[str(place) for place in range(9)])
    page = ax.images[0].get_array()
    for place, text in enumerate(ax.texts):
        x, y = text.get_position()
        assert text.get_text() == str(place)
        top = round(y + 0.8)
        part = page[top : top + 3, round(x) - 1 : round(x) + 2]
        assert part.ravel()[place] == 1 == part.sum()


def test_lines_stand_below_each_other_as_strips() -> None:
    parts = np.random.default_rng(0).random((7, 40))
    ax = plotting.basis_images(parts, (1, 40))
    page = ax.images[0].get_array()
    assert page.shape == (13, 40)
    np.testing.assert_array_equal(page[::2], parts / parts.max(axis=1, keepdims=True))
    assert ax.get_aspect() == "auto"
    box = ax.get_position()
    pixel = ax.figure.get_size_inches()[1] * box.height / page.shape[0]
    assert pixel > 0.1, "inches: it can be seen"


def test_every_part_has_its_whole_frame() -> None:
    canvas = FigureCanvasAgg(plotting.basis_images(np.zeros((1, 10**6)), (1000, 1000)).figure)
    canvas.draw()
    ink = 255.0 - np.asarray(canvas.buffer_rgba())[..., 0]
    for axis in (0, 1):
        first, second = np.array_split(ink.sum(axis=axis), 2)
        assert first.sum() == pytest.approx(second.sum(), rel=0.05)


def test_more_columns_than_parts_leave_no_room_empty() -> None:
    page = plotting.basis_images(np.eye(4), (2, 2), columns=9).images[0].get_array()
    assert page.shape == (2, 4 * 2 + 3)


# error_curves


def labels_of(axis: Any) -> list[str]:
    """The labels that are seen."""
    axis.figure.canvas.draw()
    low, high = sorted(axis.get_view_interval())
    ticks = zip(axis.get_ticklocs(), axis.get_ticklabels(), strict=True)
    return [label.get_text() for place, label in ticks if low <= place <= high]


def test_errors_are_readable_over_a_little_and_over_many_powers_of_ten() -> None:
    near = plotting.error_curves(np.array([0.7, 0.3, 0.24]))
    assert labels_of(near.yaxis) == ["0.25", "0.3", "0.4", "0.5", "0.7"]
    assert labels_of(near.xaxis) == ["1", "2", "3"]
    far = plotting.error_curves({"exact": 10.0 ** -np.arange(9)})
    assert 3 <= len(labels_of(far.yaxis)) <= 10


def test_errors_against_iterations_and_time() -> None:
    models = {"one": model([0.5, 0.3, 0.2], [0.1, 0.2, 0.4]), "two": model([0.6], [0.5])}
    ax = plotting.error_curves(models)
    assert [line.get_label() for line in ax.lines] == ["one", "two"]
    np.testing.assert_array_equal(ax.lines[0].get_xydata(), [[1, 0.5], [2, 0.3], [3, 0.2]])
    timed = plotting.error_curves(models, against="time")
    np.testing.assert_array_equal(timed.lines[0].get_xdata(), [0.1, 0.2, 0.4])
    assert (ax.get_xlabel(), timed.get_xlabel()) == ("iteration", "seconds")
    pair = plotting.error_curves([([1.0, 2.0], [0.9, 0.8])], against="time")
    np.testing.assert_array_equal(pair.lines[0].get_xydata(), [[1, 0.9], [2, 0.8]])


# sparsity_before_after


def test_both_measures_of_each_vector() -> None:
    after = gs.project(RAGGED, 0.8)
    ax = plotting.sparsity_before_after(RAGGED, after)
    new, old = ([bar.get_height() for bar in bars] for bars in ax.containers)
    assert old == [0.0, 0.2]
    assert new == [gs.zero_fraction(vector) for vector in after.values()]
    first, last = (dots.get_offsets()[:, 1] for dots in ax.collections[-2:])
    np.testing.assert_allclose(first, [gs.hoyer(vector) for vector in RAGGED.values()])
    np.testing.assert_allclose(last, [gs.hoyer(vector) for vector in after.values()])
    assert ax.lines[0].get_ydata()[0] == pytest.approx(0.8)


@pytest.mark.parametrize("axis", [-1, 0, (0, 2), None])
def test_vectors_of_an_array_along_any_axis(axis: Any) -> None:
    before = np.random.default_rng(0).standard_normal((3, 4, 5))
    after = gs.project(before, 0.7, axis=axis)
    ax = plotting.sparsity_before_after(before, after, axis=axis)
    drawn = ax.collections[-1].get_offsets()[:, 1]
    np.testing.assert_allclose(drawn, np.ravel(gs.hoyer(after, axis=axis)))


def test_tensors_are_measured_too() -> None:
    torch = pytest.importorskip("torch", reason="extra [torch]")
    before = torch.tensor([[3.0, 1.0, 0.5], [1.0, 2.0, 0.1]], requires_grad=True)
    ax = plotting.sparsity_before_after(before, gs.project(before, 0.7))
    assert ax.collections[-1].get_offsets()[:, 1].mean() == pytest.approx(0.7, abs=1e-6)


def overlaps(labels: Any) -> bool:
    """Whether any two texts of an axis cover each other."""
    boxes = [label.get_window_extent() for label in labels if label.get_text()]
    return any(one.overlaps(other) for one, other in pairwise(boxes))


def test_long_names_stand_upright() -> None:
    before = {f"layer{i}.convolution.weight": np.arange(1.0, 9) for i in range(9)}
    ax = plotting.sparsity_before_after(before, gs.project(before, 0.7))
    ax.figure.canvas.draw()
    assert not overlaps(ax.get_xticklabels())
    assert ax.get_window_extent().height > 0.4 * ax.figure.get_window_extent().height


# multiplier_curve


def test_the_curve_is_g_and_the_dot_its_root() -> None:
    ax = plotting.multiplier_curve(RAGGED, 0.8, points=40)
    curve, zero, root = ax.lines
    assert root.get_xdata()[0] == gs.solve(RAGGED, 0.8).multiplier
    assert root.get_ydata()[0] == pytest.approx(0.0, abs=1e-10)
    assert set(zero.get_ydata()) == {0.0}
    mu, g = curve.get_data()
    assert mu[0] == 0.0
    assert (np.diff(mu) >= 0).all()
    assert (np.diff(g) <= 1e-12).all()
    for price, value in zip(mu[::5], g[::5], strict=True):  # by hand, as the mathematics has it
        shrunk = [np.maximum(np.abs(c) - price / (np.sqrt(c.size) - 1), 0) for c in RAGGED.values()]
        assert value == pytest.approx(0.8 - gs.average_hoyer(shrunk), abs=1e-9)


def test_a_jump_is_drawn_as_one() -> None:
    ties = [[3.0, 3.0, 1.0, 0.1]]
    mu, g = plotting.multiplier_curve(ties, 0.7, points=40).lines[0].get_data()
    root = gs.solve(ties, 0.7).multiplier
    there = np.abs(mu - root) <= 1e-12 * root
    assert there.sum() > 10
    assert g[there].max() > 0.05
    assert g[there].min() < -0.05


def test_what_is_sparse_enough_has_its_root_at_zero() -> None:
    ax = plotting.multiplier_curve(RAGGED, 0.1, points=10)
    assert ax.lines[2].get_xdata()[0] == 0.0
    assert ax.lines[2].get_ydata()[0] == pytest.approx(0.1 - gs.average_hoyer(RAGGED))


# layer_sparsity


def test_layers_of_two_networks_side_by_side() -> None:
    ax = plotting.layer_sparsity({"a": FIRST, "b": SECOND})
    first, second = ([bar.get_width() for bar in bars] for bars in ax.containers)
    assert first == [0.5, 0.1, 0.46]
    assert second == [0.4, 1.0, 0.46]
    assert [float(x) for x in ax.collections[1].get_offsets()[:, 0]] == [0.7, 0.9, 0.8]
    names = [label.get_text().splitlines()[0] for label in ax.get_yticklabels()]
    assert names == ["conv", "head", "total"]
    for bars, dots in zip(ax.containers, ax.collections, strict=True):
        middles = [bar.get_y() + bar.get_height() / 2 for bar in bars]
        np.testing.assert_allclose(dots.get_offsets()[:, 1], middles)


def test_many_layers_fit_on_a_screen() -> None:
    rows = [Row(f"layer{i}.weight", 1000, 0.5, 0.6) for i in range(54)]
    ax = plotting.layer_sparsity(report(*rows, total=Row("", 54000, 0.5, 0.6)))
    ax.figure.canvas.draw()
    assert ax.figure.get_size_inches()[1] < 13
    assert not overlaps(ax.get_yticklabels())


# accuracy_curves


def test_many_levels_do_not_cover_each_other() -> None:
    levels = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.97, 0.98, 0.99, 0.995)
    ax = plotting.accuracy_curves({"ours": dict.fromkeys(levels, 90.0)})
    ax.figure.canvas.draw()
    assert not overlaps(ax.get_xticklabels())


def test_averages_and_bars_of_several_runs() -> None:
    results = {"ours": {0.99: [90, 94], 0.9: [97.0, 99.0]}, "theirs": {0.9: 95.0, 0.99: 80.0}}
    ax = plotting.accuracy_curves(results, dense=[99.0, 98.0])
    ours, theirs = ax.containers
    np.testing.assert_array_equal(ours.lines[0].get_xydata(), [[0.9, 98], [0.99, 92]])
    (bars,) = ours.lines[2]
    np.testing.assert_array_equal(bars.get_segments()[1], [[0.99, 90], [0.99, 94]])
    assert not theirs.has_yerr
    np.testing.assert_array_equal(theirs.lines[0].get_ydata(), [95, 80])
    assert ax.lines[-1].get_ydata()[0] == 98.5
    assert [label.get_text() for label in ax.get_xticklabels()] == ["90 %", "99 %"]
    assert ax.get_xscale() == "logit"
    assert plotting.accuracy_curves({"ours": {0.0: 99.0, 0.9: 98.0}}).get_xscale() == "linear"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: plotting.basis_images(np.eye(4), (2, 3)), r"components has shape \(4, 4\)"),
        (lambda: plotting.basis_images(np.eye(4), (2, 2), scale="one"), "scale is 'one'"),
        (lambda: plotting.basis_images(np.eye(4), (2, 2), labels=["a"]), "labels has 1 members"),
        (lambda: plotting.basis_images(np.eye(4), (2, 2), columns=0), "columns is 0"),
        (lambda: plotting.error_curves([[0.5]], against="steps"), "against is 'steps'"),
        (lambda: plotting.error_curves({"a": [0.5]}, against="time"), r"models\['a'\] has no time"),
        (lambda: plotting.error_curves({}), "models is empty"),
        (lambda: plotting.error_curves({"a": []}), r"models\['a'\] has no curve"),
        (lambda: plotting.sparsity_before_after([[1, 2]], [[1, 2, 3]]), "not the same vectors"),
        (lambda: plotting.sparsity_before_after([], []), "before is empty"),
        (lambda: plotting.layer_sparsity({}), "report is empty"),
        (
            lambda: plotting.layer_sparsity(
                {"a": FIRST, "b": report(Row("x", 1, 0, 0), total=Row("", 1, 0, 0))}
            ),
            "the report 'b' is of a network with other layers",
        ),
        (lambda: plotting.accuracy_curves({}), "results is empty"),
        (lambda: plotting.accuracy_curves({"a": {90: 1.0}}), r"the sparsities are \[90.0\]"),
        (lambda: plotting.accuracy_curves({"a": {0.9: []}}), r"results\['a'\]\[0.9\] is empty"),
    ],
)
def test_what_cannot_be_drawn_is_named(call: Any, message: str) -> None:
    with pytest.raises(gs.InvalidInput, match=message):
        call()
