"""Disaggregation policies: which requests are handed over now, and between which clients.

Roles decide this once. A policy decides for each request: it narrows the router's candidates, and
tells whether a client that could serve the whole answer hands it over after the prompt. It is asked
when the request is sent, and sees what a router sees.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from mist_sim.checks import Checked, NotNegative, Positive, check_fields
from mist_sim.core.candidates import Candidates
from mist_sim.core.request import Request, Stage
from mist_sim.core.views import ClientView
from mist_sim.registry import Registry
from mist_sim.units import Seconds

HAND_OVER_POLICIES = Registry("hand_over_policies")


@HAND_OVER_POLICIES.register("conditional")
@dataclass(kw_only=True)
class ConditionalPolicy(Checked):
    """Compute short or mostly cached prompts where they decode, on clients without a role.

    A prompt goes to such a client if at least one of them would compute at most `max_local_tokens`
    of it. Other prompts go to clients with role prefill, unless more than `max_waiting` requests
    wait at the least busy of these.

    max_local_tokens: uncached tokens of a prompt (>= 0). max_waiting: requests (>= 0).

    Source: the two conditions of NVIDIA Dynamo's disaggregated router (0.2, "Disaggregated
    Serving"); both default values are ours.
    """

    max_local_tokens: NotNegative[int] = 1000
    max_waiting: NotNegative[int] = 2

    def lacks(self, roles: Sequence[str | None]) -> str | None:
        """Return which role no client has, or None."""
        return _lacks(roles, {"with role prefill": "prefill", "without a role": None})

    def begin(self) -> None:
        """Do nothing: the policy keeps no state."""

    def among(self, request: Request, stage: Stage, candidates: Candidates) -> Candidates:
        """Return local candidates for a short or cached prompt, else prefill clients if free."""
        num_tokens = getattr(stage, "num_prompt_tokens", None)
        if num_tokens is None:
            return candidates
        most = self.max_local_tokens
        alone = [view for view in candidates if view.role is None]
        local = [view for view in alone if num_tokens - view.prefix_tokens(request) <= most]
        if local:
            return Candidates(local)
        free = any(v.role and v.num_waiting <= self.max_waiting for v in candidates)
        return _some(candidates, (view for view in candidates if (view.role is not None) == free))

    def hands_over(self, request: Request, here: ClientView, candidates: Candidates) -> bool:
        """Return False: the client that computes a prompt also decodes its answer."""
        return False


@HAND_OVER_POLICIES.register("overflow")
@dataclass(kw_only=True)
class OverflowPolicy(Checked):
    """Hand answers from clients without a role to clients with role decode while these have room.

    If more than `max_waiting` requests wait at every decode client, its memory is full, and the
    client decodes the answer itself.

    max_waiting: requests (>= 0).
    """

    max_waiting: NotNegative[int] = 0

    def lacks(self, roles: Sequence[str | None]) -> str | None:
        """Return which role no client has, or None."""
        return _lacks(roles, {"with role decode": "decode", "without a role": None})

    def begin(self) -> None:
        """Do nothing: the policy keeps no state."""

    def among(self, request: Request, stage: Stage, candidates: Candidates) -> Candidates:
        """Return all candidates for a prompt; clients with role decode for an answer."""
        if not stage.continues:
            return candidates
        return _some(candidates, (view for view in candidates if view.role))

    def hands_over(self, request: Request, here: ClientView, candidates: Candidates) -> bool:
        """Return whether few enough requests wait at a client with role decode."""
        return any(v.role and v.num_waiting <= self.max_waiting for v in candidates)


@HAND_OVER_POLICIES.register("flipping")
@dataclass(kw_only=True)
class FlippingPolicy:
    """Clients without a role take the side that is short of clients: prompts or answers.

    The first `num_prefill` clients begin with prompts. When a request is sent and one side is short
    of clients, the client with the fewest requests changes sides: to prompts if more than
    `max_waiting_tokens` prompt tokens wait per client there, else to answers if more than
    `max_waiting` requests wait per client there. It finishes the requests it has begun; a client
    that changes to answers takes the first one when it is empty, so that clients do not wait for
    one another's memory. Each side keeps at least one client, and changes are at least `interval`
    seconds apart.

    num_prefill: clients (>= 1). max_waiting_tokens: tokens (>= 0). max_waiting: requests (>= 0).
    interval: seconds (>= 0).

    Source: the idea is Splitwise's mixed pool (arXiv:2311.18677, §IV-B), whose machines change
    sides with the queues; the rule is ours.
    """

    num_prefill: Positive[int] = 1
    max_waiting_tokens: NotNegative[int] = 8192
    max_waiting: NotNegative[int] = 0
    interval: NotNegative[Seconds] = 10.0

    def __post_init__(self) -> None:
        check_fields(self)
        self.begin()

    def lacks(self, roles: Sequence[str | None]) -> str | None:
        """Return a text on what is missing if fewer than two clients have no role, else None."""
        return None if list(roles).count(None) > 1 else "two clients without a role"

    def begin(self) -> None:
        """Start with no client on either side."""
        self._prefills: set[int] | None = None
        self._emptying: set[int] = set()  # clients that take answers once they are empty
        self._changed_at = -inf

    def among(self, request: Request, stage: Stage, candidates: Candidates) -> Candidates:
        """Return the clients on the side of the stage, after a change of sides if one is due."""
        alone = [view for view in candidates if view.role is None]
        if self._prefills is None:
            first = alone[: max(1, min(self.num_prefill, len(alone) - 1))]
            self._prefills = {view.client_id for view in first}
        self._emptying -= {v.client_id for v in alone if not (v.num_outstanding or v.num_kv_blocks)}
        if not stage.continues:
            self._change(request.sent_at, alone)
            return _some(candidates, (v for v in candidates if v.role or self._has_prompts(v)))
        if request.kv is not None:  # a copy at home takes memory twice
            source = request.kv.source
            candidates = _some(candidates, (v for v in candidates if v.name != source))
        return _some(candidates, (v for v in candidates if v.role or self._has_answers(v)))

    def hands_over(self, request: Request, here: ClientView, candidates: Candidates) -> bool:
        """Return whether a client on the side of prompts can hand over to one of the other side."""
        prefills = self._prefills or set()
        return here.client_id in prefills and any(v.client_id not in prefills for v in candidates)

    def _change(self, now: float, views: list[ClientView]) -> None:
        """Move one client to the other side if that side is short of clients."""
        prefills = self._prefills or set()
        prompts = [view for view in views if self._has_prompts(view)]
        answers = [view for view in views if self._has_answers(view)]
        if now < self._changed_at + self.interval:
            return
        if not prompts or not answers:
            return
        num_tokens = sum([view.num_waiting_tokens for view in prompts])
        num_waiting = sum([view.num_waiting for view in answers])
        if num_tokens > self.max_waiting_tokens * len(prompts) and len(answers) > 1:
            prefills.add(_idlest(answers).client_id)
        elif num_waiting > self.max_waiting * len(answers) and len(prompts) > 1:
            changes = _idlest(prompts).client_id
            prefills.remove(changes)
            self._emptying.add(changes)
        else:
            return
        self._changed_at = now

    def _has_prompts(self, view: ClientView) -> bool:
        return view.client_id in (self._prefills or ())

    def _has_answers(self, view: ClientView) -> bool:
        return not self._has_prompts(view) and view.client_id not in self._emptying


def _lacks(roles: Sequence[str | None], wanted: Mapping[str, str | None]) -> str | None:
    return next((f"a client {text}" for text, role in wanted.items() if role not in roles), None)


def _idlest(views: list[ClientView]) -> ClientView:
    return min(views, key=lambda view: view.num_outstanding)


def _some(candidates: Candidates, chosen: Iterable[ClientView]) -> Candidates:
    """Return the chosen candidates, or all of them if none was chosen."""
    found = Candidates(chosen)
    return found or candidates
