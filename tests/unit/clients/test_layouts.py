"""A client whose layout changes while it runs."""

import io
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

import mist_sim as mist
from mist_sim.clients import LlmClient
from mist_sim.clients.kv_cache import CacheTier, SwapSpace
from mist_sim.clients.layouts import EngineLayout
from mist_sim.clients.options.overload import AdmissionControl
from mist_sim.clients.scheduling import ChunkedScheduler, ContinuousScheduler
from mist_sim.errors import ScenarioError
from mist_sim.hardware import Cluster
from mist_sim.hardware.machine import Machine
from mist_sim.hardware.power import PowerDraw
from mist_sim.hardware.predictors import PipelinePredictor, Predictor
from mist_sim.lifecycle import Failures, Lifecycle, OnFailure
from mist_sim.models import load_model
from mist_sim.models.kv_groups import KvGroups
from mist_sim.network import Fabric, Link
from mist_sim.report.run import results_table
from mist_sim.traces import Workload
from tests.reference.changing import at, change_at
from tests.reference.comparison import workload
from tests.reference.engines import llm_engine
from tests.reference.predictors import AffinePredictor
from tests.reference.stepwise import Job

FLAT = PowerDraw(idle=0.1, active=0.9, memory=0.0, compute=0.0)
BUSY = 1000 / 2**0.25  # watts of FLAT in any step, and 100 W idle
GPU = replace(mist.load_gpu("h100-sxm"), power=1000.0, draw=FLAT)
MODEL = load_model("llama-3.1-8b")
NONE = dict.fromkeys(("per_score", "per_context_token", "per_window_token", "per_longest"), 0.0)
WHOLE = AffinePredictor(1.0, 0.25, per_decode=0.5, **NONE)
HALF = AffinePredictor(0.5, 0.125, per_decode=0.25, **NONE)
HALVES = PipelinePredictor((HALF, HALF), lambda num_tokens: 0.0)


def engine(
    predictor: Predictor | PipelinePredictor,
    num_gpu_blocks: int = 10,
    name: str = "llm",
    **options: Any,
) -> LlmClient:
    """Return an engine with blocks of 4 tokens and a budget of 16."""
    scheduler = ChunkedScheduler(max_num_seqs=4, max_num_batched_tokens=16)
    options = {"scheduler": scheduler, "block_size": 4, "kv_block_bytes": 4.0} | options
    return llm_engine(name, predictor=predictor, num_gpu_blocks=num_gpu_blocks, **options)


def on_four_gpus(client: LlmClient, tensor: int, pipeline: int) -> LlmClient:
    sizes = {"tensor_parallel_size": tensor, "pipeline_parallel_size": pipeline}
    machine = Machine(model=MODEL, cluster=Cluster(GPU, **sizes))
    client.traits = replace(client.traits, machine=machine)
    return client


def tp4() -> LlmClient:
    return on_four_gpus(engine(WHOLE), 4, 1)


def tp2_pp2(num_gpu_blocks: int = 10) -> LlmClient:
    return on_four_gpus(engine(HALVES, num_gpu_blocks), 2, 2)


def run(client: LlmClient, prompts: list[int], outputs: list[int], times: list[float], **more: Any):
    requests = Workload.from_lists(prompts, outputs, times)
    return mist.Simulation(clients=[client], workload=requests, **more).run()


def by_hand() -> mist.Result:
    """TP 4 computes 8 + 8 tokens in 5 s, then 4 tokens and a decode in 2.5 s.

    Asked at 6 s, the change begins at 7.5 s and takes 10 s. A third request comes meanwhile.
    """
    client = tp4()
    change_at(client, 6.0, tp2_pp2().layout, 10.0)
    return run(client, [8, 12, 4], [4, 3, 2], [0.0, 0.0, 8.0])


def test_times_by_hand():
    """A rank computes 4 tokens and a decode in 1.25 s, one decode in 0.75 s, two in 1 s."""
    result = by_hand()
    times = [result.token_times(number).tolist() for number in range(3)]
    assert times == [[5.0, 7.5, 20.0, 22.0], [7.5, 20.75, 22.75], [20.0, 22.0]]
    steps = result.steps[["track", "layout", "start", "end", "num_prefill_tokens", "num_decodes"]]
    assert steps.to_numpy().tolist() == [
        [0, 0, 0.0, 5.0, 16, 0],
        [0, 0, 5.0, 7.5, 4, 1],
        [1, 1, 17.5, 20.0, 4, 1],
        [1, 1, 20.0, 22.0, 0, 2],
        [2, 1, 17.5, 22.75, 0, 1],
    ]
    assert result.steps["num_steps"].tolist() == [1, 1, 1, 1, 2]
    assert result.requests["num_preemptions"].sum() == 0
    assert result.clients["num_prefill_tokens"].tolist() == [8 + 12 + 4]


