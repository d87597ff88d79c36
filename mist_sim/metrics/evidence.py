"""How far measured runs were off, and how far a new one may be: `evidence.csv`.

A row of that file is a measured run beside its simulation. A bar holds nine in ten of the measured
errors, each with a weight that falls with every respect in which that run is other (`RESPECTS`).
Then it is widened by what rows needed whose whole source was left out. `python -m tools.evidence
--write` makes the file; docs/background/error_bars.md explains the rule.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import resources
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mist_sim.hardware.setting import Setting
from mist_sim.metrics.load import CLOSED, Load

Array = NDArray[np.float64]

METRICS = ("ttft", "tpot")
_PARTS: Mapping[str, tuple[str, ...]] = {
    "model": ("model",),
    "GPU": ("gpu",),
    "kernel": ("format", "architecture"),
    "release": ("release",),
    "load": ("kind", "arrivals"),
}
RESPECTS = tuple(_PARTS)
"""In which a run may be other than a measured one: the distance is their number."""

FAR = 2  # of them: then results say so before all else, and nothing is sure
NOTHING_LIKE_IT = "no measured run is like it"

SHARE = 0.9  # of measurements lie in a bar
# Of the rows under a load, and of those with a kernel, lie in bars without their origin: so many
# that of all rows 90 % do, and 75 % or more of each group of ten.
LEAST = 0.8
FEWEST = 10  # rows that are such a group

# A row's weight, by what is other. The pairs were searched for the narrowest bars that hold nine
# in ten rows of sources left out; half or twice of each changes the widths by less than a tenth.
_WEIGHTS: Mapping[str, float] = {
    "model": 0.5,
    "gpu": 0.8,
    "format": 0.4,  # kind of model, and format of its weights
    "architecture": 0.8,
    "parallel": 0.8,
    "release": 0.8,
    "kind": 0.8,  # of load
    "arrivals": 0.5,
}
_ANY = 0.05  # a row that is other in any of `RESPECTS`

# Of TTFT, where one load is a closed loop and the other none: users that come back together make
# it, and a few milliseconds decide whether a step waits for them (docs/validation.md).
_COMES_BACK = 0.2

_ARCHITECTURES = {  # of a maker of whose GPUs a run was measured
    "ampere": "Ampere",
    "ada": "Ada",
    "hopper": "Hopper",
    "blackwell": "Blackwell",
    "blackwell-ultra": "Blackwell Ultra",
    "blackwell-rtx": "RTX Blackwell",
}
_PARALLEL = ("one", "NVLink", "spread")  # of the measured runs; links of other kinds have no bar
_KINDS = {"latent": "latent attention"}


class MeasuredRow(NamedTuple):
    """A measured run, or several under one load: what it is like, and by how much it was off.

    origin: where it was published. errors: by metric, ln(measured / simulated). beyond: by metric,
    how far that lies outside the bar of the other origins, before it is widened; below 0 inside.
    """

    origin: str
    setting: Setting
    load: Load
    errors: Mapping[str, float]
    beyond: Mapping[str, float] = {}


class ErrorBar(NamedTuple):
    """The range in which nine of ten measurements lie, as measured / simulated - 1.

    low, high: the ends of the range. num_points: measured figures that it rests on. like: the
    nearest of them in words. other: of `RESPECTS`, those in which that one is other.
    knows_kernel: whether a run with this kernel on this GPU was measured.
    """

    low: float
    high: float
    num_points: int
    like: str
    other: tuple[str, ...] = ()
    knows_kernel: bool = True

    @property
    def width(self) -> float:
        """From one end to the other."""
        return self.high - self.low


class Evidence:
    """Measured runs with one origin of step times and one metric, as columns."""

    def __init__(self, rows: Iterable[MeasuredRow], source: str, metric: str) -> None:
        same = [row for row in rows if row.setting.source == source]
        self._known = {
            name: {getattr(row.setting, name) for row in same} for name in ("kind", "weights")
        }
        self.rows = [row for row in same if metric in row.errors]
        self._comes_back = _COMES_BACK if metric == "ttft" else 1.0
        self._errors = np.array([row.errors[metric] for row in self.rows])
        self._beyond = np.array([row.beyond.get(metric, np.nan) for row in self.rows])
        facts = [_facts(row.setting, row.load) for row in self.rows]
        self._columns: dict[str, NDArray[np.str_]] = {
            name: np.array([of_row.get(name, "") for of_row in facts], dtype=str)
            for name in _WEIGHTS
        }
        # rows that are alike in all tell of one another: n count as the root of n
        keys = [(row.origin, row.setting, row.load) for row in self.rows]
        number = Counter(keys)
        self._share = np.array([1 / np.sqrt(number[key]) for key in keys])

    def unknown(self, setting: Setting) -> str:
        """Return in what no measured run is like a setting, so that there is no bar; or ""."""
        if not self.rows or setting.architecture not in _ARCHITECTURES:
            return NOTHING_LIKE_IT
        missing = []
        if setting.kind not in self._known["kind"]:
            layers = _KINDS.get(setting.kind, f"{setting.kind} layers")
            missing.append(f"models with {layers}")
        if setting.weights not in self._known["weights"]:
            missing.append(f"weights in {setting.weights}")
        if setting.parallel == "pipeline":
            missing.append("pipelines")
        elif setting.parallel not in _PARALLEL:
            missing.append(f"GPUs linked by {setting.parallel}")
        return f"no measured run has {' and '.join(missing)}" if missing else ""

    def bar(
        self, setting: Setting, load: Load | None, margin: float | None = None
    ) -> ErrorBar | None:
        """Return where measurements like a setting lie under a load; None without any.

        load: what is not known of it counts as the same. margin: in place of `margin`.
        """
        if self.unknown(setting):
            return None
        low, high, nearest = self.ends(setting, load)
        row = self.rows[nearest]
        other = _other(row, setting, load)
        if margin is None:
            margin = self.margin(setting, load)
        margin *= bool(other)
        return ErrorBar(
            low=round(float(np.expm1(low - margin)), 3),
            high=round(float(np.expm1(high + margin)), 3),
            num_points=len(self.rows),
            like=words(row.setting, row.load),
            other=other,
            knows_kernel=any(
                (each.setting.gpu, each.setting.kernel) == (setting.gpu, setting.kernel)
                for each in self.rows
            ),
        )

    def ends(self, setting: Setting, load: Load | None) -> tuple[float, float, int]:
        """Return the ends before they are widened, as logarithms, and the nearest row."""
        facts = _facts(setting, load)
        is_other = {name: self._columns[name] != text for name, text in facts.items()}
        weights = self._share.copy()
        for name, other in is_other.items():
            weights[other] *= _WEIGHTS[name]
            if name == "arrivals":
                closed = self._columns[name] == CLOSED
                weights[closed != (facts[name] == CLOSED)] *= self._comes_back
        none = np.zeros(len(self.rows), dtype=bool)
        distance = sum(
            np.logical_or.reduce([is_other.get(name, none) for name in names]).astype(int)
            for names in _PARTS.values()
        )
        weights[distance > 0] *= _ANY
        order = np.argsort(self._errors)
        reached = np.cumsum(weights[order])
        ends = np.array([(1 - SHARE) / 2, (1 + SHARE) / 2]) * reached[-1]
        low, high = self._errors[order][np.searchsorted(reached, ends).clip(max=len(order) - 1)]
        nearest = int(np.lexsort((-weights / self._share, distance))[0])
        return float(low), float(high), nearest

    def margin(self, setting: Setting, load: Load | None) -> float:
        """Return by how much both ends move out, as a logarithm: the most that a group needs.

        So that `LEAST` of the rows under the same load (of the same format, or of all, where it has
        few), and of those with the same kernel (under any load where it has few) lie in the bars of
        the other origins.
        """
        known = ~np.isnan(self._beyond)
        same = {name: self._columns[name] == text for name, text in _facts(setting, load).items()}
        of_load = [same[name] for name in _PARTS["load"] if name in same]
        loaded = known & np.logical_and.reduce(of_load) if of_load else np.zeros_like(known)
        format_ = known & same["format"]
        kernel = format_ & same["architecture"]
        needed = [0.0]
        for groups in ((loaded, format_, known), (kernel & loaded, kernel)):
            large = [group for group in groups if np.count_nonzero(group) >= FEWEST]
            if large:
                needed.append(float(np.quantile(self._beyond[large[0]], LEAST, method="higher")))
        return max(needed)


def words(setting: Setting, load: Load | None = None) -> str:
    """Return a setting as a reader has it: "qwen3-32b, dense bf16, h100-sxm, vLLM 0.12"."""
    parts = [setting.model, kernel_words(setting), setting.gpu, f"vLLM {setting.release}"]
    if setting.source != "roofline":
        parts[1] += f" ({setting.source})"
    return ", ".join([*parts, *(load[::-1] if load else ())])


def kernel_words(setting: Setting) -> str:
    """Return the kind and format of a setting's kernels: "experts mxfp4"."""
    return f"{_KINDS.get(setting.kind, setting.kind)} {setting.weights}"


