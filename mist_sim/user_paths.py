"""Paths as users write them."""

from __future__ import annotations

from pathlib import Path

from mist_sim.errors import ScenarioError, brief


def user_path(text: str | Path) -> Path:
    """Return a path with `~` expanded, safe to pass to `exists`.

    Raises ScenarioError for the home folder of an unknown user and for impossible names.
    """
    try:
        path = Path(text).expanduser()
        path.exists()
    except (OSError, RuntimeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ScenarioError(f"no path can be {brief(str(text))}: {reason}") from None
    return path
