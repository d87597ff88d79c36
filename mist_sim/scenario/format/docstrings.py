"""Meanings of a class's parameters, from its docstring, for listings and the reference."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable


def documented_with_bases(cls: type, parameters: Iterable[str]) -> tuple[list[str], dict[str, str]]:
    """Return the paragraphs of a class, and the meanings of its parameters and its bases'."""
    names = list(parameters)
    text: list[str] = []
    meanings: dict[str, str] = {}
    for base in reversed(cls.__mro__[:-1]):
        text, found = documented(base, names)
        meanings |= found
    return text, meanings


def documented(cls: type, parameters: Iterable[str]) -> tuple[list[str], dict[str, str]]:
    """Split a docstring into paragraphs of text and the meanings of parameters.

    A meaning begins with "name: " or "name (range), other: " at the start of a line or sentence,
    and ends with the line that ends its last sentence. Lines about what is raised, or about
    parameters that a file does not set, are left out.
    """
    entry = rf"(?:{'|'.join([*parameters, 'model', 'cluster'])})(?: \([^)]*\))?"
    label = re.compile(
        rf"(?:(?:^|(?<=\. ))({entry}(?:, {entry})*)|^(Source|Method)): ", re.MULTILINE
    )
    paragraphs: list[str] = []
    meanings: dict[str, str] = {}
    for paragraph in inspect.cleandoc(cls.__doc__ or "").split("\n\n"):
        rest = re.sub(r"^Raises .*", "", paragraph, flags=re.MULTILINE | re.DOTALL)
        kept: list[str] = []
        while rest:
            match = label.search(rest)
            if match is None:
                kept.append(rest)
                break
            kept.append(rest[: match.start()])
            following = label.search(rest, match.end())
            end = following.start() if following else len(rest)
            line_end = rest.find(".\n", match.end(), end)
            end = end if line_end < 0 or rest.startswith(" ", line_end + 2) else line_end + 2
            meaning = " ".join(rest[match.end() : end].split())
            if match[2]:
                kept.append(f"{match[0]}{meaning}\n")
            else:
                meanings |= _shared(match[1], meaning.removesuffix("."))
            rest = rest[end:]
        if text := _in_a_file(" ".join("".join(kept).split())):
            paragraphs.append(text)
    return paragraphs, meanings


def _in_a_file(text: str) -> str:
    """Say null where a docstring says None."""
    return re.sub(r"\bNone\b", "null", text)


def _shared(label: str, meaning: str) -> dict[str, str]:
    """Return the meaning of each parameter that a label names, with its range."""
    meanings = {}
    first = ""
    for name, allowed in re.findall(r"(\w+)(?: \(([^)]*)\))?(?:, |$)", label):
        text = f"see `{first}`" if first else _in_a_file(meaning)
        meanings[name] = f"{allowed}; {text}" if allowed else text
        first = first or name
    return meanings
