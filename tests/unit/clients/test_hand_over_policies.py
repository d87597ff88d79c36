"""Policies of disaggregation: each decision by hand, and runs in which they matter."""

from dataclasses import dataclass, replace
from typing import Any

import pytest

from mist_sim import Scenario, ScenarioError, simulate
from mist_sim.core.candidates import Candidates
from mist_sim.core.hand_over import HandOver, HandOverPolicy
from mist_sim.core.request import Request
from mist_sim.routers import HAND_OVER_POLICIES, ConditionalPolicy, FlippingPolicy, OverflowPolicy
from mist_sim.scenario.build import build
from mist_sim.scenario.loading import as_data
from mist_sim.stages import completion
from mist_sim.testing.doubles import FakeView
from tests.reference.engines import assert_all_is_free
from tests.reference.scenarios import of_profile
from tests.refusals import refused

P0, P1 = FakeView(0, role="prefill"), FakeView(1, role="prefill")
D2, D3 = FakeView(2, role="decode"), FakeView(3, role="decode")
A4, A5 = FakeView(4), FakeView(5)


def ask(policy: HandOverPolicy, *views: FakeView, stage: int = 0, prompt=500, sent_at=0.0):
    """Return the numbers of those that may serve a stage of a request with cached content."""
    stages = completion(prompt, 10)
    request = Request(0, 0.0, stages, prompt, 10, content=((1, prompt),))
    request.sent_at = sent_at
    return [view.client_id for view in policy.among(request, stages[stage], Candidates(views))]


@pytest.mark.parametrize(
    ("prompt", "cached", "waiting", "expected"),
    [
        (100, 0, 0, [4, 5]),  # short
        (101, 0, 0, [0, 1]),  # long
        (500, 400, 0, [4]),  # mostly cached at one of them
        (500, 399, 0, [0, 1]),
        (500, 0, 3, [4, 5]),  # too many wait
        (500, 0, 2, [0, 1]),
    ],
)
def test_short_or_mostly_cached_prompts_stay(prompt, cached, waiting, expected):
    policy = ConditionalPolicy(max_local_tokens=100, max_waiting=2)
    views = [replace(view, num_waiting=waiting) for view in (P0, P1)]
    assert ask(policy, *views, replace(A4, num_cached=cached), A5, prompt=prompt) == expected
    assert ask(policy, D2, A4, stage=1) == [2, 4]
    assert not policy.hands_over(Request(0, 0.0, completion(1, 2)), A4, Candidates([D2, A4]))


@pytest.mark.parametrize(("waiting", "hands_over"), [((0, 9), True), ((1, 1), False)])
def test_who_prefills_goes_on_while_decode_is_full(waiting, hands_over):
    policy = OverflowPolicy(max_waiting=0)
    decodes = [replace(v, num_waiting=n) for v, n in zip((D2, D3), waiting, strict=True)]
    views = Candidates([*decodes, A4])
    assert policy.hands_over(Request(0, 0.0, completion(1, 2)), A4, views) == hands_over
    assert ask(policy, *views, stage=1) == [2, 3]
    assert ask(policy, A4, A5) == [4, 5]


def test_a_client_changes_sides_when_other_is_short():
    policy = FlippingPolicy(num_prefill=1, max_waiting_tokens=100, interval=1.0)
    a, b, c = FakeView(0), FakeView(1, num_running=1), FakeView(2, num_running=2)
    assert ask(policy, a, b, c) == [0]
    assert ask(policy, a, b, c, stage=1) == [1, 2]
    busy = replace(a, num_waiting_tokens=101, num_waiting=1)
    assert ask(policy, busy, b, c) == [0, 1]  # the idlest of those with answers
    assert ask(policy, busy, b, c, stage=1) == [2]
    full = replace(c, num_waiting=1)
    assert ask(policy, a, b, full, sent_at=0.5) == [0, 1]  # too early
    assert ask(policy, a, b, full, sent_at=1.0) == [1]
    assert ask(policy, a, b, full, stage=1, sent_at=1.0) == [0, 2]
    assert policy.hands_over(Request(0, 0.0, completion(1, 2)), b, Candidates([a, b, c]))
    assert not policy.hands_over(Request(0, 0.0, completion(1, 2)), a, Candidates([a, b, c]))
    policy.begin()
    assert ask(policy, a, b, c) == [0]


