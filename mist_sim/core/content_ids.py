"""Numbers for content ids (see `core.request.Content`), apart for each origin.

A conversation, a block of a trace and a branch of a request never share an id by chance.
"""

from __future__ import annotations

from enum import IntEnum

_NUM_ORIGINS = 8


class Origin(IntEnum):
    """Where content comes from."""

    BLOCK = 0
    CONVERSATION = 1
    PREFIX = 2
    BRANCH = 3
    PART = 4


def content_id(origin: Origin, number: int) -> int:
    """Return the id of the content that has this number at its origin."""
    return number * _NUM_ORIGINS + origin.value
