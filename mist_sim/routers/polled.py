"""A router that sees clients as of its last poll."""

from __future__ import annotations

from dataclasses import dataclass

from numpy.random import Generator

from mist_sim.checks import Checked, Positive
from mist_sim.core.candidates import Candidates
from mist_sim.core.request import Request, Stage
from mist_sim.routers.base import Router, Seeded
from mist_sim.units import Seconds


@dataclass(kw_only=True)
class PolledRouter(Checked):
    """Let a router see every client as of the last poll, at 0, view_interval, and so on.

    Gateways poll: llm-d's endpoint picker scrapes the servers' metrics every 50 ms, the router of
    the vLLM production stack every 30 s. Prefix caches report their contents by events, not by
    polls.

    router: the router that chooses.
    view_interval: seconds between two polls (> 0).
    counts_sent: whether the router adds the requests that it sent since the poll to a client's
        load. A gateway knows these without polling; without them all requests between two polls go
        to the same client.
    """

    router: Router
    view_interval: Positive[Seconds]
    counts_sent: bool = True

    def seed(self, rng: Generator) -> None:
        """Seed the router inside, if it draws or remembers."""
        if isinstance(self.router, Seeded):
            self.router.seed(rng)

    def choose(self, request: Request, stage: Stage, candidates: Candidates) -> int:
        """Return the choice of the router inside, which sees the state of the latest poll."""
        seen = candidates.polled(self.view_interval, counts_sent=self.counts_sent)
        client_id = self.router.choose(request, stage, seen)
        seen.note_sent(client_id, request)
        return client_id