def test_who_changes_to_answers_takes_them_when_it_is_empty():
    policy = FlippingPolicy(num_prefill=2, interval=1.0)
    a, b, c = FakeView(0), FakeView(1, num_running=1), FakeView(2, num_waiting=1)
    kept = replace(a, num_kv_blocks=3)  # of prompts that nobody has fetched
    assert ask(policy, kept, b, c) == [1]
    assert ask(policy, kept, b, c, stage=1) == [2]
    c = replace(c, num_waiting_tokens=10**6)
    assert ask(policy, kept, replace(b, num_waiting_tokens=10**6), c, sent_at=1.0) == [1]
    assert ask(policy, a, b, c, stage=1, sent_at=1.0) == [0, 2]  # before, c was the last one there
    assert ask(policy, kept, b, c, stage=1, sent_at=1.0) == [0, 2]


def test_one_client_is_left_on_each_side():
    policy = FlippingPolicy(max_waiting_tokens=0, interval=0.0)
    a, b = FakeView(0, 1, 0, 9), FakeView(1, 1, 0, 9)
    assert [ask(policy, a, b, sent_at=t) for t in (0.0, 1.0, 2.0)] == [[0]] * 3


test_what_is_bad_is_said = refused(
    lambda policy, parameters: scenario(policy, **parameters),
    ("conditional", {"max_local_tokens": -1}, "max_local_tokens: must be >= 0, got -1"),
    ("conditional", {"max_waiting": -1}, "max_waiting: must be >= 0, got -1"),
    ("overflow", {"max_waiting": -1}, "max_waiting: must be >= 0, got -1"),
    ("flipping", {"num_prefill": 0}, "num_prefill: must be >= 1, got 0"),
    ("flipping", {"interval": "-1 s"}, "interval: must be finite and >= 0 s, got -1"),
    ("fliping", {}, "no hand over policy named 'fliping'; did you mean 'flipping'"),
)


@pytest.mark.parametrize(
    ("policy", "roles", "message"),
    [
        ("conditional", ("prefill", "decode"), "ConditionalPolicy needs a client without a role"),
        ("conditional", (None, None), "ConditionalPolicy needs a client with role prefill"),
        ("overflow", ("prefill", "decode"), "OverflowPolicy needs a client without a role"),
        ("flipping", ("prefill", "decode"), "FlippingPolicy needs two clients without a role"),
    ],
)
def test_what_changes_nothing_is_refused(policy, roles, message):
    with pytest.raises(ScenarioError, match=f"hand_over.policy has no effect: {message}"):
        build(scenario(policy, roles=roles))


def test_a_policy_takes_a_network():
    with pytest.raises(ScenarioError, match="network: is required"):
        scenario("flipping", roles=(None, None), network=None)


# --- runs -------------------------------------------------------------------------------------

ROLES = {
    "conditional": ("prefill", None),
    "overflow": (None, "decode"),
    "flipping": (None, None, None),
    "flowing": ("p_heavy", "d_heavy"),
}
PARAMETERS = {"flowing": {"tpot": "20 ms"}}


def scenario(
    policy: str,
    *,
    roles=None,
    network: Any = "100 Gb/s",
    rate=30,
    blocks=1500,
    seed=0,
    **parameters: Any,
):
    roles = roles or ROLES.get(policy, (None, None))
    return Scenario.from_dict(
        {
            "model": "llama-3.1-8b",
            "workload": of_profile(150, f"{rate} /s"),
            "clients": [
                {
                    "name": f"c{k}",
                    "role": role,
                    "gpu": "h100-sxm",
                    "kv_cache": {"num_gpu_blocks_override": blocks},
                }
                for k, role in enumerate(roles)
            ],
            "network": {"bandwidth": network} if network else None,
            "hand_over": {"policy": {"type": policy, **PARAMETERS.get(policy, {}), **parameters}},
            "router": "least_outstanding",
            "seed": seed,
        }
    )


