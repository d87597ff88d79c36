"""Prefill and decode on clients of their own: KV entries are handed over, token times by hand.

Times are sums of powers of two, so that equal times are equal.
"""

import numpy as np
import pytest

from mist_sim import llm_client
from mist_sim.clients import LlmClient
from mist_sim.clients.kv_cache import KvCacheConfig
from mist_sim.clients.scheduling import ChunkedScheduler, ContinuousScheduler, MixedScheduler
from mist_sim.core.request import Content
from mist_sim.errors import ScenarioError
from mist_sim.metrics import Result, Slo
from mist_sim.network import Link
from mist_sim.simulation import Simulation
from mist_sim.traces import Retries, Rows, TimeLimits, TraceArrivals, TraceRow, Workload
from tests.reference.apart import engine, link


def row(arrival: float, prompt: int, output: int, content: Content = ()) -> TraceRow:
    return TraceRow(prompt, output, arrival, content=content)


def simulation(
    rows: list[TraceRow], *clients: LlmClient, slo: Slo | None = None, **more: object
) -> Simulation:
    workload = Workload(Rows(rows), TraceArrivals(), **more)
    return Simulation(
        clients=clients or [engine("prefill"), engine("decode")],
        workload=workload,
        network=link(),
        slo=slo,
    )


def served(rows: list[TraceRow], *clients: LlmClient, **more: object) -> Result:
    return simulation(rows, *clients, **more).run()


THREE = [row(0.0, 8, 4), row(0.0, 6, 3), row(0.1875, 12, 1)]


@pytest.mark.parametrize("scheduler", [ContinuousScheduler, ChunkedScheduler, MixedScheduler])
def test_three_requests_by_hand(scheduler):
    """Both first prompts are one step, to 1/8 s.

    Their two blocks each share the link, leave in 4/64 s, and are there 1/128 s later, at 0.1953125
    s. Three decode steps follow, the first two of both. The third answer is a single token: nothing
    is handed over.
    """
    result = served(THREE, engine("prefill", scheduler()), engine("decode", scheduler()))
    assert [result.token_times(k).tolist() for k in range(3)] == [
        [0.125, 0.2265625, 0.2578125, 0.2890625],
        [0.125, 0.2265625, 0.2578125],
        [0.3125],
    ]
    requests = result.requests
    assert requests["ttft"].tolist() == [0.125] * 3
    assert requests["tpot"].tolist()[:2] == [0.1640625 / 3, 0.1328125 / 2]
    assert np.isnan(requests["tpot"][2])
    assert requests["e2el"].tolist() == [0.2890625, 0.2578125, 0.125]
    assert requests["num_output_tokens"].tolist() == [4, 3, 1]
    summary = result.summary
    gaps = [0.1015625, 1 / 32, 1 / 32, 0.1015625, 1 / 32]
    assert summary["mean_itl_ms"] == pytest.approx(1e3 * np.mean(gaps), rel=1e-12)
    moves = result.transfers
    assert moves["kind"].tolist() == ["hand_over"] * 2
    assert moves["source"].tolist() == ["prefill"] * 2
    assert moves["num_tokens"].tolist() == [8, 6]
    assert moves["start"].tolist() == [0.125, 0.125]
    assert moves["end"].tolist() == [0.1953125, 0.1953125]
    assert moves["num_bytes"].tolist() == [2000.0, 2000.0]


@pytest.mark.parametrize(("tpot", "good"), [(0.0546, 1), (0.0547, 2), (0.0665, 3)])
def test_goodput_counts_the_gap_between_the_clients(tpot, good):
    """TPOTs are 54.69 and 66.41 ms; the single token has none."""
    summary = served(THREE, slo=Slo(tpot=tpot)).summary
    assert summary["good_request_fraction"] == pytest.approx(good / 3)


def test_stages_are_listed_where_they_were_served():
    stages = served(THREE[:1]).stages
    assert stages["client"].tolist() == ["prefill", "decode"]
    assert stages["started_at"].tolist() == [0.0, 0.125]
    assert stages["finished_at"].tolist() == [0.125, 0.2578125]


