"""The HTML that every page of ours is made of: one document without scripts or network, its keys and its figures."""

from collections.abc import Iterable
from html import escape
from importlib.resources import files

_DOCUMENT = """<!doctype html>
<html lang="{language}">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
{body}
</body>
</html>
"""


def document(title: str, parts: Iterable[str], *, language: str) -> str:
    """Return a whole page.

    Args:
        title: as text; it is escaped here.
        parts: HTML of the body, in order.
        language: of its text, as HTML names it.
    """
    style = files("loadgen").joinpath("assets", "page.css").read_text(encoding="utf-8")
    return _DOCUMENT.format(language=language, title=escape(title), style=style, body="\n".join(parts))


def keys(named: Iterable[tuple[str, str]]) -> str:
    """Return the key of a chart: (style, name) each."""
    shown = "".join(f'<span style="--swatch: var(--{style})">{escape(name)}</span>' for style, name in named)
    return f'<div class="keys">{shown}</div>'


def figure(title: str, caption: str, drawn: str) -> str:
    """Return a chart with its title and what it shows; `drawn` is SVG."""
    return f"<figure><figcaption><h3>{escape(title)}</h3><p>{escape(caption)}</p></figcaption>{drawn}</figure>"
