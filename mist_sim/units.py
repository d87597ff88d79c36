"""Quantities: plain floats inside, strings such as "500 ms" or "400 Gb/s" in scenario files.

Inside the package a quantity is a plain number in the base unit of its kind: seconds, bytes,
FLOP/s, and so on. The aliases below (`Seconds`, `Bytes`, ...) mark a field with its kind, so
that scenario files can insist on a unit and write the value back without losing a bit.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Annotated, Any

from mist_sim.bounds import QUANTITIES, QUANTITY_LENGTH
from mist_sim.errors import ScenarioError, brief, did_you_mean

_SI = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50}


def _byte_units(suffix: str) -> dict[str, float]:
    units = {f"{prefix}B{suffix}": factor for prefix, factor in (_SI | _BINARY).items()}
    if suffix:  # network rates are usually quoted in bits
        units |= {f"{prefix}b{suffix}": factor / 8 for prefix, factor in _SI.items()}
    return units


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of quantity: its base unit and the factors of all units it may be written in."""

    name: str
    base: str
    factors: tuple[tuple[str, float], ...]

    def parse(self, text: object) -> float:
        """Return the value of a string such as "2 s" in the base unit.

        Raises ScenarioError when the number or the unit is missing or unknown.
        """
        short = isinstance(text, str) and len(text) <= QUANTITY_LENGTH
        match = _QUANTITY.fullmatch(str(text)) if short else None
        if match is None:
            raise ScenarioError(
                f"a {self.name} needs a number and a unit, such as '1 {self.base}', "
                f"got {brief(text)}"
            )
        number, unit = match.groups()
        factors = dict(self.factors)
        if unit not in factors:
            known = ", ".join(factors)
            raise ScenarioError(
                f"{brief(unit)} is not a unit of {self.name}{did_you_mean(unit, factors)} "
                f"Known: {known}. Got {brief(text)}"
            )
        value = float(number) * factors[unit]
        self._check(value, number, text)
        return value

    def reads(self, text: str) -> bool:
        """Tell whether a text is a quantity of this kind."""
        try:
            self.parse(text)
        except ScenarioError:
            return False
        return True

    def _check(self, value: float, number: str, text: object) -> None:
        smallest, largest = QUANTITIES[self.name]
        zero = not any(digit in "123456789" for digit in number.lower().partition("e")[0])
        if not (zero or smallest <= abs(value) <= largest):
            raise ScenarioError(
                f"a {self.name} must be 0 or from {smallest:g} to {largest:g} {self.base}, "
                f"got {brief(text)}"
            )

    def format(self, value: float) -> str:
        """Write a value in the base unit so that `parse` returns the same bits."""
        return f"{float(value)!r} {self.base}"


def require_number(name: str, value: object) -> None:
    """Raise ValueError for a quantity that is no number, such as "5 /s": that is for files."""
    if isinstance(value, int | float) or hasattr(value, "__float__"):
        return
    found = [kind for kind in KINDS if isinstance(value, str) and kind.reads(value)]
    plain = f", write {found[0].parse(value):g}" if found else ""
    raise ValueError(
        f"{name} must be a number, got {brief(value)}{plain}: units are for scenario files"
    )


def is_whole(value: object) -> bool:
    """Tell whether a value is a whole number, of Python or NumPy, and no truth value."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Tell whether a value is a number, of Python or NumPy, and no truth value."""
    return isinstance(value, Real) and not isinstance(value, bool)


def plain_number(value: Any) -> Any:
    """Return a scalar of NumPy as a number of Python, and anything else as it is."""
    return value.item() if hasattr(value, "dtype") and value.shape == () else value


_QUANTITY = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([A-Za-z/$%]+)\s*")


def _kind(name: str, base: str, factors: dict[str, float]) -> Kind:
    return Kind(name, base, tuple(factors.items()))


_FLOPS = {f"{p}{word}": f for p, f in _SI.items() for word in ("FLOP/s", "FLOPS", "OP/s")}

DURATION = _kind(
    "duration",
    "s",
    {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0},
)
RATE = _kind("rate", "/s", {"/s": 1.0, "/min": 1 / 60, "/h": 1 / 3600})
SIZE = _kind("size", "B", _byte_units(""))
BANDWIDTH = _kind("bandwidth", "B/s", _byte_units("/s"))
COMPUTE = _kind("compute rate", "FLOP/s", _FLOPS)
POWER = _kind("power", "W", {"mW": 1e-3, "W": 1.0, "kW": 1e3, "MW": 1e6})

RENT = _kind("price", "$/h", {"$/h": 1.0})
ELECTRICITY = _kind("price of electricity", "$/kWh", {"$/kWh": 1.0, "$/MWh": 1e-3})
TOKEN_PRICE = _kind("price of tokens", "$/Mtok", {"$/Mtok": 1.0, "$/ktok": 1e3})

KINDS = (DURATION, RATE, SIZE, BANDWIDTH, COMPUTE, POWER, RENT, ELECTRICITY, TOKEN_PRICE)
"""All kinds of quantities."""

Seconds = Annotated[float, DURATION]
PerSecond = Annotated[float, RATE]
Bytes = Annotated[float, SIZE]
BytesPerSecond = Annotated[float, BANDWIDTH]
FlopPerSecond = Annotated[float, COMPUTE]
Watts = Annotated[float, POWER]
DollarsPerHour = Annotated[float, RENT]
DollarsPerKwh = Annotated[float, ELECTRICITY]
DollarsPerMillionTokens = Annotated[float, TOKEN_PRICE]