def test_a_core_that_is_made_during_run_steps():
    """Virtual engines have none; TP 4 does, and begins anew after the failure."""
    client = tp2_pp2()
    change_at(client, 0.0, tp4().layout, 0.0)
    failures = Failures(clients=("llm",), at=(1.0,), repair=1.0)
    lifecycle = Lifecycle(failures=(failures,), on_failure=OnFailure(policy="retry"))
    result = run(client, [8], [4], [0.0], lifecycle=lifecycle)
    assert result.requests["status"].tolist() == ["finished"]


def test_blocks_by_hand():
    """At the change, 9 and 12 tokens have entries, 3 blocks each; a lane has 5 of the 10."""
    result = by_hand()
    assert result.steps["num_used_blocks"].tolist() == [4, 6, 4, 5, 4]
    client = result.clients.iloc[0]
    assert client["peak_used_blocks"] == 5 + 4
    assert client["num_gpu_blocks"] == 10


def test_joules_by_hand():
    """Steps keep 4 GPUs busy for 7.5 s, and then 2 for as long on the ranks; 4 run for 22.75 s."""
    result = by_hand()
    client = result.clients.iloc[0]
    assert client["busy"] == 7.5 + 7.5
    assert client["num_gpus"] == 4
    gpu_seconds = 4 * 7.5 + 2 * 7.5
    assert client["energy"] - client["idle_energy"] == pytest.approx(BUSY * gpu_seconds)
    assert client["idle_energy"] == pytest.approx(100 * (4 * 22.75 - gpu_seconds))
    assert result.requests["gpu_seconds"].sum() == pytest.approx(gpu_seconds)
    over_time = result.over_time(2.5)
    watts = over_time["power"].to_numpy() * (over_time["end"] - over_time["start"])
    assert watts.sum() == pytest.approx(client["energy"])
    assert over_time["power"][3] == pytest.approx(400)  # from 7.5 s to 10 s


def test_a_lane_counts_while_its_layout_lasts():
    over_time = by_hand().over_time(2.5)
    assert over_time["utilisation"][:3].tolist() == [1.0, 1.0, 1.0]  # of one lane
    # from 20 s on, the ranks compute for 2 s of lane 0, and 3 / 5.25 of 2.5 s of lane 1
    assert over_time["utilisation"][8] == pytest.approx((2.0 + 3 / 5.25 * 2.5) / 2.5 / 2)
    assert by_hand().summary["utilisation"] == pytest.approx(
        1.0 * 7.5 / 8 / (7.5 * 1 + 0.5 * 2) * 8
    )


def test_what_a_result_says_of_layouts():
    result = by_hand()
    assert result.summary["layouts"] == [
        {"client": "llm", "start": 0.0, "ready": 0.0, "layout": "TP 4", "num_gpu_blocks": 10},
        {
            "client": "llm",
            "start": 7.5,
            "ready": 17.5,
            "layout": "TP 2 x PP 2",
            "num_gpu_blocks": 10,
        },
    ]
    console = Console(file=io.StringIO(), width=100)
    console.print(results_table(result))
    assert "layouts changed" in console.file.getvalue()
    plain = run(tp4(), [8], [4], [0.0])
    assert "layouts" not in plain.summary
    assert "layout" not in plain.steps
    assert plain.layouts == {}


def test_there_and_back_and_again():
    """The client goes back to TP 4, and a second run begins as the first one did."""
    client = tp4()
    first = client.layout
    change_at(client, 6.0, tp2_pp2().layout, 1.0)
    change_at(client, 10.0, first, 2.0)
    results = [run(client, [8, 12, 4], [9, 9, 9], [0.0, 0.0, 8.0]) for _ in range(2)]
    assert [period.title for period in client.layouts] == ["TP 4", "TP 2 x PP 2", "TP 4"]
    assert results[0].steps["layout"].unique().tolist() == [0, 1, 2]
    assert results[0].steps.equals(results[1].steps)
    last = results[0].steps.query("layout == 2").iloc[-1]
    assert last["busy"] == last["end"] - last["start"]


