"""Draws gantt.png: three requests over unlike clients, as in MIST's Fig. 1 (b).

    python tools/pages/make_gantt.py

Needs matplotlib, which the project itself does not use: `pip install matplotlib`.
"""

from __future__ import annotations

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.patches import Patch

import mist_sim as mist
from tools.pages.pictures import PICTURES, picture_folder

IMAGES = PICTURES
COLORS = {
    "preprocess": "#8d99ae",
    "prefill": "#e07b39",
    "decode": "#2a6f97",
    "postprocess": "#6a994e",
}
REQUESTS = ("#000000", "#c1121f", "#7209b7")  # edges, by request
PRM, FILTER = "qwen2.5-math-prm-7b", "shieldgemma-2b"


def simulate() -> mist.Result:
    """Three problems a quarter of a second apart: a filter, the best of two answers, text work."""
    pipeline = mist.template(
        [
            mist.Preprocess(task="tokenize"),
            mist.ModelPass(model=FILTER, text="prompt"),
            mist.BestOfN(num_branches=2, reward_model=PRM),
            mist.Postprocess(task="detokenize"),
        ]
    )
    rows = [mist.TraceRow(4000, 60, k / 4) for k in range(3)]
    workload = mist.Workload(
        mist.Rows(rows), mist.TraceArrivals(), pipeline, models={"qwen3-14b": 1}
    )
    clients = [
        mist.TextClient("1 core", speed=0.05),  # a twentieth of the one measured, to be seen
        mist.ApplicationClient("app"),
        mist.llm_client("L4: filter", model=FILTER, gpu="l4"),
        mist.llm_client("H100: generator", model="qwen3-14b", gpu="h100-sxm"),
        mist.llm_client("H100: reward model", model=PRM, gpu="h100-sxm", max_model_len=8192),
    ]
    return mist.Simulation(clients=clients, workload=workload).run()


def main() -> None:
    """Draw a row for each visit at a time of a client, coloured by stage."""
    result = simulate()
    root = _roots(result)
    stages = result.stages.sort_values(["started_at", "request_id"])
    figure, axes = plt.subplots(figsize=(8.8, 4.0), layout="constrained")
    base, ticks = 0, []
    for client in ("1 core", "L4: filter", "H100: generator", "H100: reward model"):
        mine = stages[stages["client"] == client]
        lanes: list[float] = []
        places: dict[int, int] = {}
        for row in mine.itertuples():
            lane = places.get(row.request_id)
            if lane is None:
                free = [k for k, end in enumerate(lanes) if end <= row.started_at]
                lane = free[0] if free else len(lanes)
                places[row.request_id] = lane
            lanes[lane : lane + 1] = [row.finished_at]
            axes.barh(
                base + lane,
                row.finished_at - row.started_at,
                left=row.started_at,
                height=0.8,
                color=COLORS[row.stage],
                edgecolor=REQUESTS[root[row.request_id]],
                linewidth=1.4,
            )
        ticks.append((base + (len(lanes) - 1) / 2, client))
        base += len(lanes) + 1
    axes.set_yticks(*zip(*ticks, strict=True))
    axes.invert_yaxis()
    axes.set(xlabel="time, s")
    axes.spines[["top", "right"]].set_visible(False)
    of_stages = [Patch(color=color, label=stage) for stage, color in COLORS.items()]
    of_requests = [
        Patch(facecolor="none", edgecolor=color, label=f"request {k + 1}", linewidth=1.4)
        for k, color in enumerate(REQUESTS)
    ]
    axes.legend(handles=of_stages + of_requests, frameon=False, fontsize=8, ncols=2)
    figure.savefig(IMAGES / "gantt.png", dpi=110, metadata={"Software": None})


def _roots(result: mist.Result) -> dict[int, int]:
    """Return for each request the one of a user that it belongs to."""
    requests = result.requests
    parents = dict(zip(requests["request_id"], requests["parent_id"], strict=True))

    def root(request_id: int) -> int:
        while request_id < 0:
            request_id = int(parents[request_id])
        return request_id

    return {int(request_id): root(int(request_id)) for request_id in parents}


if __name__ == "__main__":
    IMAGES = picture_folder(__doc__)
    main()
