"""Formulas in pages become MathML; formulas and names in docstrings are left as they are typed.

Browsers draw MathML by themselves: no script, no network, no LaTeX.
"""

from __future__ import annotations

import re

from docutils import nodes
from docutils.parsers.rst.states import Inliner
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator


def inline(translator: HTML5Translator, node: nodes.math) -> None:
    """Write a formula within a sentence."""
    translator.body.append(tex2mathml(node.astext()))
    raise nodes.SkipNode


def block(translator: HTML5Translator, node: nodes.math_block) -> None:
    """Write a formula of its own."""
    translator.body.append(f'<div class="math">{tex2mathml(node.astext(), as_block=True)}</div>')
    raise nodes.SkipNode


def as_typed(
    inliner: Inliner, match: re.Match[str], line: int
) -> tuple[str, list[nodes.Node], str, list[nodes.system_message]]:
    """Read ``|c|`` as a magnitude, not a substitution, and ``n_iter_`` as a name, not a link."""
    end = match.end("start" if match["start"] else "whole")
    return match.string[:end], [], match.string[end:], []


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the renderer under the name that conf.py asks for."""
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    Inliner.dispatch["|"] = Inliner.dispatch["_"] = as_typed
    return {"parallel_read_safe": True, "parallel_write_safe": True}
