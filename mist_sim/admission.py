"""Which requests a gateway lets in, lets wait or refuses, before a router sees them: plug-ins."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from math import inf
from typing import Annotated, NamedTuple

import numpy as np

from mist_sim.checks import Checked, NotNegative, Positive, Range, Share, check_fields
from mist_sim.core.candidates import Candidates
from mist_sim.core.request import Request
from mist_sim.errors import ScenarioError, brief
from mist_sim.registry import Registry
from mist_sim.units import Seconds

ADMISSIONS = Registry("admissions")

SHORTEST = 1e-6
"""Least seconds between two questions; shorter ones would never let the time go on."""


class GatewayView(NamedTuple):
    """What a gateway knows of the requests for one model when it is asked about one of them.

    time: seconds since the start. candidates: the clients that compute the request's prompt now (of
    a request without a prompt, those of its first stage), at least one. decoders: the clients that
    compute its answer, by default the same. num_inside: requests that it let in and that have not
    ended. num_tokens: of their prompts and, where predicted, of their answers. of_class: the same
    two numbers of the request's class. num_waiting: requests that wait at the gateway. is_next:
    whether none of these goes before it.
    """

    time: float
    candidates: Candidates
    decoders: Candidates
    num_inside: int
    num_tokens: int
    of_class: tuple[int, int]
    num_waiting: int
    is_next: bool

    @property
    def clients(self) -> Candidates:
        """The clients that compute prompts, answers or both."""
        both = {view.client_id: view for view in (*self.candidates, *self.decoders)}
        return self.candidates if len(both) == len(self.candidates) else Candidates(both.values())

    @property
    def num_on_the_way(self) -> int:
        """Requests inside that have not come to a client, as far as the clients' counts tell."""
        return max(0, self.num_inside - int(self.clients.numbers("num_outstanding").sum()))


class Admission:
    """Lets each request in when it is sent, lets it wait at the gateway, or refuses it.

    A request that waits is asked for again whenever one inside ends, and after the time that
    `delay` named. Requests of a class (`request.label`) go in by their `queue`, equals first come
    first served; one that has to wait lets those of other classes pass. Models have a count and
    queues each. A retry is asked for anew; children of a request belong to it and are not. While no
    client is up, one request goes in and waits for it there. Each run has a copy of its own. A
    gateway does not know how long an answer will be; `request.num_predicted_tokens` is what a
    predictor says.
    """

    def refusal(self, request: Request, gateway: GatewayView) -> str:
        """Return why a request that arrives is refused; empty: it is not. Asked once."""
        return ""

    def delay(self, request: Request, gateway: GatewayView) -> float:
        """Return in how many seconds to ask again; 0 lets the request in, inf: when one ends."""
        return 0.0

    def queue(self, request: Request) -> int:
        """Return the rank of a request that waits; in a class, smaller ones go in first."""
        return request.priority

    def copy(self) -> Admission:
        """Return one for another run, which has seen nothing."""
        return deepcopy(self)


def num_tokens_of(request: Request) -> int:
    """Return the tokens of a request that a gateway knows: its prompt, and what is predicted."""
    return request.num_prompt_tokens + (request.num_predicted_tokens or 0)


