"""SLO attainment through a failure and a scale-up, a line every ten seconds.

Two of four GPUs die at 60 s and can start again at 150 s; from 200 s on 140 requests a second
come, and 60 before. An autoscaler starts two clients while fewer than 95 % of the requests that end
keep the limit, and drains one while nearly all do.
"""

import mist_sim as mist
from mist_sim.rng import Streams

NAMES = tuple(f"llm-{k}" for k in range(8))
WINDOW = 10.0  # seconds
TTFT = 1.0


def workload() -> mist.Workload:
    """Return conversations of the Azure profile at 60, and later 140 requests a second."""
    times = [k / 60 for k in range(12_000)] + [200 + k / 140 for k in range(21_000)]
    rows = list(mist.Profile(num_requests=len(times)).sample_rows(Streams(1).generator("lengths")))
    prompts = [row.num_prompt_tokens for row in rows]
    return mist.Workload.from_lists(prompts, [row.num_output_tokens for row in rows], times)


def simulate() -> mist.Result:
    """Serve it on four GPUs, of which two die, and up to four more."""
    scaling = mist.Autoscaling(
        clients=NAMES,
        policy=mist.SloAttainment(step=2),
        min=4,
        interval=5.0,
        cool_down=20.0,
    )
    lifecycle = mist.Lifecycle(
        failures=(mist.Failures(clients=NAMES[:2], at=(60.0,), repair=90.0),),
        autoscaling=(scaling,),
        start_up=mist.StartUp(storage=5e9, compilation=0.0),
    )
    return mist.Simulation(
        clients=[mist.llm_client(name, model="llama-3.1-8b", gpu="h100-sxm") for name in NAMES],
        workload=workload(),
        router=mist.LeastOutstandingRouter(),
        slo=mist.Slo(ttft=TTFT),
        lifecycle=lifecycle,
    ).run()


def windows(result: mist.Result) -> list[tuple[float, float, float]]:
    """Return (start, share of the arrivals that keep the limit, mean clients up) of each window."""
    requests, states = result.requests, result.client_states
    up = states[states["state"].isin(["up", "draining"])]
    found = []
    for start in range(0, int(requests["arrival_time"].max()), int(WINDOW)):
        end = start + WINDOW
        mine = requests[requests["arrival_time"].between(start, end, inclusive="left")]
        inside = up["end"].clip(upper=end) - up["start"].clip(lower=start)
        found.append((start, (mine["ttft"] <= TTFT).mean(), inside.clip(lower=0).sum() / WINDOW))
    return found


if __name__ == "__main__":
    served = simulate()
    print("   s  attainment                                 clients up")
    for start, share, clients in windows(served):
        print(f"{start:4.0f}  {'█' * round(30 * share):30} {share:6.1%}   {'o' * round(clients)}")
    print(f"{served.summary['num_retried_visits']} requests were sent to another client")
