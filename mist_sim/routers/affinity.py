"""Routers that look at where a prefix, a conversation or the entries of a request are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from mist_sim.checks import Fraction, Positive
from mist_sim.core.candidates import Candidates
from mist_sim.core.request import Request, Stage
from mist_sim.routers.base import ROUTERS, group_of
from mist_sim.routers.load import LoadBound


@ROUTERS.register("prefix_affinity")
@dataclass(kw_only=True)
class PrefixAffinityRouter(LoadBound):
    """Send a visit to the candidate whose prefix cache holds most of its prompt.

    Ties go to the candidate with the fewest outstanding requests, then to the first. If no
    candidate has enough of the prompt cached or all that do are too busy, the request goes to the
    one with the fewest outstanding requests. The router knows the exact contents of the caches, as
    SGLang's gateway and llm-d's precise prefix scorer do through KV-cache events; gateways without
    these events guess from the requests that they sent.

    cache_threshold: least share of the prompt that must be cached, or the request goes by load
        (SGLang's).
    balance_abs_threshold, balance_rel_threshold: a candidate is too busy with more than so many
        outstanding requests above the least busy one, and more than so many times as many.

    Source: `cache_aware` of SGLang's router, with its names and defaults (Model Gateway,
    "Cache-Aware Policy Tuning"), see `LoadBound` for a difference.
    """

    cache_threshold: Fraction = 0.3

    def choose(self, request: Request, stage: Stage, candidates: Candidates) -> int:
        """Return the candidate with the longest cached prefix, or the least loaded one."""
        least = candidates.least("num_outstanding")
        found, num_tokens = candidates.longest_prefix(request, self.most_outstanding(least))
        if found is None or num_tokens < self.cache_threshold * request.num_prompt_tokens:
            return least.client_id
        return found.client_id


@ROUTERS.register("session_affinity")
@dataclass(kw_only=True)
class SessionAffinityRouter(LoadBound):
    """Send the visits of a session to one candidate, by `session_id`.

    A new session, a session whose client has left or is too busy, and a request without a session
    go to the candidate with the fewest outstanding requests. The session then stays there.

    balance_abs_threshold, balance_rel_threshold: as in `prefix_affinity`.
    max_sessions: sessions remembered for each kind of stage and model; the least recently used
        session is forgotten first (>= 1).

    Source: the session router of the vLLM production stack, which hashes the session's key and
    knows no load; the limit, and the choice by queue of a new session, are TensorRT-LLM's
    (`kv_cache_routing_max_sessions`, `kv_cache_routing_new_conv_placement: least_queued`).
    """

    max_sessions: Positive[int] = 65536

    def __post_init__(self) -> None:
        super().__post_init__()
        self._homes: dict[str, dict[int, int]] = {}

    def seed(self, rng: Generator) -> None:
        """Forget the homes of all sessions."""
        self._homes = {}

    def choose(self, request: Request, stage: Stage, candidates: Candidates) -> int:
        """Return the session's candidate, or the least loaded one as its new home."""
        least = candidates.least("num_outstanding")
        if request.session_id is None:
            return least.client_id
        homes = self._homes.setdefault(group_of(request, stage), {})
        home = candidates.get(homes.pop(request.session_id, -1))
        if home is None or home.num_outstanding > self.most_outstanding(least):
            home = least
        homes[request.session_id] = home.client_id  # the latest one, in the order of the dict
        if len(homes) > self.max_sessions:
            del homes[next(iter(homes))]
        return home.client_id


@ROUTERS.register("placement_aware")
@dataclass(kw_only=True)
class PlacementAwareRouter(LoadBound):
    """Send a visit to the candidate that the request's KV entries reach first.

    The time is the latencies of the route plus the bytes over its narrowest link, on an idle
    network. Ties, and requests that bring no entries, go to the candidate with the fewest
    outstanding requests, then to the first. Candidates that are too busy are passed over.

    balance_abs_threshold, balance_rel_threshold: as in `prefix_affinity`.

    Source: MIST §III-C1, "client placement information".
    """

    def choose(self, request: Request, stage: Stage, candidates: Candidates) -> int:
        """Return the candidate that the request's entries reach first."""
        least = candidates.least("num_outstanding")
        if request.kv is None:
            return least.client_id
        outstanding = candidates.numbers("num_outstanding")
        seconds = candidates.transfer_times(request)
        seconds[outstanding > self.most_outstanding(least)] = np.inf
        nearest = np.flatnonzero(seconds == seconds.min())
        return candidates[int(nearest[outstanding[nearest].argmin()])].client_id
