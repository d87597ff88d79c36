"""Shows the parameters that a docstring explains as a list: an extension of Griffe for the site.

Docstrings here are prose: `rate: requests per second. seed: of the draws.` in one paragraph. On the
site each parameter is a list item.
"""

from __future__ import annotations

import re
from typing import Any

from griffe import Class, Docstring, Extension, Function

AFTER = re.compile(r"(?<=[.;)] )(?=(?:Raises|Returns|Source)\b)")


class ParameterLists(Extension):
    """Turns paragraphs that name parameters into lists."""

    def on_class_members(self, *, cls: Class, **_: Any) -> None:
        """List the parameters in a class's docstring."""
        if cls.docstring:
            _list_parameters(cls.docstring, {*cls.members, *(p.name for p in cls.parameters)})

    def on_function_instance(self, *, func: Function, **_: Any) -> None:
        """List the parameters in a function's docstring."""
        if func.docstring:
            _list_parameters(func.docstring, {p.name for p in func.parameters})


def _list_parameters(docstring: Docstring, names: set[str]) -> None:
    known = "|".join(sorted(map(re.escape, names), key=len, reverse=True))
    item = re.compile(rf"(?:^|(?<=[.;)] ))(?=(?:{known}): )")
    paragraphs = docstring.value.split("\n\n")
    for number, paragraph in enumerate(paragraphs):
        joined = " ".join(line.strip() for line in paragraph.splitlines())
        if known and number and not paragraph.startswith((" ", "-", "|")) and item.search(joined):
            paragraphs[number] = _as_list(item.split(joined))
    docstring.value = "\n\n".join(paragraphs)


def _as_list(parts: list[str]) -> str:
    """Return Markdown: text before the first parameter, a list of them, and text after them."""
    before, *items = (part.strip() for part in parts)
    *rest, last = items
    last, *after = AFTER.split(last, maxsplit=1)
    lines = [re.sub(r"^(\w+): ", r"- `\1`: ", text) for text in (*rest, last.strip())]
    return "\n\n".join(filter(None, [before, "\n".join(lines), *after]))
