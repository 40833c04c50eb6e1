"""Every Python block in README and in the pages of docs runs, and prints what the page says."""

from __future__ import annotations

import doctest
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    path
    for path in [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
    if "auto_examples" not in path.parts
]
# A block that cannot run here (it needs a cluster, say) starts with a line "# not run: reason".
BLOCK = re.compile(r"^```python\n(?!# not run: )(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


def run_page(text: str, name: str) -> None:
    """Run the blocks of a page one after the other, in one namespace, as a reader would."""
    namespace: dict[str, object] = {"__name__": name}
    for block in BLOCK.finditer(text):
        line = text.count("\n", 0, block.start(1))
        if ">>>" not in block[1]:
            exec(compile("\n" * line + block[1], name, "exec"), namespace)
            continue
        found = doctest.DocTestParser().get_doctest(block[1], namespace, name, name, line)
        runner = doctest.DebugRunner(optionflags=FLAGS)
        try:
            runner.run(found, clear_globs=False)
        except doctest.DocTestFailure as failure:
            where = f"{name}, line {line + failure.example.lineno + 1}"
            pytest.fail(f"{where}: expected\n{failure.example.want}got\n{failure.got}")
        namespace = found.globs


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Small networks are trained: threads would wait for each other, on a busy machine for long."""
    torch = pytest.importorskip("torch", reason="the pages need the extra groupsparse[torch]")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # what a page writes, it writes here
    run_page(page.read_text(encoding="utf-8"), page.name)


@pytest.mark.parametrize("wrong", ["```python\n>>> 1 + 1\n3\n```", "```python\n1 / 0\n```"])
def test_a_wrong_page_is_noticed(wrong: str) -> None:
    with pytest.raises((pytest.fail.Exception, ZeroDivisionError)):
        run_page(wrong, "wrong")
