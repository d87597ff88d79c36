"""ConfigReader: typed access to the keys of a config, with errors that name file and key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mist_sim.bounds import MODEL_SIZE
from mist_sim.errors import ScenarioError, brief

NEAREST_HINT = (
    "--approximate (approximate:PATH as the model of a scenario) takes what is not known as the "
    "nearest that is, and gives no error bar"
)
"""What a message says where a model can still be read as the nearest known one."""

# Checkpoints in fp32 are served in 16 bits, as vLLM does with `--dtype auto`.
_DTYPE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 2}


class MissingSizeError(ScenarioError):
    """A config does not give a size that has no default."""


class ConfigReader:
    """Typed access to a mapping; every error names the file and the key."""

    def __init__(self, config: Mapping[str, object], where: str) -> None:
        self.config = config
        self.where = where

    def error(self, problem: str) -> ScenarioError:
        """Return the error to raise for a problem."""
        return ScenarioError(f"{self.where}: {problem}")

    def leave_out(self, problem: str, taken: str) -> None:
        """Refuse a block that is not simulated; a reader of the nearest model leaves it out.

        taken: what is left out, or taken as what, for the list of approximations.
        """
        raise self.error(f"{problem}; {NEAREST_HINT}")

    def known_kind(self, key: str, kind: object, known: Sequence[object]) -> object:
        """Refuse a kind of layer that is none of the known; see `leave_out`."""
        names = ", ".join(map(str, known))
        raise self.error(
            f"{key} names {brief(kind)}, which is not simulated yet. Known: {names}; {NEAREST_HINT}"
        )

    def part(self, value: Mapping[str, object], where: str) -> ConfigReader:
        """Return a reader of a part of the config."""
        return ConfigReader(value, where)

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
            raise MissingSizeError(f"{self.where}: {keys[0]}{others} is missing; add it")
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
        return self.part(value, f"{self.where}: {key}")

    def items(self, key: str) -> list[object]:
        """Return the list under a key, empty if it is missing."""
        value = self.config.get(key) or []
        if not isinstance(value, list):
            raise self.error(f"{key} must be a list, got {brief(value)}")
        return value
