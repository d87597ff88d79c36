"""Paths as users write them."""

from __future__ import annotations

from pathlib import Path

from mist_sim.errors import ScenarioError


def user_path(text: str | Path) -> Path:
    """Return a path with `~` expanded, one that can be asked whether it exists.

    Raises ScenarioError for a home folder that nobody has and for names no system can hold.
    """
    try:
        path = Path(text).expanduser()
        path.exists()
    except (OSError, RuntimeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ScenarioError(f"no path can be {str(text)[:80]!r}: {reason}") from None
    return path
