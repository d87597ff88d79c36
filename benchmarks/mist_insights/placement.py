"""Clients of unlike kinds in one topology: what their places cost (MIST, Fig. 1 (b) and III-C)."""

from __future__ import annotations

from pathlib import Path

import mist_sim as mist

SCENARIO = Path(__file__).parents[2] / "examples" / "scenarios" / "unlike_kinds.yaml"
PLACES = {
    "in another rack": ["node2/gpu0", "node2/gpu1"],
    "beside the prompts": ["node0/gpu2", "node0/gpu3"],
}
OVERSUBSCRIPTIONS = (4, 20, 50, 100, 200)  # racks' bandwidth over that of the spine between them


def placement(where: str, oversubscription: float, requests: int = 1_000) -> dict[str, float]:
    """Return the mean hand-over and the P90 of E2E, in s, with the answers' H100s at a place."""
    changes = {
        "workload.lengths.num_requests": requests,
        "network.oversubscription": oversubscription,
        "clients.3.place": PLACES[where],
    }
    summary = mist.simulate(mist.Scenario.load(SCENARIO, changes)).summary
    return {
        "hand_over": summary["mean_hand_over_ms"] / 1e3,
        "p90_e2el": summary["p90_e2el_ms"] / 1e3,
    }