def test_a_change_to_same_layout_changes_no_time():
    plain = run(tp4(), [8, 12, 4], [9, 9, 9], [0.0, 0.0, 8.0])
    client = tp4()
    change_at(client, 9.0, client.layout, 0.0)
    again = run(client, [8, 12, 4], [9, 9, 9], [0.0, 0.0, 8.0])
    own, shared = "gpu_seconds", "energy"  # sums over more runs of steps are rounded otherwise
    assert plain.requests.drop(columns=[own, shared]).equals(
        again.requests.drop(columns=[own, shared])
    )
    assert plain.requests[shared].tolist() == pytest.approx(again.requests[shared].tolist())
    assert again.summary["layouts"][1]["start"] == 9.5


# --- memory ---------------------------------------------------------------------------------------


def test_what_a_lane_can_never_hold_is_rejected():
    """Lanes have 2 blocks: 10 tokens of the one that runs, or 12 that wait, are too many."""
    client = tp4()
    client.scheduler = replace(client.scheduler, max_num_seqs=1)
    client._shares = [1]
    change_at(client, 4.0, replace(tp2_pp2(4).layout, shares=(1, 1)), 1.0)
    result = run(client, [8, 12, 4, 12], [8, 1, 1, 1], [0.0, 0.0, 0.0, 9.0])
    assert result.requests["status"].tolist() == ["rejected", "rejected", "finished", "rejected"]
    why = "the part of the KV cache that a lane of the pipeline has"
    assert all(why in reason for reason in result.requests["reason"][[0, 1, 3]])
    assert result.requests["num_output_tokens"][0] == 2


def sharing(predictor: Predictor | PipelinePredictor, num_gpu_blocks: int) -> LlmClient:
    return engine(predictor, num_gpu_blocks, enable_prefix_caching=True)


def test_routers_hear_which_prefixes_are_gone():
    """The cache of the first client is lost; the second one has the prefix still."""
    clients = [sharing(WHOLE, 20), engine(WHOLE, 20, "other", enable_prefix_caching=True)]
    change_at(clients[0], 50.0, sharing(HALVES, 40).layout, 1.0)
    seen: list[dict[str, int]] = []

    class Watching:
        def choose(self, request, stage, candidates):
            best, num_tokens = candidates.longest_prefix(request, 9)
            seen.append({best.name: num_tokens} if best else {})
            return candidates[len(seen) % 2].client_id

    jobs = [Job(20.0 * n, 9, 1, content=((0, 8),)) for n in range(5)]
    mist.Simulation(clients=clients, workload=workload(jobs), router=Watching()).run()
    assert seen == [{}, {"other": 8}, {"llm": 8}, {"other": 8}, {"llm": 8}]


def test_views_follow_the_layout():
    client = tp4()
    change_at(client, 6.0, tp2_pp2(30).layout, 10.0)
    seen: list[tuple[int, int, int]] = []

    def look() -> None:
        view = client.view
        seen.append((view.num_gpu_blocks, view.num_kv_blocks, view.num_waiting))

    for time in (6.0, 9.0, 18.0):
        at(client, time, look)
    result = run(client, [8, 12, 4], [4, 3, 2], [0.0, 0.0, 8.0])
    assert seen == [(10, 6, 0), (30, 6, 1), (30, 7, 0)]
    assert result.clients["num_gpu_blocks"].tolist() == [30]


# --- other clients, failures ----------------------------------------------------------------------


def apart(change: str, at: float, **more: Any) -> mist.Result:
    """Two prompts of 8 tokens are done at 5 s; 2 blocks come in 2 s, and there is room for one.

    The client that decodes needs 1.5 s a token. One of the two goes on as a pipeline.
    """
    prefill = engine(WHOLE, 10, "prefill", role="prefill")
    decode = engine(WHOLE, 3, "decode", role="decode")
    for client in (prefill, decode):
        if client.name == change:
            change_at(client, at, engine(HALVES, 20).layout, 2.0)
    requests = Workload.from_lists([8, 8], [4, 4], [0.0, 0.0])
    clients = [prefill, decode]
    return mist.Simulation(
        clients=clients, workload=requests, network=Link(bandwidth=4.0), **more
    ).run()


