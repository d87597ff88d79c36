"""Texts that enter from files: printable, and on one line."""

from __future__ import annotations

from mist_sim.errors import ScenarioError, brief

Place = tuple[str | int, ...]

PLAIN = "must be printable and on one line"


def unprintable_in(data: object) -> tuple[Place, str] | None:
    """Return the place of a text that is not plain, with the problem; None if all are.

    Plain is what `str.isprintable` says: no ends of lines, controls of terminals or of the
    direction of writing, or marks that are not seen. Such a text can end a comment, fake a line of
    a message, or look like another.

    data: mappings and lists, perhaps with circular references.
    """
    seen: set[int] = set()
    left: list[tuple[Place, object]] = [((), data)]
    while left:
        place, value = left.pop()
        if isinstance(value, str) and not value.isprintable():
            return place, f"{PLAIN}, got {brief(value)}"
        if not isinstance(value, dict | list) or id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, list):
            left += [((*place, position), item) for position, item in enumerate(value)]
            continue
        for key, item in value.items():
            if isinstance(key, str) and not key.isprintable():
                return place, f"keys {PLAIN}, got {brief(key)}"
            left.append(((*place, str(key)), item))
    return None


def check_plain(data: object, where: str) -> None:
    """Raise ScenarioError for parsed data with a text that is not plain. where: the file."""
    if found := unprintable_in(data):
        place, problem = found
        raise ScenarioError(": ".join(filter(None, (where, ".".join(map(str, place)), problem))))
