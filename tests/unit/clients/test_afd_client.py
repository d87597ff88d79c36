"""A client that decodes on a bundle: by hand, under limits, and what is refused."""

import numpy as np
import pytest

import mist_sim as mist
from mist_sim.clients import AfdClient
from mist_sim.core.front_end import NONE
from mist_sim.rng import Streams
from mist_sim.search import simulate_bundle
from tests.reference.scenarios import of_profile
from tests.refusals import refused

PIPELINE = mist.template([mist.Prefill, mist.Decode])
# attention: a token and 10; FFN: 3 a request and 5; communication: 2 a request and 4; milliseconds
SIX = {"alpha_a": 1, "beta_a": 10, "alpha_f": 3, "beta_f": 5, "alpha_c": 2, "beta_c": 4}
FAST = {"coefficients": "deepseek-v3-ascend-910c", "cycle_s": 1e-6}


def bundle(**options):
    plain = {"model": "llama-3.1-8b", "attention_workers": 2, "slots": 2, "cycle_s": 1e-3}
    return AfdClient("bundle", **(plain | options))


def simulated(client, rows, bandwidth=1e15, cost=None, **workload):
    """Serve rows (arrival, prompt, answer) on a bundle behind a prefill client."""
    prefill = mist.llm_client("prefill", model="llama-3.1-8b", gpu="h100-sxm", role="prefill")
    items = [mist.TraceRow(p, o, arrival_time=t) for t, p, o in rows]
    return mist.Simulation(
        clients=[prefill, client],
        workload=mist.Workload(mist.Rows(items), mist.TraceArrivals(), PIPELINE, **workload),
        network=mist.Link(bandwidth=bandwidth),
        front_end=NONE,
        cost=cost,
    ).run()


def test_one_request_by_hand():
    """100 tokens of 3: attention 110, 111; legs (2 x 4 + 4) / 2; FFN 17; the first comes before."""
    result = simulated(bundle(**SIX), [(0.0, 100, 3)])
    times = result.token_times(0)
    arrived = times[0] + 100 * bundle(**SIX).kv_bytes_per_token / 1e15
    assert times[1] - arrived == pytest.approx(0.110 + 2 * 0.006 + 0.017)
    assert times[2] - times[1] == pytest.approx(0.111 + 2 * 0.006 + 0.017)
    (row,) = result.transfers.itertuples()
    assert (row.kind, row.source, row.num_tokens) == ("hand_over", "prefill", 100)
    assert result.summary["total_output_tokens"] == 3


def test_empty_slots_cost_nothing_without_a_static_graph():
    result = simulated(bundle(**SIX, static_graph=False), [(0.0, 100, 3)])
    assert np.diff(result.token_times(0))[1] == pytest.approx(0.111 + 2 * 0.003 + 0.008)


def test_a_full_bundle_does_what_the_simulation_of_full_slots_does():
    """The same lengths in the same order, with a start that is over soon."""
    rng = Streams(4).generator("lengths")
    prefill, decode = rng.integers(50, 150, 3000), rng.geometric(1 / 40, 3000)
    client = bundle(attention_workers=4, slots=8, **(FAST | {"cycle_s": 1e-3}))
    rows = [(0.0, int(p), int(d) + 1) for p, d in zip(prefill, decode, strict=True)]
    result = simulated(client, rows, bandwidth=1e300)  # who comes is there at once
    alone = simulate_bundle(client.config, prefill, decode, rng, start="fresh")
    steps = result.steps.query("client == 'bundle'")
    last = steps["end"].max()
    middle = steps[(steps["start"] > 0.2 * last) & (steps["end"] < 0.8 * last)]
    assert middle["num_decodes"].min() >= 31
    tokens = (middle["num_steps"] * middle["num_decodes"]).sum()
    seconds = middle["end"].max() - middle["start"].min()
    assert tokens / seconds / 5 == pytest.approx(alone.throughput, rel=0.02)
    assert client.idle_shares == pytest.approx((alone.attention_idle, alone.ffn_idle), abs=0.03)
    busy = result.clients.set_index("client").loc["bundle", "busy"] / result.summary["duration"]
    mean_idle = (4 * client.idle_shares[0] + client.idle_shares[1]) / 5
    assert busy == pytest.approx(1 - mean_idle, abs=0.03)


@pytest.mark.parametrize("limit", ["timeout", "patience"])
def test_requests_that_are_given_up_free_their_slots(limit):
    """Some wait, some are on their way, some in a pass, when it is too late."""
    rng = Streams(5).generator("lengths")
    rows = [(k * 0.05, int(rng.integers(1, 900)), 40) for k in range(60)]
    client = bundle(**(SIX | {"alpha_a": 0.01}))
    seconds = mist.ConstantDuration(time=6.0) if limit == "patience" else 6.0
    limits = mist.TimeLimits(**{limit: seconds})
    result = simulated(client, rows, bandwidth=1e9, time_limits=limits)
    counts = result.requests["status"].value_counts()
    assert counts.get("finished", 0) > 5
    assert counts.drop("finished").sum() > 5
    assert client.view.num_outstanding == 0
    for slots in client.bundle.batches:
        assert slots.num_filled == 0
        assert not slots.held.any()
    given_up = result.requests.query("status != 'finished'")
    assert (given_up["finished_at"] - given_up["arrival_time"]).max() < 6.0 + 0.5  # a pass


def test_a_longest_context_cuts_answers():
    result = simulated(bundle(**SIX, max_model_len=110), [(0.0, 100, 30), (0.0, 109, 30)])
    assert result.requests["num_output_tokens"].tolist() == [10, 1]
    assert result.requests["truncated"].all()


