"""The front end's delays for a request that walks stage by stage."""

from __future__ import annotations

from collections.abc import Generator

from simpy.events import Event

from mist_sim.clients.deadlines import given_up, limits_of
from mist_sim.core.front_end import ApiServers
from mist_sim.core.request import Request
from mist_sim.core.visit import SERVED, Failure, HeldKv, Visit
from mist_sim.environment import Environment
from mist_sim.stages import Prefill


def through(
    servers: ApiServers,
    env: Environment,
    request: Request,
    visits: list[Visit],
    kv: HeldKv | None,
) -> Generator[Event, object, Failure | None]:
    """Delay a request before its next stage; return a failure if its sender gives up, or None.

    A prompt goes through a server, after the answer before it. A stage that continues from a
    prompt's entries on another client (`kv`) takes the hop to that client's server. Other stages
    take no time.
    """
    stages, begun_at = request.to_serve, env.now
    stage, last = stages[0], visits[-1] if visits else None
    if stage.continues:
        if kv is None or last is None or last.outcome is not SERVED:
            return None
        enters_at = begun_at + servers.hop(kv.num_prompt_tokens)
    else:
        if last is not None and last.num_output_tokens and last.num_served_stages:
            yield env.at(begun_at + servers.leaves_after(visits[-1:]))
        enters_at = env.now
        if stage.kind == Prefill.kind:
            parsed_at = servers.parsed_at(env.now)
            if parsed_at > env.now:
                limit_at, limit = (limits_of(request) or [(parsed_at, "")])[0]
                yield env.at(max(min(limit_at, parsed_at), env.now))
                if limit_at < parsed_at:
                    return given_up(request, limit, env.now)
            enters_at = servers.enters_at(env.now, stage.num_input_tokens)
    if request.limits is not None:
        limit_at, limit = (limits_of(request) or [(enters_at, "")])[0]
        if limit_at < enters_at:
            yield env.at(max(limit_at, env.now))
            return given_up(request, limit, env.now)
    if enters_at > env.now:
        yield env.at(enters_at)
    request.front_end += env.now - begun_at
    return None
