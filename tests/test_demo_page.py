"""The demo's page: complete, self-contained, and right in a real browser, on a phone too."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html import unescape
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import groupsparse as gs

NEEDED = ("sklearn", "torch", "safetensors", "matplotlib")
MISSING = [name for name in NEEDED if find_spec(name) is None]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"the demo needs {', '.join(MISSING)}")

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER = next((path for name in BROWSERS if (path := shutil.which(name))), None)
PHONE, DESKTOP = 390, 1280
PICTURES = {
    "projection",
    "sparsity",
    "multiplier",
    "parts-no-target",
    "parts-every-part-alike",
    "parts-average-of-all-parts",
    "rebuilt",
    "errors",
    "accuracy-cut",
    "accuracy-repaired",
    "layers",
}
# Written into a copy of the page. It runs in frames as wide as the screens that are tested, because
# a browser's own window has a least width; each frame tells the page around it what it saw.
PROBE = """
<script>
addEventListener("load", () => {
  const images = [...document.images];
  parent.postMessage({
    width: innerWidth,
    scrolls: document.documentElement.scrollWidth,
    images: images.length,
    loaded: images.filter(image => image.complete && image.naturalWidth > 0).length,
    squeezed: images.filter(image => image.clientWidth < 200).length,
    outside: images.filter(image => image.getBoundingClientRect().right > innerWidth).length,
    ground: getComputedStyle(document.body).backgroundColor,
    ink: getComputedStyle(document.body).color,
    letters: parseFloat(getComputedStyle(document.querySelector("p")).fontSize),
    requests: performance.getEntriesByType("resource")
      .map(entry => entry.name).filter(name => !name.startsWith("data:")),
  }, "*");
});
</script>
"""
AROUND = """
<body><pre id="probe"></pre>
<script>
const seen = {};
addEventListener("message", event => {
  seen[event.data.width] = event.data;
  document.getElementById("probe").textContent = JSON.stringify(seen);
});
</script>
<iframe src="probed.html" width="390" height="844" style="border: 0"></iframe>
<iframe src="probed.html" width="1280" height="900" style="border: 0"></iframe>
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a demo that trains hardly at all."""
    from groupsparse.cli.demo import build

    return build(tmp_path_factory.mktemp("demo") / "new folder", quick=True)


@pytest.fixture(scope="module")
def text(report: Path) -> str:
    return report.read_text(encoding="utf-8")


def test_the_page_needs_nothing_but_itself(text: str) -> None:
    assert "<script" not in text
    assert "<link" not in text
    assert "url(" not in text
    assert "@import" not in text
    assert set(re.findall(r'(?:src|href)="(data:image/png|#|[^"]*)', text)) == {
        "data:image/png",
        "#",
    }
    assert len(text) < 2_000_000
    assert '<meta name="viewport" content="width=device-width, initial-scale=1">' in text


def test_every_picture_is_on_the_page_and_in_the_folder(text: str, report: Path) -> None:
    assert {path.stem for path in report.parent.glob("*.png")} == PICTURES
    assert text.count('src="data:image/png;base64,') == len(PICTURES)
    alternatives = re.findall(r'alt="([^"]+)"', text)
    assert len(set(alternatives)) == len(PICTURES), "each says what it shows"


def test_cards_lead_to_their_parts(text: str) -> None:
    assert re.findall(r'href="#(\w+)"', text) == ["projection", "factorisation", "pruning"]
    assert re.findall(r'section id="(\w+)"', text)[:3] == ["projection", "factorisation", "pruning"]


def test_tables_say_what_was_measured(text: str) -> None:
    plain = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", text))
    assert "Four lists of different lengths were asked for an average of 0.8" in plain
    assert re.search(r"average reached 0\.8000000000 ", plain)
    assert re.search(r"every part alike [\d.]+ % 0\.8500 0\.85 to 0\.85", plain)
    assert re.search(r"average of all parts [\d.]+ % 0\.8500 0\.\d\d to", plain)
    for method in ("induced GSP", "single-shot GSP", "magnitude", "random"):
        assert re.search(rf"{method} \d+\.\d ± 0\.0 \d+\.\d ± 0\.0", plain), method


def test_the_lines_to_paste_run(text: str) -> None:
    (lines,) = re.findall(r"<pre[^>]*><code>(.*?)</code></pre>", text, flags=re.DOTALL)
    namespace: dict[str, Any] = {}
    exec(compile(unescape(lines), "page", "exec"), namespace)
    assert gs.average_hoyer(namespace["sparse"]) == pytest.approx(0.8)


def test_pruned_networks_have_the_zeros_that_the_page_says() -> None:
    from groupsparse.cli._demo import pruning

    effort = pruning.Effort(seeds=(5,), epochs=1, repair=1, sparsities=(0.9,))
    found = pruning.measure(effort)
    assert set(found.repaired) == set(pruning.METHODS)
    for report in found.reports.values():
        assert report.total.sparsity == pytest.approx(0.9, abs=1e-4)
    assert len(found.dense) == 1
    assert 0.0 < found.dense[0] <= 100.0


@pytest.fixture
def two_threads() -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
def test_the_demo_leaves_torch_as_it_was() -> None:
    import torch

    from groupsparse.cli._demo import pruning

    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    pruning.measure(pruning.Effort(seeds=(0,), epochs=1, repair=1, sparsities=(0.9,)))
    assert torch.equal(torch.rand(2), expected)
    assert torch.get_num_threads() == 2


def test_marks_and_nothing_else_become_markup() -> None:
    from groupsparse.cli._demo.page import inline

    assert inline("a < b & `x*y` **c** 5 %") == (
        "a &lt; b &amp; <code>x*y</code> <strong>c</strong> 5\N{NO-BREAK SPACE}%"
    )


def test_missing_extras_are_named_together_before_anything_runs(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['matplotlib'] = sys.modules['sklearn'] = None\n"
        "from pathlib import Path\n"
        "from groupsparse.cli.demo import demo\n"
        f"demo(Path({str(tmp_path / 'demo')!r}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stderr.splitlines()[-1] == (
        "groupsparse.errors.MissingExtra: the demo also needs scikit-learn, matplotlib: "
        "pip install 'groupsparse[sklearn,plot]'"
    )
    assert done.stdout == ""
    assert not (tmp_path / "demo").exists()


def look(page: str, folder: Path, *options: str) -> dict[int, Any]:
    """Open a page in a browser without a window; return what the probe saw on either screen."""
    if BROWSER is None:
        pytest.skip(f"no browser to open the page in: install one of {', '.join(BROWSERS)}")
    (folder / "probed.html").write_text(page.replace("</body>", f"{PROBE}</body>"), "utf-8")
    (folder / "around.html").write_text(AROUND, "utf-8")
    command = [
        BROWSER,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",  # containers give it too little
        f"--user-data-dir={folder / 'profile'}",
        "--virtual-time-budget=5000",
        *options,
        "--dump-dom",
        (folder / "around.html").as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    seen = re.search(r'<pre id="probe">(.+?)</pre>', done.stdout, flags=re.DOTALL)
    assert seen is not None, f"the page did not load: {done.stderr[-2000:]}"
    found = {int(width): what for width, what in json.loads(unescape(seen[1])).items()}
    assert set(found) == {PHONE, DESKTOP}
    return found


def brightness(color: str) -> float:
    """The average of the three numbers in ``rgb(1, 2, 3)``."""
    numbers = [int(number) for number in re.findall(r"\d+", color)[:3]]
    return sum(numbers) / 3


@pytest.fixture(scope="module")
def seen(text: str, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Any]:
    return look(text, tmp_path_factory.mktemp("light"), "--blink-settings=preferredColorScheme=1")


@pytest.mark.parametrize("width", [PHONE, DESKTOP], ids=["phone", "desktop"])
def test_a_browser_shows_everything(seen: dict[int, Any], width: int) -> None:
    found = seen[width]
    assert found["images"] == found["loaded"] == len(PICTURES)
    assert found["scrolls"] <= width, "nothing sticks out to the right"
    assert found["outside"] == found["squeezed"] == 0
    assert found["letters"] >= 16
    assert found["requests"] == []


def test_light_and_dark(seen: dict[int, Any], text: str, tmp_path: Path) -> None:
    dark = look(text, tmp_path, "--blink-settings=preferredColorScheme=0")[PHONE]
    light = seen[PHONE]
    assert brightness(dark["ink"]) - brightness(dark["ground"]) > 150
    assert brightness(light["ground"]) - brightness(light["ink"]) > 150


def test_the_probe_sees_what_is_wrong(tmp_path: Path) -> None:
    broken = """<p>text</p><img src="data:image/png;base64,AAAA"><img src="https://localhost/x.png">
    <div style="width: 800px">wide</div></body>"""
    found = look(broken, tmp_path)[PHONE]
    assert found["scrolls"] > PHONE
    assert (found["images"], found["loaded"]) == (2, 0)
    assert found["requests"] == ["https://localhost/x.png"]
