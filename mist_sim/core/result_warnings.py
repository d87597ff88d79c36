"""What results warn of: every kind there is. Results carry warnings, and all formats print them.

To add one: add its kind here, and make a `ResultWarning` of it where the cause is known. What a
client knows before a run goes into `TimesOrigin.warnings`, what `build` knows into
`Simulation.warnings`, what a run shows into `metrics.run_warnings`; what a search finds into the
`warnings` of its findings. No verb and no table has to be told.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NotRequired, TypedDict


@dataclass(frozen=True, slots=True)
class WarningKind:
    """A kind of warning. meaning: when there is one. leads: it stands above the tables."""

    name: str
    meaning: str
    leads: bool = False


KINDS: dict[str, WarningKind] = {}
"""Every kind that a result can have, by name."""


def _kind(name: str, meaning: str, *, leads: bool = False) -> WarningKind:
    KINDS[name] = WarningKind(name, meaning, leads)
    return KINDS[name]


class WarningData(TypedDict):
    """A warning as plain data: its `text` whole, and the parts of a `ResultWarning` that it has."""

    kind: str
    text: str
    detail: NotRequired[str]
    of: NotRequired[list[str]]
    brief: NotRequired[str]


@dataclass(frozen=True, slots=True)
class ResultWarning:
    """A warning that belongs to a result.

    text: whole sentences. detail: a sentence with figures of this point alone; text is then what
    all points of this kind have in common. of: the points, scenarios or candidates that it is of;
    empty: the whole result. brief: what stands above the tables of one that leads, whose whole is
    below them then; empty: its whole is above.
    """

    kind: WarningKind
    text: str
    detail: str = ""
    of: tuple[str, ...] = ()
    brief: str = ""

    def __str__(self) -> str:
        return f"{self.text} {self.detail}".rstrip()

    def about(self, name: str) -> ResultWarning:
        """Return it as the warning of one of several points; of parts of it, by their own names."""
        names = tuple(f"{name}: {each}" for each in self.of) or (name,)
        return replace(self, of=names if name else self.of)

    @property
    def data(self) -> dict[str, Any]:
        """It as plain data, as summaries and JSON have it; `of_data` reads it back."""
        found: dict[str, Any] = {"kind": self.kind.name, "text": str(self)}
        return found | {
            **({"detail": self.detail} if self.detail else {}),
            **({"of": list(self.of)} if self.of else {}),
            **({"brief": self.brief} if self.brief else {}),
        }


ASSUMED_HOST = _kind(
    "assumed host", "GPUs speak over a host that is not named, which moves step times", leads=True
)
DISTANCE = _kind("distance", "no measured run is near, or none is comparable at all", leads=True)
NEVER_COMPARED = _kind("spec-only", "step times come from data sheets alone")
ENGINE_TIME = _kind("engine time", "the engine's own time a step is that of other GPUs")
PROMPT_STEP = _kind("prompt step", "the time of steps with prompts beyond profiled layers")
SAMPLING = _kind("sampling", "how tokens are drawn is not known of the model")
PENALTIES = _kind("penalties", "host time of penalties is not simulated")
FRONT_END = _kind("front end", "the HTTP server's times are assumed")
FRONT_END_FULL = _kind("front end full", "the HTTP servers limit throughput")
LONGEST_CONTEXT = _kind("longest context", "the memory is too small for the model's context")
STATE_BLOCKS = _kind("state blocks", "more sequences may run than have room for their states")
OLDER_ENGINES = _kind("older engines", "versions before the newest, assumed one do not start")
BETWEEN_RELEASES = _kind("between releases", "a release's rule is that of its neighbour")
POWER_CAP = _kind("power cap", "step times and joules under a power cap are assumed")
START_UP = _kind("start-up", "how long clients start is assumed")
TIER_LOADS = _kind("tier loads", "steps go on during loads from tiers")
HOST_COPIES = _kind("host copies", "loads run at the full rate of the GPUs' host links")
NO_PREFIXES = _kind("no prefixes", "prefixes are cached, and the trace names none")
LEFT_OUT = _kind("left out", "rows of a trace were left out, or their clients left")
ADAPTERS = _kind("adapters", "the times of LoRA adapters were never compared")
IMAGES = _kind("images", "the times of a vision tower were never compared")
TOWERS = _kind("towers", "weights of a tower are estimated, or not counted")
RE_SHARDING = _kind("re-sharding", "options of re-sharding are assumed")
ARCHITECTURE = _kind("architecture", "the GPU's entry names no architecture")
KERNELS = _kind("kernels", "kernels of a GPU that was not timed are those of others")
NOT_MEASURED = _kind("not measured", "operators without a measurement in measured kernels")
ONE_NODE = _kind("one node", "ranks of several nodes are timed as in one")
ACCEPTANCE = _kind("acceptance", "how many drafts are right is not said, so as published")
DRAFT_RATES = _kind("draft rates", "a list of acceptance rates can be read in two ways")
DRAFT_HEAD = _kind("draft head", "a head that drafts is timed as another one")
NEAREST_MODEL = _kind("nearest model", "an unknown model is taken as a known one")
STATE_CACHE = _kind("state cache", "prefixes of a model with states are not cached")
ACROSS_NODES = _kind(
    "across nodes", "collectives go over several nodes, or trays of one NVLink domain"
)
EXPERT_EXCHANGE = _kind(
    "expert exchange", "replicas exchange tokens for experts in a way to choose", leads=True
)
ASSUMED = _kind("assumed", "an option without a text of its own has an assumed value")
COMMAND_LINE = _kind("command line", "a flag of vLLM whose effect or meaning is assumed")
SHARED_LOAD = _kind(
    "shared load", "several replicas serve what one may have served when measured", leads=True
)
FAILED_WHEN_MEASURED = _kind(
    "failed when measured", "requests of a measured benchmark failed", leads=True
)
NOTHING_FINISHED = _kind("nothing finished", "no request finished, so there are no latencies")
TOO_SMALL = _kind("too small", "a model or requests have no room in GPU memory", leads=True)
UNSTABLE = _kind("unstable", "more work arrives than the clients can do")
OVERLOADED = _kind("overloaded", "for a time more arrived than was served")
OVERLOADED_AT_END = _kind(
    "overloaded at the end", "more and more waited until the last arrival", leads=True
)
NEVER_CAME = _kind("never came", "the run ended before an event that was asked for")
FAILURES = _kind("failures", "clients failed, and latencies were others meanwhile")
IDLE_REPLICAS = _kind("idle replicas", "a router sends almost all to one of several clients alike")
UNREAD = _kind("unread", "requests carry what neither a client nor the gateway reads")
BLIND_ROUTER = _kind("blind router", "a router by prefix, session or KV entries finds none")
WAVES = _kind("waves", "users of equal requests and pauses stay together")
COMMON_START = _kind("common start", "all users start at once, and that sets the p99")
POOLED = _kind(
    "pooled", "a model or class keeps limits less often than is asked of all", leads=True
)
TOO_SHORT = _kind("too short", "the run does not tell whether the clients keep up")
LIMIT_IN_SECONDS = _kind("limit in seconds", "a limit is so long that it may be milliseconds")
CUT_TEXTS = _kind("cut texts", "texts are longer than the longest input of what reads them")
TRUNCATED = _kind("truncated", "answers were cut at the model's longest context")
FAILED_REQUESTS = _kind("failed requests", "requests were rejected, timed out or lost")
EXTRAPOLATED = _kind("extrapolated", "steps lie outside what was measured")
NO_ENERGY = _kind("no energy", "power or cost is asked for, and GPUs are unknown")
NO_PRICE = _kind("no price", "cost is asked for, and a GPU has no price")
ALIKE = _kind("alike", "replications do not differ")
NOT_IN_PARALLEL = _kind("not in parallel", "runs cannot be sent to other processes")
FAILED_RUNS = _kind("failed runs", "a point, scenario or design has no figures")
NO_ROOM = _kind("no room", "a scenario misses its limits, and what left no room")
DESIGN = _kind("design", "what a design needs, and the scenario does not say")
UNEVEN = _kind("uneven", "step times of designs have another origin than the others'")
ALL_ATTAINED = _kind("all attained", "every rate tried is attained")
OUT_OF_TIME = _kind("out of time", "a search ended with its seconds, and leaves something open")
UNDECIDED = _kind("undecided", "runs do not tell whether a rate is attained")
ALL_MISSED = _kind("all missed", "the lowest rate tried is missed")
NOT_MONOTONE = _kind("not monotone", "a rate above a missed one is attained")
UNSTABLE_THERE = _kind(
    "unstable at goodput", "queues grow at the goodput until the run ends", leads=True
)
TOO_SHORT_THERE = _kind(
    "too short at goodput", "whether queues grow at the goodput is not known", leads=True
)
LONE_REQUESTS = _kind("lone requests", "how requests that are alone fare where no rate is attained")
PLAN = _kind("plan", "how sure a plan is, and which candidates are open")
BESTSERVE = _kind("bestserve", "BestServe's models take TPOT for shorter than it is")
FULL_FAILED = _kind("full failed", "the full simulation of a strategy failed")
CLOSED_FORM = _kind("closed form", "times come from a formula without queues")
BUNDLE_MEMORY = _kind("bundle memory", "bundles left out, whose KV entries do not fit")
BUNDLE_SHARES = _kind("bundle shares", "coefficients of a bundle by other kernels")
HEAVY_TAIL = _kind("heavy tail", "the variance of a slot's load is uncertain")
OLDER = _kind("older", "the files were written before results kept their warnings")


def of_data(summary: Mapping[str, Any]) -> tuple[ResultWarning, ...]:
    """Return the warnings of a summary, or of a file with one; of an older file, what it has."""
    told = summary.get("warnings")
    if told is None:
        return (ResultWarning(OLDER, _OLDER),)
    if isinstance(told, Mapping):  # of a comparison, by scenario
        return tuple(
            ResultWarning(OLDER, str(text), of=(name,))
            for name, texts in told.items()
            for text in texts
        )
    return tuple(
        _read(each) if isinstance(each, Mapping) else ResultWarning(OLDER, str(each))
        for each in told
    )


_OLDER = (
    "These files are of an older version, which kept no warnings beside its figures: what it "
    "assumed is not known here. Run the scenario again to see it."
)


def _read(data: Mapping[str, Any]) -> ResultWarning:
    detail = str(data.get("detail", ""))
    text = str(data["text"])
    kind = KINDS.get(str(data["kind"])) or WarningKind(str(data["kind"]), "of a later version")
    return ResultWarning(
        kind,
        text.removesuffix(detail).rstrip(),
        detail,
        tuple(map(str, data.get("of", ()))),
        str(data.get("brief", "")),
    )


def merged(warnings: Iterable[ResultWarning]) -> tuple[ResultWarning, ...]:
    """Return warnings, each once: equal ones of several points are one of all of these."""
    names: dict[ResultWarning, dict[str, None]] = {}
    for each in warnings:
        names.setdefault(replace(each, of=()), {}).update(dict.fromkeys(each.of))
    return tuple(replace(each, of=tuple(found)) for each, found in names.items())


def over_runs(runs: Sequence[Sequence[ResultWarning]]) -> tuple[ResultWarning, ...]:
    """Return the warnings of several runs of the same scenario, which differ in their seeds.

    Of a kind whose sentences are not the same in all of them, those of the first run that has any
    stand for the others, and say in how many runs there are some.
    """
    if len(runs) == 1:
        return tuple(runs[0])
    found: list[ResultWarning] = []
    for kind in dict.fromkeys(each.kind for run in runs for each in run):
        mine = [tuple(each for each in run if each.kind == kind) for run in runs]
        first = next(each for each in mine if each)
        if all(each == first for each in mine):
            found += first
            continue
        number = sum(bool(each) for each in mine)
        such = "one of them" if number == 1 else "the first of them"
        found += [
            replace(each, text=f"In {number} of {len(runs)} runs; in {such}: {each.text}")
            for each in first
        ]
    return tuple(found)


def of_points(points: Mapping[str, Iterable[ResultWarning]]) -> tuple[ResultWarning, ...]:
    """Return the warnings of several points by name, each once; what all have is of the whole.

    Points without figures come first.
    """
    found = merged(each.about(name) for name, warnings in points.items() for each in warnings)
    everyone = tuple(name for name in points if name)
    found = tuple(sorted(found, key=lambda each: each.kind is not FAILED_RUNS))
    return tuple(replace(each, of=()) if each.of == everyone else each for each in found)
