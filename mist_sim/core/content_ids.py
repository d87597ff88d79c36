"""Numbers for content ids (see `core.request.Content`), apart for each origin.

A conversation, a block of a trace and a branch of a request never share an id by chance.
"""

from __future__ import annotations

OF_BLOCK, OF_CONVERSATION, OF_PREFIX, OF_BRANCH, OF_PATH = range(5)
"""Where content comes from."""

_NUM_ORIGINS = 8


def content_id(origin: int, number: int) -> int:
    """Return the id of the content that has this number at its origin."""
    return number * _NUM_ORIGINS + origin
