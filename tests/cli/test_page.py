"""The commands on the page about the command line run, and print what the page says."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from threadpoolctl import threadpool_limits

from tests.cli.examples import Ran

PAGE = Path(__file__).resolve().parents[2] / "docs" / "command_line.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
# They install something, take long, or say what this machine is like.
LEFT_OUT = ("groupsparse --install-completion", "groupsparse bench", "groupsparse demo")


def steps() -> Iterator[tuple[str, str, str]]:
    """Every block to run: its language, its text, and the output that the page shows below it."""
    blocks = [(found[1], found[2]) for found in BLOCK.finditer(PAGE.read_text(encoding="utf-8"))]
    for (language, text), (below, shown) in zip(blocks, [*blocks[1:], ("", "")], strict=True):
        if language == "sh" or (language == "python" and not text.startswith("# not run")):
            yield language, text, shown if below == "text" else ""


def write_what_the_page_names() -> None:
    """Files of the reader's own: a sharded checkpoint, images, a table."""
    rng = np.random.default_rng(0)
    Path("gpt").mkdir()
    parts = {"transformer.wte.weight": "a", "transformer.wpe.weight": "a", "lm_head.weight": "b"}
    for file in "ab":
        held = {name: torch.randn(30, 20) for name, place in parts.items() if place == file}
        save_file(held, f"gpt/{file}.safetensors")
    index = {"weight_map": {name: f"{file}.safetensors" for name, file in parts.items()}}
    Path("gpt/model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    Path("faces").mkdir()
    for i in range(12):
        Image.fromarray(rng.integers(0, 256, (9, 8), dtype=np.uint8)).save(f"faces/{i}.png")
    np.savetxt("samples_in_columns.csv", rng.random((40, 25)), delimiter=",")


def words(output: str) -> list[str]:
    """What two outputs must share: all but times, and how far an iteration came."""
    lines = (re.sub(r"after \d+ iterations, [\d.]+ s", "", line) for line in output.splitlines())
    return [word.replace(",", "") for line in lines for word in line.split()]


def same(one: str, other: str) -> bool:
    """Whether words are equal, or numbers nearly so: BLAS differs between machines."""
    try:
        a, b = (float(word.rstrip("%")) for word in (one, other))
    except ValueError:
        return one == other
    return a == pytest.approx(b, rel=5e-3)


def test_the_page(run: Callable[..., Ran], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_what_the_page_names()
    commands = 0
    for language, text, shown in steps():
        if language == "python":
            exec(compile(text, PAGE.name, "exec"), {})
            continue
        for line in text.splitlines():
            if not line.startswith("groupsparse") or line.startswith(LEFT_OUT):
                continue
            with threadpool_limits(1):  # small matrices: threads would wait for each other
                ran = run(*shlex.split(line)[1:])
            commands += 1
            assert (ran.code == 0) is ("missing" not in line), f"{line}\n{ran.err}"
            if shown:
                found, expected = words(ran.out + ran.err), words(shown)
                pairs = zip(found, expected, strict=False)
                wrong = [pair for pair in pairs if not same(*pair)]
                assert (len(found), wrong) == (len(expected), []), f"{line}\n{ran.out}"
    assert commands >= 15
