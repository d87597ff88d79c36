"""Failures and repairs of clients: at given times, or at random."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from numpy.random import Generator as Rng

from mist_sim.checks import NotNegative, Positive, check_fields
from mist_sim.network import Cable
from mist_sim.units import Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """Clients that fail, or links, at given times or repeatedly at random.

    clients: their names, or those of groups of copies. At a given time they fail together; at
        random each fails on its own.
    node: a node of the network's topology; all clients with GPUs on it fail.
    link: the two ends of a cable of that topology, which is down in both directions: transfers take
        the shortest route around it, or wait if there is none.
    at: when they fail, from the start of the run.
    repair: time after `at` until they start again; None: never.
    mtbf: mean time between a repair and the next failure, exponential.
    mttr: mean time to repair, exponential.

    Raises ValueError without clients, node or link, without a time, and for times that are not
    positive.
    """

    clients: tuple[str, ...] = ()
    node: str | None = None
    link: tuple[str, ...] | None = None
    at: tuple[NotNegative[Seconds], ...] = ()
    repair: Positive[Seconds] | None = None
    mtbf: Positive[Seconds] | None = None
    mttr: Positive[Seconds] | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        said = [name for name in ("clients", "node", "link") if getattr(self, name)]
        if len(said) != 1:
            got = " and ".join(said) or "none of them: the failure would affect no client"
            raise ValueError(f"clients must be given, or node, or link, got {got}")
        if self.link is not None and len(self.link) != 2:
            raise ValueError(f"link must be the two ends of a cable, got {len(self.link)} places")
        if bool(self.at) == (self.mtbf is not None):
            raise ValueError(f"at must be given, or mtbf, got {'both' if self.at else 'neither'}")
        if (self.mtbf is None) != (self.mttr is None):
            raise ValueError("mttr must be given with mtbf, and only then")
        if self.repair is not None and not self.at:
            raise ValueError("repair must be left out with mtbf, which has mttr")

    @property
    def cable(self) -> Cable | None:
        """The ends of the link that fails, if one does."""
        return None if self.link is None else (self.link[0], self.link[1])

    @property
    def is_for_good(self) -> bool:
        """Whether the failure is never repaired."""
        return self.mtbf is None and self.repair is None

    def together(self, names: Sequence[str]) -> list[tuple[str, ...]]:
        """Return which of some clients fail together. names: all that the failure is about."""
        if self.at or self.node is not None:
            return [tuple(names)]
        return [(name,) for name in names]

    def changes(self, rng: Rng) -> Iterator[Change]:
        """Yield failures and repairs of a group that fails together, in order of time."""
        if self.at:
            yield from self._at_given_times()
            return
        now = 0.0
        while self.mtbf is not None and self.mttr is not None:
            now += max(rng.exponential(self.mtbf), math.ulp(now))
            yield Change(now, "fail")
            now += max(rng.exponential(self.mttr), math.ulp(now))
            yield Change(now, "repair")

    def _at_given_times(self) -> Iterator[Change]:
        what: Literal["fail", "leave"] = "leave" if self.repair is None else "fail"
        found = [Change(time, what) for time in self.at]
        if self.repair is not None:
            found += [Change(time + self.repair, "repair") for time in self.at]
        yield from sorted(found, key=lambda change: change.time)


class Change(NamedTuple):
    """Changes of clients at a time (seconds); clients in `leave` fail for good."""

    time: float
    what: Literal["fail", "leave", "repair"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """Clients that stop taking requests at a time, finish those they have, and leave.

    clients: their names, or those of groups of copies.
    at: when it begins, from the start of the run.
    back: time after `at` at which they start again; a client not empty by then takes requests again
        at once. None: never.

    Raises ValueError without clients, and for times out of range.
    """

    clients: tuple[str, ...]
    at: NotNegative[Seconds]
    back: Positive[Seconds] | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.clients:
            raise ValueError("clients must have at least one entry, got none")


@dataclass(frozen=True, kw_only=True)
class OnFailure:
    """How requests inside a client that fails go on, or end.

    policy: retry sends each to another client, as a prompt with the tokens emitted so far, whose KV
        entries are computed again; the user keeps these tokens. resume does the same, but if a
        prefill client still keeps entries that the decode client had not begun to fetch, another
        decode client continues from them. fail ends the request as lost.
    max_retries: how often a request may be sent to another client; the next loss ends it.

    Source: the migration of requests in NVIDIA Dynamo (`--migration-limit`), which appends the
    tokens so far to the prompt.
    Raises ValueError for less than no retries.
    """

    policy: Literal["retry", "resume", "fail"] = "retry"
    max_retries: NotNegative[int] = 3

    def __post_init__(self) -> None:
        check_fields(self)
        if self.policy == "fail" and self.max_retries != OnFailure.max_retries:
            raise ValueError("max_retries must be left out with policy: fail, which has none")


RETRY = OnFailure()
"""The policy if none is named."""