def test_copies_draw_their_own_places():
    draws = [
        Streams(0).generator(f"{name}: placement").integers(1 << 30) for name in ("a-0", "a-1")
    ]
    assert draws[0] != draws[1]


# --- what is refused ----------------------------------------------------------------------------


test_options_that_are_refused = refused(
    lambda options: bundle(**(FAST | options)),
    ({"attention_workers": 0}, "attention_workers must be in [1, 1024], got 0"),
    ({"ffn_workers": -1}, "ffn_workers must be in [1, 1024], got -1"),
    ({"slots": 0}, "slots must be in [1, 65536], got 0"),
    ({"batches": 0}, "batches must be in [1, 64], got 0"),
    ({"batches": 65}, "batches must be in [1, 64], got 65"),
    ({"cycle_s": 0.0}, "cycle_s must be finite and > 0 s"),
    ({"coefficients": "deepseek"}, "no coefficients named 'deepseek'"),
    ({"coefficients": None, "alpha_a": 1.0}, "coefficients are missing: beta_a, alpha_f"),
    ({"alpha_f": -1.0}, "coefficients: alpha_f must be finite and > 0"),
    ({"placement": "best"}, "placement has no .best.. Known: random, least_load"),
    ({"max_model_len": 1}, "max_model_len must be >= 2"),
    ({"kv_memory": 1e9}, "max_model_len is required with kv_memory"),
    ({"kv_memory": 2.0**30, "max_model_len": 8192}, r"kv_memory must be >= 2\.00 GiB, a context"),
    ({"kv_memory": 2.0**33, "max_model_len": 8192, "slots": 5}, r"slots must be <= 4: kv_memory"),
    ({"kv_cache_dtype": "int3"}, "kv_cache_dtype has no 'int3'"),
    error=ValueError,
)


def test_slots_that_fit_are_taken():
    assert bundle(**FAST, kv_memory=2.0**33, max_model_len=8192, slots=4).slots == 4


SCENARIO = {
    "model": "llama-3.1-8b",
    "workload": of_profile(20, "5 /s"),
    "clients": [
        {"name": "prefill", "gpu": "h100-sxm", "role": "prefill"},
        {
            "name": "bundle",
            "type": "afd",
            "attention_workers": 2,
            "slots": 8,
            "coefficients": "deepseek-v3-ascend-910c",
            "cycle_s": "10 us",
        },
    ],
    "network": {"bandwidth": "400 Gb/s"},
}


def test_a_scenario_runs_and_resolves_to_itself():
    scenario = mist.Scenario.from_dict(SCENARIO)
    summary = mist.simulate(scenario).summary
    assert summary["completed"] == 20
    assert summary["estimates"]["bundle"] == "fitted"
    assert "type: afd" in scenario.resolved()


def test_several_bundles_share_the_requests():
    bundles = SCENARIO["clients"][1] | {"count": 2}
    changed = SCENARIO | {"clients": [SCENARIO["clients"][0], bundles], "router": "round_robin"}
    result = mist.simulate(mist.Scenario.from_dict(changed))
    visits = result.clients.set_index("client")["num_visits"]
    assert visits["bundle-0"] == visits["bundle-1"] == 10


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"network": None}, "network: is required"),
        ({"clients.0.role": None}, "clients.1: decodes what a client with role prefill began"),
        ({"clients.1.model": "llama-3.1-70b"}, "clients.1.model: must be llama-3.1-8b"),
        ({"clients.1.kv_cache_dtype": "fp8"}, "clients.1.kv_cache_dtype: must be auto"),
        ({"clients.1.slots": 0}, "clients.1.slots: must be in .1, 65536"),
        ({"clients.1.cycle_s": 5}, "clients.1.cycle_s"),
        ({"clients.1.cycle": "1 us"}, "did you mean 'cycle_s'"),
        ({"clients.1.alpha_a": -1}, "alpha_a must be finite and > 0"),
        ({"clients.1.placement": "least"}, "clients.1.placement"),
        ({"model": None, "clients.0.model": "llama-3.1-8b"}, "clients.1.model: is required"),
    ],
)
def test_scenarios_that_are_refused(change, words):
    scenario = mist.Scenario.from_dict(SCENARIO)
    text = scenario.resolved()
    with pytest.raises(mist.ScenarioError, match=words):
        mist.simulate(_changed(text, change))


def _changed(text, change):
    from io import StringIO

    from ruamel.yaml import YAML

    data = YAML(typ="safe").load(StringIO(text))
    for path, value in change.items():
        *way, last = path.split(".")
        place = data
        for step in way:
            place = place[int(step) if step.isdigit() else step]
        place[last] = value
    return mist.Scenario.from_dict(data)


def test_a_simulation_made_in_python_needs_a_network():
    prefill = mist.llm_client("p", model="llama-3.1-8b", gpu="h100-sxm", role="prefill")
    workload = mist.Workload(mist.Rows([mist.TraceRow(9, 9)]), mist.AllAtOnce(), PIPELINE)
    with pytest.raises(mist.ScenarioError, match="network must be given"):
        mist.Simulation(clients=[prefill, bundle(**FAST)], workload=workload)


@pytest.mark.parametrize("coefficients", [SIX | {"cycle_s": 1e-3}, FAST])
def test_what_bundle_costs_is_not_taken_for_nothing(coefficients):
    """Its GPUs are not known, whether its coefficients are given or published."""
    result = simulated(bundle(**coefficients), [(0.0, 100, 3)])
    assert result.summary["power_unknown"] == ["bundle"]
    assert "energy_j" not in result.summary
    with pytest.raises(mist.ScenarioError, match="the GPUs of bundle"):
        simulated(bundle(**coefficients), [(0.0, 100, 3)], cost=mist.CostOptions())
