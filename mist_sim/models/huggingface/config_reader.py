"""ConfigReader: typed access to the keys of a config, with errors that name file and key."""

from __future__ import annotations

from collections.abc import Mapping

from mist_sim.errors import ScenarioError

_LARGEST = 10**9  # no size of a model comes near it


class ConfigReader:
    """Typed access to a mapping; every error names the file and the key."""

    def __init__(self, config: Mapping[str, object], where: str) -> None:
        self.config = config
        self.where = where

    def error(self, problem: str) -> ScenarioError:
        """Return the error to raise for a problem."""
        return ScenarioError(f"{self.where}: {problem}")

    def size(self, *keys: str, default: int | None = None) -> int:
        """Return the first of the keys that is given: an integer > 0."""
        for key in keys:
            value = self.config.get(key)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
                raise self.error(f"{key} must be an integer > 0, got {value!r}")
            if value > _LARGEST:
                raise self.error(f"{key} must be <= {_LARGEST}, got {len(str(value))} digits")
            return value
        if default is None:
            others = f" (or {', '.join(keys[1:])})" if len(keys) > 1 else ""
            raise self.error(f"{keys[0]}{others} is missing")
        return default

    def count(self, key: str) -> int:
        """Return an integer >= 0, 0 where the key is absent."""
        return 0 if self.config.get(key) in (None, 0) else self.size(key)

    def flag(self, key: str, default: bool) -> bool:
        """Return true or false."""
        value = self.config.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(f"{key} must be true or false, got {value!r}")
        return value

    def table(self, key: str) -> ConfigReader | None:
        """Return a reader of the table under a key, None where there is none."""
        value = self.config.get(key)
        if not value:
            return None
        if not isinstance(value, dict):
            raise self.error(f"{key} must be a table, got {value!r}")
        return ConfigReader(value, f"{self.where}: {key}")

    def items(self, key: str) -> list[object]:
        """Return the list under a key, empty where there is none."""
        value = self.config.get(key) or []
        if not isinstance(value, list):
            raise self.error(f"{key} must be a list, got {value!r}")
        return value
