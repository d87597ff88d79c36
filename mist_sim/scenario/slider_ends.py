"""TaiChi's sliders in the position where all clients are alike."""

from __future__ import annotations

from mist_sim.clients.traits import FLOWING_ROLES
from mist_sim.routers import FlowingPolicy
from mist_sim.scenario.schema import Scenario


def without_idle_roles(scenario: Scenario) -> Scenario:
    """Return a scenario without roles p_heavy and d_heavy if these clients are alike.

    They are alike if all chunks have one size and the sliders do not move: then nothing flows
    between them. Other scenarios are returned unchanged.

    Source: TaiChi (arXiv:2508.01989) §3.1, aggregation is S_D = S_P.
    """
    policy = scenario.hand_over.parameters()["policy"]
    if not isinstance(policy, FlowingPolicy) or scenario.reconfigure is not None:
        return scenario
    described = [client.describe(scenario.model) for client in scenario.clients]
    playing = [
        (client, traits)
        for client, traits in zip(scenario.clients, described, strict=True)
        if traits.role in FLOWING_ROLES
    ]
    if (
        {traits.role for _, traits in playing} != FLOWING_ROLES
        or len({traits.slider and traits.slider.chunk for _, traits in playing}) != 1
        or not all("role" in client.parameters() for client, _ in playing)
    ):
        return scenario
    clients = [
        client.model_copy(update={"role": None}) if traits.role in FLOWING_ROLES else client
        for client, traits in zip(scenario.clients, described, strict=True)
    ]
    hand_over = scenario.hand_over.model_copy(update={"policy": None})
    return scenario.model_copy(update={"clients": clients, "hand_over": hand_over})
