"""Scenarios that come with the package, to be run by name."""

from __future__ import annotations

from pathlib import Path

_FOLDER = Path(__file__).parent


def preset_names() -> list[str]:
    """Return the names of the presets, sorted."""
    return sorted(path.stem for path in _FOLDER.glob("*.yaml"))


def preset_path(name: str) -> Path:
    """Return the file of a preset; `name` is one of `preset_names()`."""
    return _FOLDER / f"{name}.yaml"
