"""Tables for papers: in Markdown, and in LaTeX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import floor, isnan, log10

from mist_sim.metrics.replications import Estimate

Cells = Sequence[Mapping[str, str | Estimate | None]]
"""Cells by the titles of their columns, a mapping a row; all have the same titles."""

_DIGITS = 2  # of an interval
_PLAIN = 4  # of a number without one
_ESCAPES = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_ESCAPES |= {letter: f"\\{letter}" for letter in "&%$#_{}"}


def markdown(rows: Cells) -> str:
    """Return a table in Markdown."""
    titles = [_of_markdown(title) for title in rows[0]]
    lines = [titles, ["---"] * len(titles)]
    for row in rows:
        cells = ((_of_markdown(c) if isinstance(c, str) else number(c, "±")) for c in row.values())
        lines.append([*cells])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def latex(rows: Cells) -> str:
    """Return a `tabular` with the rules of booktabs: text on the left, figures on the right."""
    form = "".join("l" if isinstance(each, str) else "r" for each in rows[-1].values())
    lines = [" & ".join(map(_of_latex, rows[0])), r"\midrule"]
    for row in rows:
        cells = (
            _of_latex(c) if isinstance(c, str) else f"${number(c, _PM)}$" for c in row.values()
        )
        lines.append(" & ".join(each.replace("$$", "") for each in cells))
    inside = "\n".join(line if line.startswith("\\m") else rf"{line} \\" for line in lines)
    return f"\\begin{{tabular}}{{{form}}}\n\\toprule\n{inside}\n\\bottomrule\n\\end{{tabular}}\n"


_PM = r"\pm"


def number(found: Estimate | None, between: str) -> str:
    """Return a mean and half its interval to two digits of that; empty for none."""
    if found is None or isnan(found.mean):
        return ""
    width = found.half_width
    if isnan(width) or not width:
        return f"{found.mean:.{_PLAIN}g}"
    places = max(0, _DIGITS - 1 - floor(log10(width)))
    return f"{found.mean:.{places}f} {between} {width:.{places}f}"


def _of_markdown(text: str) -> str:
    return text.replace("|", r"\|")


def _of_latex(text: str) -> str:
    return "".join(_ESCAPES.get(letter, letter) for letter in text)