def test_entries_that_others_will_ask_for_go_along():
    """The second prompt's wait for room at the client that decodes, in the new layout as before."""
    plain, changed = apart("", 0.0), apart("prefill", 6.0)
    assert changed.requests["status"].tolist() == ["finished"] * 2
    assert plain.token_times(1).tolist() == changed.token_times(1).tolist()
    assert changed.transfers["start"].tolist() == plain.transfers["start"].tolist()
    assert changed.transfers["start"][1] > 6.0
    assert changed.summary["layouts"][1]["start"] == 6.0


def test_a_transition_waits_for_entries_that_are_on_their_way():
    """They are there at 7 s, and then the client that decodes goes on as a pipeline."""
    changed = apart("decode", 5.5)
    layouts = changed.summary["layouts"]
    assert layouts[1]["start"] == changed.transfers["end"][0] == 7.0
    assert changed.token_times(0).tolist()[:2] == [5.0, 9.0 + 2 * 0.75]


def test_transition_waits_until_entries_of_others_have_room():
    """Of the two prompts' 4 blocks, those of the first are gone at 7 s; 3 are all there are."""
    prefill = engine(WHOLE, 10, "prefill", role="prefill")
    decode = engine(WHOLE, 3, "decode", role="decode")
    change_at(prefill, 6.0, engine(WHOLE, 3).layout, 1.0)
    requests = Workload.from_lists([8, 8], [4, 4], [0.0, 0.0])
    clients = [prefill, decode]
    result = mist.Simulation(clients=clients, workload=requests, network=Link(bandwidth=4.0)).run()
    assert result.summary["layouts"][1]["start"] == result.transfers["end"][0] == 7.0
    assert result.requests["status"].tolist() == ["finished"] * 2


@pytest.mark.parametrize("fails", [7.0, 9.0, 19.0])
def test_client_that_fails_comes_back_in_new_layout(fails):
    """Before the transition, in it, and after it; it is away for 5 s and empty then."""
    client = tp4()
    change_at(client, 6.0, tp2_pp2(20).layout, 10.0)
    lifecycle = Lifecycle(
        failures=(Failures(clients=("llm",), at=(fails,), repair=5.0),),
        on_failure=OnFailure(max_retries=5),
    )
    result = run(client, [8, 12, 4], [4, 3, 2], [0.0, 0.0, 8.0], lifecycle=lifecycle)
    assert result.requests["status"].tolist() == ["finished"] * 3
    assert result.summary["layouts"][1]["start"] == min(fails, 7.5)
    last = result.steps[result.steps["start"] >= fails]
    assert set(last["layout"]) == {1}
    assert last["start"].min() == fails + 5.0
    assert result.clients["num_gpus"].tolist() == [4]


# --- on several nodes -----------------------------------------------------------------------------


def test_a_layout_is_timed_by_the_nodes_that_its_ranks_lie_on():
    """TP 16 sums over two nodes; TP 8 x PP 2 sums inside each, and hands over between them."""
    options = {"model": "llama-3.1-70b", "gpu": "h100-sxm"}
    client = mist.llm_client("llm", tensor_parallel_size=16, **options)
    other = mist.llm_client("x", tensor_parallel_size=8, pipeline_parallel_size=2, **options)
    first, inside = client.layout, other.layout
    change_at(client, 0.05, inside, 0.5)
    change_at(client, 1.0, first, 0.5)
    network = Fabric(topology="hgx-h100", nodes=2, spans_nodes=True)
    result = run(client, [100], [300], [0.0], network=network)
    texts = [period.collectives for period in client.layouts]
    assert "16 ranks on 2 nodes" in texts[0]
    assert "8" in texts[1]
    assert texts[1] != texts[0] == texts[2]
    assert client.predictor.rank_delay(1) == first.predictor.rank_delay(1)
    assert result.summary["layouts"][1]["collectives"] == texts[1]
    assert result.summary["collectives"] == {"llm": f"{texts[0]}; then {texts[1]}"}
    assert network.lay_out("llm", 1, 2)[0] == 1
    assert network.lay_out("llm", 1, 1)[0] == 0
    with pytest.raises(ScenarioError, match="llm: 16 GPUs cannot be 3 engines of 1 equal ranks"):
        network.lay_out("llm", 3, 1)


