"""A hybrid scenario, with TaiChi's sliders at any position (see `core/sliders.py`)."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from mist_sim.core.sliders import DESIGNS, Design, Sliders, all_sliders
from mist_sim.errors import ScenarioError
from mist_sim.models import load_model
from mist_sim.scenario import Scenario
from mist_sim.scenario.loading import as_data
from mist_sim.scenario.startable import startable

__all__ = ["DESIGNS", "Design", "Slidable", "Sliders", "all_sliders"]


class Slidable:
    """A hybrid scenario whose sliders can be set.

    It has one client of role p_heavy and one of role d_heavy, with any `count`. Everything else is
    kept: model, hardware, router, limits, seed. `max_num_seqs` is lowered to chunks that are
    smaller. An aggregation is made of the p_heavy client, and has no network; nor does a
    disaggregation have a policy of hand-overs.

    Raises ScenarioError for a scenario without such clients, with another scheduler, or whose
    sliders move.
    """

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self._data = as_data(scenario)
        if scenario.reconfigure is not None:
            raise ScenarioError(
                "reconfigure must be left out to search sliders, since it moves them during a run"
            )
        clients = self._data["clients"]
        roles = [client.get("role") for client in clients]
        for role in ("p_heavy", "d_heavy"):
            if roles.count(role) != 1:
                raise ScenarioError(
                    f"clients must have one with role {role}, whose sliders are searched, got "
                    f"{roles.count(role)}; `count` says how many there are of it"
                )
        if not (self._data.get("hand_over") or {}).get("policy"):
            raise ScenarioError(
                "hand_over.policy must be given to search sliders, such as "
                "{type: flowing, tpot: 100 ms}, got none"
            )
        self._p, self._d = roles.index("p_heavy"), roles.index("d_heavy")
        self.num_clients: int = sum(clients[k]["count"] for k in (self._p, self._d))

    @property
    def sliders(self) -> Sliders:
        """Where the sliders of the scenario are.

        Raises ScenarioError unless D-heavy clients have the smaller chunks.
        """
        (num_p, s_p), (num_d, s_d) = (
            (client["count"], client["scheduler"]["max_num_batched_tokens"])
            for client in (self._data["clients"][k] for k in (self._p, self._d))
        )
        if s_d >= s_p:
            raise ScenarioError(
                "scheduler.max_num_batched_tokens of the client with role d_heavy must be < that "
                f"of the p_heavy one ({s_p}) for a hybrid, got {s_d}; lower it"
            )
        return Sliders(num_p=num_p, num_d=num_d, s_p=s_p, s_d=s_d)

    def at(self, sliders: Sliders) -> Scenario:
        """Return the scenario with the sliders there."""
        data = deepcopy(self._data)
        p, d = data["clients"][self._p], data["clients"][self._d]
        p["count"], d["count"] = sliders.num_p, sliders.num_d
        if sliders.design == "hybrid":
            _set_chunk(p, sliders.s_p)
            _set_chunk(d, sliders.s_d)
            if sliders.watermark is not None:
                data["hand_over"]["policy"]["watermark"] = sliders.watermark
        elif sliders.design == "disaggregation":
            p["role"], d["role"] = "prefill", "decode"
            _set_chunk(p, self._longest(p))
            data["hand_over"]["policy"] = None
        else:
            p["role"], p["count"] = None, sliders.num_p + sliders.num_d
            _set_chunk(p, sliders.s_p)
            del data["clients"][self._d], data["network"], data["hand_over"]
        return startable(Scenario.from_dict(data))

    def _longest(self, client: Mapping[str, Any]) -> int:
        """Return the tokens of the longest prompt, so that no prompt is cut."""
        said = client["max_model_len"]
        if said is not None and said > 0:
            return int(said)
        return load_model(client["model"] or self._data["model"]).max_position_embeddings


def _set_chunk(client: dict[str, Any], num_tokens: int) -> None:
    scheduler = client["scheduler"]
    scheduler["max_num_batched_tokens"] = num_tokens
    scheduler["max_num_seqs"] = min(scheduler["max_num_seqs"], num_tokens)
