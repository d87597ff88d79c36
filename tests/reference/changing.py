"""Clients that are told to change their layout at given times of a run."""

from collections.abc import Callable

from mist_sim.clients import LlmClient
from mist_sim.clients.layouts import EngineLayout
from mist_sim.core.recorder import Recorder
from mist_sim.environment import CHANGE, Environment


def at(client: LlmClient, time: float, act: Callable[[], None]) -> None:
    """Let something happen at a time of every run of a client, when steps have ended then."""
    start = client.start

    def begin(env: Environment, client_id: int, recorder: Recorder) -> None:
        if getattr(client, "env", None) is not env:
            env.at(time, CHANGE).callbacks.append(lambda _: act())
        start(env, client_id, recorder)

    client.start = begin  # type: ignore[method-assign]


def change_at(client: LlmClient, time: float, layout: EngineLayout, seconds: float) -> None:
    """Let a client change its layout at a time, unless it is about to change already."""

    def act() -> None:
        if not client.is_changing:
            client.change_layout(layout, seconds)

    at(client, time, act)
