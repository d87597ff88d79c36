"""Paths as users write them."""

from __future__ import annotations

from pathlib import Path

from mist_sim.bounds import SPEC_BYTES
from mist_sim.errors import ScenarioError


def user_path(text: str | Path) -> Path:
    """Return a path with `~` expanded, one that can be asked whether it exists.

    Raises ScenarioError for the home folder of an unknown user and for impossible names.
    """
    try:
        path = Path(text).expanduser()
        path.exists()
    except (OSError, RuntimeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ScenarioError(f"no path can be {str(text)[:80]!r}: {reason}") from None
    return path


def read_spec(path: Path) -> str:
    """Return the text of a model's config or a GPU's spec.

    Raises ScenarioError unless it can be read as UTF-8, and for one longer than `SPEC_BYTES`.
    """
    try:
        with path.open("rb") as file:
            content = file.read(SPEC_BYTES + 1)
    except OSError as error:
        raise ScenarioError(f"{path}: cannot be read: {error.strerror}") from None
    if len(content) > SPEC_BYTES:
        raise ScenarioError(f"{path}: must have <= {SPEC_BYTES} bytes; is it another file?")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ScenarioError(f"{path}: not a UTF-8 text file: {error.reason}") from None