# --- what is refused ------------------------------------------------------------------------------

WINDOWS = KvGroups(layers_per_group=1, num_full_groups=1, num_window_groups=1, sliding_window=8)
TIERS = {"cache_tiers": [CacheTier("cpu", 10, 0.0, 0.0)], "enable_prefix_caching": True}
SWAPPING = ChunkedScheduler(max_num_seqs=4, max_num_batched_tokens=16, preemption="swap")
OTHER_GPU = replace(GPU, name="other")

REFUSED = {
    "block_size": ({}, {"block_size": 8}, "must have the same block_size, got 4 and then 8"),
    "caching": ({}, {"enable_prefix_caching": False}, "the same prefix caching, got True"),
    "windows": ({"kv_groups": WINDOWS}, {"kv_groups": WINDOWS}, "no a sliding window"),
    "tiers": (TIERS, TIERS, "no tiers"),
    "swap": (
        {"scheduler": SWAPPING, "swap_space": SwapSpace(4, 0.0)},
        {},
        "must have preemption: recompute",
    ),
    "early rejection": (
        {"admission": AdmissionControl(early_rejection=True)},
        {},
        "must not change with early_rejection",
    ),
    "seats": (
        {},
        {"scheduler": ContinuousScheduler(max_num_seqs=5)},
        r"shares of at most max_num_seqs \(4\), got 5",
    ),
}


def refused(client: LlmClient, layout: EngineLayout, seconds: float, match: str) -> None:
    change_at(client, 1.0, layout, seconds)
    with pytest.raises(ScenarioError, match=match):
        run(client, [8], [4], [0.0])


@pytest.mark.parametrize("case", REFUSED)
def test_combinations_that_are_refused(case):
    first, second, match = REFUSED[case]
    refused(engine(WHOLE, **first), engine(WHOLE, **second).layout, 1.0, match)


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_seconds_that_cannot_be(seconds):
    refused(tp4(), tp4().layout, seconds, "llm: seconds must be finite and >= 0, got")


def test_other_gpus_are_refused():
    later = tp4()
    machine = Machine(model=MODEL, cluster=Cluster(OTHER_GPU, tensor_parallel_size=4))
    later.traits = replace(later.traits, machine=machine)
    refused(
        tp4(), later.layout, 1.0, "the same GPUs, got 4 x h100-sxm of 1000 W and then 4 x other"
    )
    refused(tp4(), on_four_gpus(engine(WHOLE), 2, 1).layout, 1.0, "got 4 x .* and then 2 x")
    refused(tp4(), engine(WHOLE).layout, 1.0, "and then None")


def test_ranks_that_no_links_join_are_refused():
    """Two nodes of eight GPUs can be a pipeline without a network, but not sum over all."""
    options = {"model": "llama-3.1-70b", "gpu": "h100-sxm"}
    sizes = {"tensor_parallel_size": 8, "pipeline_parallel_size": 2}
    later = mist.llm_client("x", tensor_parallel_size=16, **options).layout
    first = mist.llm_client("llm", **sizes, **options)
    change_at(first, 0.01, later, 1.0)
    with pytest.raises(ScenarioError, match="llm: tensor_parallel_size must be <= 8, the GPUs"):
        run(first, [100], [300], [0.0])


def test_a_client_that_is_in_no_run_or_changes_already_is_refused():
    client = tp4()
    with pytest.raises(ScenarioError, match="must not change before the run has begun"):
        client.change_layout(client.layout, 1.0)
    at(client, 1.0, lambda: client.change_layout(client.layout, 1.0))
    at(client, 2.0, lambda: client.change_layout(client.layout, 1.0))
    with pytest.raises(ScenarioError, match="while the client is about to change it"):
        run(client, [8], [4], [0.0])


def test_a_pipeline_has_no_steps_without_prompts():
    held = ChunkedScheduler(max_num_seqs=4, max_num_batched_tokens=16, prefill_schedule_interval=2)
    refused(engine(WHOLE, scheduler=held), engine(HALVES).layout, 1.0, "prefill_schedule_interval")


def test_every_lane_has_a_share():
    with pytest.raises(ScenarioError, match="shares must have one number for each of 2 lanes"):
        replace(engine(HALVES).layout, shares=(4,))