def test_short_prompts_are_served_in_one_place():
    result = simulate(scenario("conditional", max_local_tokens=700, max_waiting=10**6))
    handed = set(result.transfers["request_id"])
    requests = result.requests.set_index("request_id")["num_prompt_tokens"]
    assert handed
    assert all((requests[k] > 700) == (k in handed) for k in requests.index)


def test_full_decode_client_leaves_answers_where_they_began():
    few, many = (simulate(scenario("overflow", rate=rate)).summary for rate in (1, 60))
    assert few["num_hand_overs"] > 140
    assert 0 < many["num_hand_overs"] < 130
    assert few["completed"] == many["completed"] == 150


def test_roles_flip_under_load_and_nothing_is_lost():
    still, flips = (
        simulate(scenario("flipping", rate=90, blocks=9000, max_waiting_tokens=m, interval="1 s"))
        for m in (10**9, 2000)
    )
    served = [set(r.stages[r.stages["stage"] == "prefill"]["client"]) for r in (still, flips)]
    assert served[0] == {"c0"} < served[1]
    assert flips.summary["completed"] == still.summary["completed"] == 150
    assert flips.summary["mean_ttft_ms"] < still.summary["mean_ttft_ms"]


@pytest.mark.parametrize("transfer", ["pull", "push"])
@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_clients_that_change_sides_do_not_wait_for_one_another(transfer, seed):
    """There is memory for two or three of the longest requests on each."""
    everything = as_data(scenario("flipping", rate=50, blocks=300, seed=seed))
    lengths = {"type": "synthetic", "num_requests": 60}
    lengths |= {"prompt": {"type": "uniform", "low": 1, "high": 2000}}
    everything["workload"]["lengths"] = lengths | {
        "output": {"type": "uniform", "low": 1, "high": 60}
    }
    everything["hand_over"]["transfer"] = transfer
    policy = {"type": "flipping", "max_waiting_tokens": 1000, "interval": "0 s"}
    everything["hand_over"]["policy"] = policy
    assert simulate(Scenario.from_dict(everything)).summary["completed"] == 60


class Exchange:
    """Each of two clients hands all answers over to the other."""

    def lacks(self, roles):
        return None

    def begin(self):
        pass

    def among(self, request, stage, candidates):
        source = request.kv.source if request.kv else None
        return Candidates([view for view in candidates if view.name != source])

    def hands_over(self, request, here, candidates):
        return True


@pytest.mark.parametrize("transfer", ["pull", "push"])
def test_clients_that_wait_for_one_another_are_told_of(transfer):
    simulation = build(scenario("flipping", roles=(None, None), rate=900, blocks=300))
    simulation.hand_over = HandOver(policy=Exchange(), transfer=transfer)
    with pytest.raises(ScenarioError, match=r"room for more requests.*c0 (keeps|has) .*, c1 "):
        simulation.run()


@pytest.mark.parametrize("policy", sorted(HAND_OVER_POLICIES))
@pytest.mark.parametrize("changes", [{}, {"transfer": "push"}, {"first_token": "decode"}])
def test_a_run_again_is_the_same_and_blocks_are_free_at_its_end(policy, changes):
    simulation = build(scenario(policy, rate=60))
    simulation.hand_over = replace(simulation.hand_over, **changes)
    first, again = simulation.run(), simulation.run()
    assert first.requests.equals(again.requests)
    for client in simulation.clients:
        assert_all_is_free(client)


def test_entries_are_not_copied_to_where_they_are_while_others_take_answers():
    """Client 1 computed the prompt and takes answers now; a copy there would hold memory twice."""
    policy = FlippingPolicy(num_prefill=1)
    a, b, c = FakeView(0), FakeView(1), FakeView(2)
    stages = completion(500, 10)
    request = Request(0, 0.0, stages, 500, 10)
    request.sent_at = 0.0
    policy.among(request, stages[0], Candidates([a, b, c]))
    request.kv = Kept(b.name)
    answers = policy.among(request, stages[1], Candidates([a, b, c]))
    assert [view.client_id for view in answers] == [2]
    assert list(policy.among(request, stages[1], Candidates([b]))) == [b]


@dataclass
class Kept:
    """KV entries at a client."""

    source: str
    engine: int = 0
    num_tokens: int = 500
    num_bytes: float = 0.0
