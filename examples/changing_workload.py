"""TaiChi's sliders when a chat turns into summaries: two fixed positions, and a search on-line.

Until 200 s users chat, and from then on they have papers summarised. Chats want three GPUs for
their answers, and summaries two with large chunks for their prompts. Every 40 s the gateway looks
whether the workload has changed; the search and the change take a minute.
"""

from typing import Any

import mist_sim as mist
from mist_sim.rng import Streams
from mist_sim.scenario import build

WINDOW = 40.0  # seconds
CHANGE, END = 200.0, 520.0
TTFT, TPOT = 3.0, 0.045
CHAT = {
    "prompt": mist.LogNormalLength(mean=600, std=600),
    "output": mist.LogNormalLength(mean=400, std=300),
}
SUMMARY = {
    "prompt": mist.LogNormalLength(mean=3000, std=1000),
    "output": mist.LogNormalLength(mean=50, std=20),
}
ON_CHANGE = {"window": "40 s", "delay": "60 s", "chunks": [128, 256, 2048]}


def workload() -> mist.Workload:
    """Return ten chats a second, and later six summaries, at random times."""
    rng = Streams(1).generator("workload")
    prompts, outputs, times = [], [], []
    for kind, rate, begin, end in ((CHAT, 10, 0.0, CHANGE), (SUMMARY, 6, CHANGE, END)):
        num_requests = int(rate * (end - begin))
        rows = list(mist.Synthetic(num_requests=num_requests, **kind).sample_rows(rng))
        prompts += [row.num_prompt_tokens for row in rows]
        outputs += [row.num_output_tokens for row in rows]
        times += sorted(rng.uniform(begin, end, num_requests).tolist())
    return mist.Workload.from_lists(prompts, outputs, times)


def client(role: str, count: int, chunk: int) -> dict[str, Any]:
    """Return GPUs of one role."""
    return {
        "name": role,
        "role": role,
        "count": count,
        "gpu": "a100-80gb-sxm",
        "scheduler": {"max_num_batched_tokens": chunk, "max_num_seqs": 128},
        "async_scheduling": False,
    }


def scenario(num_p: int, reconfigure: dict[str, Any] | None = None) -> mist.Scenario:
    """Return four GPUs, some of them P-heavy; the workload in it is replaced."""
    lengths = {"type": "profile", "num_requests": 1}
    policy = {"type": "flowing", "tpot": f"{TPOT} s"}
    return mist.Scenario.from_dict(
        {
            "model": "qwen2.5-14b",
            "workload": {"lengths": lengths, "arrivals": "all_at_once"},
            "clients": [client("p_heavy", num_p, 2048), client("d_heavy", 4 - num_p, 128)],
            "network": {"bandwidth": "300 GB/s"},
            "hand_over": {"first_token": "decode", "policy": policy},
            "router": {"type": "length_aware", "ttft": f"{TTFT} s"},
            "slo": {"ttft": f"{TTFT} s", "tpot": f"{TPOT} s"},
            "reconfigure": reconfigure,
        }
    )


def simulate(num_p: int, reconfigure: dict[str, Any] | None = None) -> mist.Result:
    """Serve the workload that changes."""
    simulation = build(scenario(num_p, reconfigure))
    simulation.workload = workload()
    return simulation.run()


def attainment(result: mist.Result) -> list[float]:
    """Return the share of the arrivals of each window that keep the limits."""
    requests = result.requests
    good = (requests["ttft"] <= TTFT) & ~(requests["tpot"] > TPOT)
    return good.groupby((requests["arrival_time"] // WINDOW).astype(int)).mean().tolist()


if __name__ == "__main__":
    results = {
        "1 P-heavy": simulate(1),
        "2 P-heavy": simulate(2),
        "on-line": simulate(1, {"on_change": ON_CHANGE}),
    }
    shares = {name: attainment(result) for name, result in results.items()}
    print("   s  " + "".join(f"{name:>12}" for name in shares))
    for window, row in enumerate(zip(*shares.values(), strict=True)):
        print(f"{window * WINDOW:4.0f}  " + "".join(f"{share:12.1%}" for share in row))
    good = {name: sum(each) / len(each) for name, each in shares.items()}
    print("mean  " + "".join(f"{share:12.1%}" for share in good.values()))
    for time, sliders in results["on-line"].sliders or ():
        print(f"from {time:g} s on: {sliders.name}")