def architecture_words(setting: Setting) -> str:
    """Return the name of a setting's architecture."""
    return _ARCHITECTURES.get(setting.architecture, setting.architecture)


@cache
def without(origin: str, source: str, metric: str) -> Evidence:
    """Return the same without the rows of an origin; a new one has none."""
    return Evidence([row for row in _rows() if row.origin != origin], source, metric)


@cache
def evidence_for(source: str, metric: str) -> Evidence:
    """Return the package's evidence about a metric, with step times of an origin."""
    return Evidence(_rows(), source, metric)


@cache
def _rows() -> tuple[MeasuredRow, ...]:
    text = (resources.files("mist_sim.metrics") / "evidence.csv").read_text("utf-8")
    return tuple(map(read, csv.DictReader(text.splitlines())))


def read(row: Mapping[str, str]) -> MeasuredRow:
    """Return a row of the file."""
    setting = Setting(**{name: row[name] for name in Setting.__dataclass_fields__})
    return MeasuredRow(
        row["origin"],
        setting,
        Load(row["load"], row["arrivals"]),
        {name: float(row[name]) for name in METRICS if row[name]},
        {name: float(row[f"{name}_beyond"]) for name in METRICS if row[f"{name}_beyond"]},
    )


def _facts(setting: Setting, load: Load | None) -> dict[str, str]:
    """Return what is known of a setting and a load, by the names of `_WEIGHTS`."""
    of_load = zip(_PARTS["load"], load or (), strict=False)
    return {
        "model": setting.model,
        "gpu": setting.gpu,
        "format": f"{setting.kind} {setting.weights}",
        "architecture": setting.architecture,
        "parallel": setting.parallel,
        "release": setting.release,
        **{name: text for name, text in of_load if text},
    }


def _other(row: MeasuredRow, setting: Setting, load: Load | None) -> tuple[str, ...]:
    """Return in which of `RESPECTS` a row is other."""
    there, here = _facts(row.setting, row.load), _facts(setting, load)
    return tuple(
        respect
        for respect, names in _PARTS.items()
        if any(there.get(name) != here[name] for name in names if name in here)
    )
