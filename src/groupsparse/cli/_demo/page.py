"""One self-contained page: text, tables, pictures as data. No script, no font, no network."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI = 160  # sharp on a phone's screen, and still small
STYLE = Path(__file__).with_name("page.css")


@dataclass(frozen=True)
class Picture:
    """A figure, its file name, what it shows for those who cannot see it, and what to see in it."""

    name: str
    figure: Figure
    alt: str
    caption: str

    def png(self) -> bytes:
        """The picture as the bytes of a PNG file."""
        file = io.BytesIO()
        self.figure.savefig(file, format="png", dpi=DPI)
        return file.getvalue()


@dataclass
class Section:
    """One part of the page, filled from top to bottom."""

    anchor: str
    title: str
    finding: str  # the one sentence that stands at the top of the page
    blocks: list[str] = field(default_factory=list)
    pictures: dict[str, bytes] = field(default_factory=dict)

    def say(self, *paragraphs: str) -> None:
        """Add text; see `inline` for its marks."""
        self.blocks += [f"<p>{inline(text)}</p>" for text in paragraphs]

    def note(self, text: str) -> None:
        """Add text that stands apart: how to read something, or what not to read into it."""
        self.blocks.append(f'<p class="note">{inline(text)}</p>')

    def heading(self, text: str) -> None:
        """Add a heading of the second order."""
        self.blocks.append(f"<h3>{inline(text)}</h3>")

    def show(self, *pictures: Picture) -> None:
        """Add pictures, side by side where the screen is wide enough."""
        shown = []
        for picture in pictures:
            png = picture.png()
            self.pictures[picture.name] = png
            width, height = (round(96 * inches) for inches in picture.figure.get_size_inches())
            shown.append(
                f'<figure><img src="data:image/png;base64,{base64.b64encode(png).decode()}" '
                f'alt="{escape(picture.alt)}" width="{width}" height="{height}">'
                f"<figcaption>{inline(picture.caption)}</figcaption></figure>"
            )
        kind = "one" if len(shown) == 1 else "many"
        self.blocks.append(f'<div class="pictures {kind}">{"".join(shown)}</div>')

    def table(
        self,
        columns: Sequence[str],
        rows: Sequence[Sequence[str]],
        caption: str,
        *,
        words: Sequence[str] = (),
    ) -> None:
        """Add a table. Its first column names the rows, those in ``words`` hold text."""
        kinds = [' class="words"' if column in words else "" for column in columns]
        head = "".join(
            f'<th scope="col"{kind}>{inline(column)}</th>'
            for column, kind in zip(columns, kinds, strict=True)
        )
        body = "".join(
            f'<tr><th scope="row">{inline(row[0])}</th>'
            + "".join(
                f"<td{kind}>{inline(cell)}</td>"
                for cell, kind in zip(row[1:], kinds[1:], strict=True)
            )
            + "</tr>"
            for row in rows
        )
        self.blocks.append(
            f'<figure class="table"><figcaption>{inline(caption)}</figcaption>'
            f'<div class="scroll" tabindex="0"><table><thead><tr>{head}</tr></thead>'
            f"<tbody>{body}</tbody></table></div></figure>"
        )

    def code(self, text: str) -> None:
        """Add lines to paste."""
        self.blocks.append(f'<pre tabindex="0"><code>{escape(text.strip())}</code></pre>')

    def html(self) -> str:
        """The section itself."""
        inside = "\n".join(self.blocks)
        return f'<section id="{self.anchor}">\n<h2>{inline(self.title)}</h2>\n{inside}\n</section>'


def percent(fraction: float, digits: int = 0) -> str:
    """A fraction as the page writes it."""
    return f"{100 * fraction:.{digits}f} %"


def figure_of(axes: Axes) -> Figure:
    """The figure that a drawing is on."""
    from matplotlib.figure import Figure

    figure = axes.figure
    assert isinstance(figure, Figure)
    return figure


def inline(text: str) -> str:
    """Escaped text, `code` and **strong words** marked; no line begins with a unit."""
    text = re.sub(r" (%|kB\b)", "\N{NO-BREAK SPACE}\\1", text)
    text = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text, quote=False))
    return re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", text)


def page(title: str, opening: Sequence[str], sections: Sequence[Section], origin: str) -> str:
    """The whole page."""
    cards = "\n".join(
        f'<li><a href="#{section.anchor}"><b>{place}. {inline(section.title)}</b>'
        f"<span>{inline(section.finding)}</span></a></li>"
        for place, section in enumerate((s for s in sections if s.finding), start=1)
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(title)}</title>
<style>
{STYLE.read_text(encoding="utf-8")}</style>
</head>
<body>
<main>
<header>
<h1>{inline(title)}</h1>
{"".join(f"<p>{inline(text)}</p>" for text in opening)}
<ol class="cards">
{cards}
</ol>
</header>
{"".join(section.html() for section in sections)}
</main>
<footer><p>{inline(origin)}</p></footer>
</body>
</html>
"""
