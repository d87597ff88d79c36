"""The result of what binds a deployment at its goodput, and where there is none, of lone requests.

If requests that are alone miss the limits, neither a lower rate nor more clients help; if they keep
them, it is the load that fails.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import exp, isnan, nan
from typing import Any, Self

from mist_sim.errors import listed
from mist_sim.metrics.latency import is_of_gaps, limit_title

_TOLD = {  # name of the resource, its relaxation in a sentence, and in a table
    "compute": ("compute binds", "a tenth more of it", "compute"),
    "memory_bandwidth": ("memory bandwidth binds", "a tenth more of it", "memory bandwidth"),
    "kv_memory": ("KV memory binds", "a tenth more of it", "KV memory"),
    "links": ("the links between GPUs bind", "links a tenth faster", "links between GPUs"),
    "host": ("the host binds", "one a tenth faster", "host"),
    "seats": ("max_num_seqs binds", "a tenth more", "max_num_seqs"),
    "token_budget": ("max_num_batched_tokens binds", "a tenth more", "max_num_batched_tokens"),
    "chunks": ("long prompts in a step bind", "a tenth fewer tokens a step", "smaller steps"),
    "adapters": ("max_loras binds", "a tenth more adapters, one at least,", "max_loras"),
    "transfer": ("the transfer binds", "a network a tenth faster", "network"),
}
MOST_TOLD = 0.5  # larger gains cannot be extrapolated by a line


@dataclass(frozen=True)
class Binding:
    """The resource that binds a deployment at its goodput, found by experiment.

    rate: requests per second, a little above the goodput, at which all runs were made. by: share by
        which a resource was relaxed. num_requests: of each run.
    limit: the limit that fails first: most requests miss it ("ttft", "tpot", "e2el"), or a
        percentile ("p99_ttft"); of gaps ("p99_itl") no resource is known.
    resource: the resource that helps most (one of `relaxing.RESOURCES`); None if none helps more
        than noise.
    gains: by how much the quantile of that limit falls, as a logarithm of time over limit, by
        resource. errors: half of the 95 % intervals of all of them together.
    more: about the gain in goodput, as a share of it, by resource.
    stopped: the limit that then fails, of resources whose gain it ends, or leaves none of.
    rivals: other resources that may help as much, within noise.
    failed: reasons why a resource could not be judged.
    """

    rate: float
    limit: str
    resource: str | None
    gains: Mapping[str, float]
    errors: Mapping[str, float] = field(default_factory=dict)
    more: Mapping[str, float] = field(default_factory=dict)
    stopped: Mapping[str, str] = field(default_factory=dict)
    rivals: tuple[str, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict)
    by: float = 0.1
    num_requests: int = 0

    @property
    def sentence(self) -> str:
        """The limit that fails first, and the resource that binds."""
        told = f"{limit_title(self.limit, self.limit)} fails first; {self._binds}"
        return told if self.by == 0.1 else told.replace("a tenth", f"{100 * self.by:g} %")

    @property
    def _binds(self) -> str:
        if is_of_gaps(self.limit):
            return (
                "which resource binds gaps between tokens is not tried. Steps with prompts in them "
                "are the long ones: fewer max_num_batched_tokens make them shorter."
            )
        if self.resource is None and self.stopped:
            return f"nothing that was relaxed by a tenth helps all limits.{self._then}"
        if self.resource is None:
            return f"nothing that was relaxed by a tenth helps by more than noise{self._most}."
        binds, relaxing, _ = _TOLD[self.resource]
        told = f"{binds}: {relaxing} would serve {worth(self.more[self.resource])} more requests."
        told += self._then
        others = " and ".join(_TOLD[name][2] for name in self.rivals)
        return f"{told} As far as the runs tell, {others} may matter as much." if others else told

    @property
    def _most(self) -> str:
        """The largest gain of those that noise hides, with its error."""
        name = max(self.gains, key=lambda each: self.gains[each], default="")
        if not name or self.gains[name] <= 0 or isnan(error := self.errors.get(name, nan)):
            return ""
        fall, half = (100 * (1 - exp(-each)) for each in (self.gains[name], error))
        return f": the most is {name_of(name)}, {fall:.1f} ± {half:.1f} % less time over limit"

    @property
    def _then(self) -> str:
        """The resources that help this limit, but no other."""
        useless = [name for name in self.stopped if name not in self.more]
        names = listed([_TOLD[name][2] for name in useless])
        limit = limit_title(self.stopped[useless[0]]) if useless else ""
        return f" More of {names} helps it too, but then {limit} fails." if useless else ""

    @property
    def summary(self) -> dict[str, Any]:
        """Everything as plain data."""
        return {
            "sentence": self.sentence,
            "limit": self.limit,
            "resource": self.resource,
            "rate": self.rate,
            "by": self.by,
            "num_requests": self.num_requests,
            "resources": [
                {
                    "resource": name,
                    "name": name_of(name),
                    "gain": gain,
                    "error": self.errors.get(name),
                    "more_goodput": self.more.get(name),
                    "worth": worth(self.more[name]) if name in self.more else "",
                    "then_fails": self.stopped.get(name),
                }
                for name, gain in sorted(self.gains.items(), key=lambda item: -item[1])
            ],
            "rivals": list(self.rivals),
            "failed": dict(self.failed),
        }


def worth(more: float) -> str:
    """Return a gain of goodput in words."""
    if more >= MOST_TOLD:
        return f"at least {100 * MOST_TOLD:.0f} %"
    return f"about {100 * more:.0f} %" if more >= 0.005 else "less than 1 %"


def name_of(resource: str) -> str:
    """Return a resource as a table has it."""
    return _TOLD[resource][2]


@dataclass(frozen=True)
class LoneRequests:
    """How requests that are alone fare, at the share that is asked for.

    over_limit: time over limit, of the worst limit of each request. by_limit: of each limit, such
    as "tpot".
    """

    over_limit: float
    by_limit: Mapping[str, float]

    @classmethod
    def of(cls, result: Mapping[str, Any]) -> Self:
        """Return the result of the run of `binding.lone_runs`."""
        by_limit = {name: exp(over) for name, over in result["alone"].items()}
        return cls(exp(max(result["quantile"])), by_limit)

    @property
    def sentence(self) -> str:
        """Whether the limits can be kept at all, and which cannot."""
        if self.over_limit <= 1:
            return "requests that are alone keep the limits: lower rates may be attained."
        missed = [
            f"{limit_title(name)} ({over:.3g} times its limit)"
            for name, over in self.by_limit.items()
            if over > 1
        ]
        which = " and ".join(missed) or "one limit or another"
        return (
            f"requests that are alone miss {which}, too: neither lower rates nor more clients help."
        )