@ADMISSIONS.register("limit")
@dataclass(frozen=True, kw_only=True)
class LimitAdmission(Admission):
    """At most so many requests, or tokens, under way for each client that serves them.

    max_requests: requests inside, for each client that computes prompts (>= 1; llm-d's
        `maxConcurrency`); None: no limit.
    max_tokens: tokens of prompts and predicted answers inside, for each such client (>= 1); None:
        no limit. A request goes in whatever its size where none is inside.
    max_waiting: requests that wait at the gateway; one more is refused if it had to wait, too (0:
        none waits). None: no limit.
    shares: of these limits, the most that requests of a class may fill, by label (> 0, <= 1), but
        one at least; classes that are not named fill all.
    """

    max_requests: Positive[int] | None = None
    max_tokens: Positive[int] | None = None
    max_waiting: NotNegative[int] | None = None
    shares: Mapping[str, Share] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.max_requests is None and self.max_tokens is None:
            raise ValueError("max_requests or max_tokens must be set; without both nothing waits")
        check_fields(self)

    def refusal(self, request: Request, gateway: GatewayView) -> str:
        """Return why a request is refused: too many wait, and it cannot go on at once."""
        if self.max_waiting is None or gateway.num_waiting < self.max_waiting:
            return ""
        if gateway.is_next and self._has_room(request, gateway):
            return ""
        return f"busy, max_waiting={self.max_waiting} requests wait at the gateway"

    def delay(self, request: Request, gateway: GatewayView) -> float:
        """Return 0 seconds where there is room for a request; inf: it waits until one ends."""
        return 0.0 if self._has_room(request, gateway) else inf

    def _has_room(self, request: Request, gateway: GatewayView) -> bool:
        if not gateway.num_inside:
            return True
        share, (num_own, own_tokens) = self.shares.get(request.label or "", 1.0), gateway.of_class
        more = num_tokens_of(request)
        for each, inside, own, new in (
            (self.max_requests, gateway.num_inside, num_own, 1),
            (self.max_tokens, gateway.num_tokens, own_tokens, more),
        ):
            most = inf if each is None else each * len(gateway.candidates)
            if inside + new > most or (num_own and own + new > share * most):
                return False
        return True


@ADMISSIONS.register("saturation")
@dataclass(frozen=True, kw_only=True)
class SaturationAdmission(Checked, Admission):
    """Requests wait while the clients are saturated, as in llm-d's flow control.

    A client's score is its queue over `queue_depth`, or its share of KV memory in use over
    `kv_cache_utilization`, whichever is larger; they are saturated when the mean is 1 or more.
    Requests on their way to clients count as in their queues, in equal parts.

    queue_depth, kv_cache_utilization: where one client counts as saturated (> 0; of memory, at most
        1). interval: seconds between two looks while requests wait (>= 1e-6). sheds_from: requests
        with this priority or a larger one, which is less urgent, are refused instead of waiting;
        None: all wait.
    Source: utilization-detector of the Gateway API Inference Extension (its defaults 5 and 0.8, and
        metrics that are read every 50 ms).
    """

    queue_depth: Positive[int] = 5
    kv_cache_utilization: Share = 0.8
    interval: Annotated[Seconds, Range(f"[{SHORTEST:g}, inf)")] = 0.05
    sheds_from: int | None = None

    def refusal(self, request: Request, gateway: GatewayView) -> str:
        """Return why a request is refused: its priority is shed while clients are saturated."""
        sheds = self.sheds_from is not None and request.priority >= self.sheds_from
        if sheds and self.is_saturated(gateway):
            return f"busy, clients are saturated and its priority is {request.priority}"
        return ""

    def delay(self, request: Request, gateway: GatewayView) -> float:
        """Return the seconds after which a saturated gateway asks again; 0: the request goes on."""
        return self.interval if self.is_saturated(gateway) else 0.0

    def is_saturated(self, gateway: GatewayView) -> bool:
        """Tell whether the mean score of the clients is 1 or more."""
        clients = gateway.clients
        waiting = clients.numbers("num_waiting") + gateway.num_on_the_way / len(clients)
        held, blocks = clients.numbers("num_kv_blocks"), clients.numbers("num_gpu_blocks")
        memory = held / blocks.clip(1) / self.kv_cache_utilization
        return bool(np.maximum(waiting / self.queue_depth, memory).mean() >= 1)


def check_admission(admission: object) -> None:
    """Raise ScenarioError for what is no admission, such as a name in Python."""
    if admission is not None and not isinstance(admission, Admission):
        raise ScenarioError(
            f"gateway must be a child of mist_sim.Admission, such as "
            f"LimitAdmission(max_requests=64), got {brief(admission)}"
        )
