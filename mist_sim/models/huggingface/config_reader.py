"""ConfigReader: typed access to the keys of a config, with errors that name file and key."""

from __future__ import annotations

from collections.abc import Mapping

from mist_sim.bounds import MODEL_SIZE
from mist_sim.errors import ScenarioError, brief

# Checkpoints in fp32 are served in 16 bits, as vLLM does with `--dtype auto`.
_DTYPE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 2}


class ConfigReader:
    """Typed access to a mapping; every error names the file and the key."""

    def __init__(self, config: Mapping[str, object], where: str) -> None:
        self.config = config
        self.where = where

    def error(self, problem: str) -> ScenarioError:
        """Return the error to raise for a problem."""
        return ScenarioError(f"{self.where}: {problem}")

    def size(self, *keys: str, default: int | None = None, most: int = MODEL_SIZE) -> int:
        """Return the first of the keys that is given: an integer from 1 to `most`."""
        for key in keys:
            value = self.config.get(key)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
                raise self.error(f"{key} must be an integer > 0, got {brief(value)}")
            if value > most:
                got = value if value < 10**18 else f"a number of {value.bit_length()} bits"
                raise self.error(f"{key} must be <= {most}, got {got}")
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
            raise self.error(f"{key} must be true or false, got {brief(value)}")
        return value

    def dtype_bytes(self) -> int:
        """Return the bytes of an activation, by the type that a config names."""
        key = "dtype" if "dtype" in self.config else "torch_dtype"
        dtype = str(self.config.get(key) or "bfloat16").removeprefix("torch.")
        if dtype not in _DTYPE_BYTES:
            raise self.error(f"{key} must be one of {', '.join(_DTYPE_BYTES)}, got {brief(dtype)}")
        return _DTYPE_BYTES[dtype]

    def table(self, key: str) -> ConfigReader | None:
        """Return a reader of the table under a key, None if it is missing."""
        value = self.config.get(key)
        if not value:
            return None
        if not isinstance(value, dict):
            raise self.error(f"{key} must be a table, got {brief(value)}")
        return ConfigReader(value, f"{self.where}: {key}")

    def items(self, key: str) -> list[object]:
        """Return the list under a key, empty if it is missing."""
        value = self.config.get(key) or []
        if not isinstance(value, list):
            raise self.error(f"{key} must be a list, got {brief(value)}")
        return value