def test_a_prefix_that_destination_has_is_not_moved():
    """The second prompt begins with the two blocks of the first, which the decode client kept."""
    rows = [row(0.0, 8, 2, ((1, 8),)), row(1.0, 12, 2, ((1, 8), (2, 4)))]
    result = served(rows)
    assert result.transfers["num_tokens"].tolist() == [8, 4]
    assert result.requests["num_cached_tokens"].tolist() == [0, 8]


def test_an_answer_that_the_context_cuts_at_its_first_token_is_done():
    result = served([row(0.0, 8, 4)], engine("prefill"), engine("decode", max_model_len=9))
    assert result.requests["status"].tolist() == ["finished"]
    assert result.requests["num_output_tokens"].tolist() == [1]
    assert result.requests["truncated"].tolist() == [True]
    assert result.requests["finished_at"].tolist() == [0.125]
    assert result.transfers.empty


def test_who_is_sent_again_begins_with_its_prompt():
    result = served(
        [row(0.0, 8, 40)],
        time_limits=TimeLimits(timeout=0.2),
        retries=Retries(max_attempts=2, backoff=1.0, jitter=0.0),
    )
    assert result.requests["num_attempts"].tolist() == [2]
    assert result.stages["stage"].tolist().count("prefill") == 2


@pytest.mark.parametrize(
    "clients",
    [[engine("prefill"), engine("decode")], [engine("prefill"), engine(None, name="both")]],
)
def test_roles_without_a_network_are_refused_before_run(clients):
    names = ", ".join(
        f"{client.name} ({client.traits.role})" for client in clients if client.traits.role
    )
    with pytest.raises(ScenarioError) as error:
        Simulation(clients=clients, workload=Workload(Rows(THREE), TraceArrivals()))
    assert str(error.value).startswith("network must be given, since KV entries go from clients")
    assert f"got none with {names}; such as network=Link(" in str(error.value)


def test_engines_without_roles_need_no_network():
    workload = Workload(Rows(THREE), TraceArrivals())
    result = Simulation(clients=[engine(None, name="both")], workload=workload).run()
    assert set(result.requests["status"]) == {"finished"}


@pytest.mark.parametrize("role", ["decode", None])
def test_a_client_that_knows_no_size_of_a_block_says_what_it_needs(role):
    clients = [engine("prefill", kv_block_bytes=None), engine(role, name="x", kv_block_bytes=None)]
    with pytest.raises(ScenarioError, match="^x: kv_block_bytes must be given in EngineMemory"):
        simulation(THREE, *clients)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block_size": 32}, "kv_cache.block_size must be 16 as of p, with which d exchanges"),
        ({"kv_cache_dtype": "fp8"}, "kv_cache.kv_cache_dtype must be auto as of p, .* got fp8"),
        ({"kv_cache_dtype": "bf16"}, None),
    ],
)
def test_clients_that_store_entries_unlike_are_refused_before_a_run(options, message):
    clients = [
        llm_client("p", role="prefill"),
        llm_client("d", role="decode", kv_cache=KvCacheConfig(**options)),
    ]
    if message is None:  # another name of the same
        assert served(THREE, *clients).summary["completed"] == 3
        return
    with pytest.raises(ScenarioError, match=message):
        simulation(THREE, *clients)


def test_a_decode_without_entries_is_rejected():
    result = served([row(0.0, 8, 4)], engine("decode"))
    assert result.requests["reason"].tolist() == ["no client serves the stage 'prefill'"]


def test_the_link_serves_who_comes_first():
    with pytest.raises(ValueError, match="bandwidth must be finite and > 0 B/s, got 0"):
        Link(bandwidth=0)
    with pytest.raises(ValueError, match="latency must be finite and >= 0 s, got -1"):
        Link(bandwidth=1.0, latency=-1)
