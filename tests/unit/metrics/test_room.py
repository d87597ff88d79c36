"""Room: how long clients' steps could have held more, against their own table of steps."""

from itertools import pairwise
from math import ceil

import numpy as np
import pytest

from mist_sim import Scenario, simulate
from tests.reference.scenarios import of_profile

DATA = {
    "model": "llama-3.1-8b",
    "workload": of_profile(300, "30 /s", name="azure-conv-2023"),
    "clients": [{"name": "llm", "gpu": "h100-sxm"}],
}
LIGHT = {"workload.arrivals.rate": "3 /s"}
TIGHT = {
    "tokens": ({"clients.0.scheduler": {"max_num_batched_tokens": 256}}, "max_num_batched_tokens"),
    "seats": ({"clients.0.scheduler": {"max_num_seqs": 12}}, "max_num_seqs"),
    "memory": ({"clients.0.kv_cache": {"num_gpu_blocks_override": 700}}, "KV memory"),
}


def run(changes=None):
    return simulate(Scenario.from_dict(DATA, changes or {}))


def counted_step_by_step(result, tokens, seats, blocks, block_size=16):
    """Shares of the time from the first to the last arrival at each limit, by a loop over steps."""
    arrival = result.requests.arrival_time
    begin, end = arrival.min(), arrival.max()
    prompts = result.requests.num_prompt_tokens
    needed, longest = (ceil(number / block_size) for number in (prompts.mean(), prompts.max()))
    sums = dict.fromkeys(("any", "at_tokens", "at_sequences", "at_memory"), 0.0)
    waited = [0, 0]  # at the ends of the two runs of steps before
    for step in result.steps.itertuples():
        inside = max(min(step.end, end) - max(step.start, begin), 0.0)
        free = blocks - step.num_used_blocks
        at = {
            "at_tokens": step.num_prefill_tokens + step.num_decodes >= tokens,
            "at_sequences": step.num_chunks + step.num_decodes >= seats,
        }
        is_stuck = all([*waited, step.num_waiting]) and not any(at.values())
        at["at_memory"] = free < needed or (is_stuck and free < longest)
        waited = [waited[1], step.num_waiting]
        for name, is_there in (at | {"any": any(at.values())}).items():
            sums[name] += inside * is_there
    return {name: seconds / (end - begin) for name, seconds in sums.items()}


@pytest.mark.parametrize("case", [*TIGHT, "none"])
def test_room_is_the_time_at_no_limit(case):
    changes, limit = TIGHT.get(case, (LIGHT, ""))
    result = run(changes)
    client = result.clients.iloc[0]
    scheduler = changes.get("clients.0.scheduler", {})
    tokens = scheduler.get("max_num_batched_tokens", 8192)
    seats = scheduler.get("max_num_seqs", min(1024, tokens))
    expected = counted_step_by_step(result, tokens, seats, int(client.num_gpu_blocks))
    assert client.room == pytest.approx(1 - expected.pop("any"), abs=1e-12)
    assert {name: client[name] for name in expected} == pytest.approx(expected)
    assert result.summary["room"] == client.room
    assert result.rooms[0].limit == limit
    assert (client.room < 0.9) == (case != "none")


def test_a_decode_client_runs_out_of_seats_and_one_for_prompts_of_tokens():
    clients = [
        {"name": "prefill", "role": "prefill", "gpu": "h100-sxm"}
        | {"scheduler": {"max_num_batched_tokens": 1024}},
        {"name": "decode", "role": "decode", "gpu": "h100-sxm"}
        | {"scheduler": {"max_num_seqs": 20, "max_num_batched_tokens": 1024}},
    ]
    network = {"bandwidth": "400 Gb/s", "latency": "1 us"}
    result = simulate(Scenario.from_dict(DATA | {"clients": clients, "network": network}))
    assert [room.limit for room in result.rooms] == ["max_num_batched_tokens", "max_num_seqs"]
    assert result.summary["room"] == min(room.room for room in result.rooms)


@pytest.mark.parametrize("ranks", [1, 2])
def test_waits_for_slots_of_adapters_leave_no_room(ranks):
    """Against the same states, looked at between any two times at which one changes."""
    lora = {"max_loras": 2, "max_lora_rank": 16}
    loaded = {f"a{number}": 1 for number in range(8)} | {"base": 4}
    changes = {
        "clients.0.lora": lora,
        "clients.0.data_parallel_size": ranks,
        "workload.adapters": loaded,
        "workload.arrivals.rate": "12 /s",
        "workload.lengths.num_requests": 120,
    }
    result = run(changes)
    recorder, (room,) = result.recorder, result.rooms
    names = np.array(recorder.adapter_names.values)[np.array(recorder.adapters)]
    visits, tokens = recorder.visits.columns(), recorder.tokens.columns()
    track_of = dict(zip(tokens["request_id"], tokens["track"], strict=True))
    arrival = result.requests.arrival_time
    begin, end = arrival.min(), arrival.max()
    held = 0.0
    for track in range(ranks):
        mine = np.array([track_of[number] == track for number in visits["request_id"]])
        ids = visits["request_id"][mine]
        queued, started, ended = (
            visits[name][mine] for name in ("queued_at", "started_at", "finished_at")
        )
        times = np.unique(np.concatenate([queued, started, ended, [begin, end]]))
        for first, last in pairwise(times[(times >= begin) & (times <= end)]):
            middle = (first + last) / 2
            used = {names[k] for k in ids[(started < middle) & (middle < ended)]} - {None}
            waiting = {names[k] for k in ids[(queued < middle) & (middle < started)]} - {None}
            held += (last - first) * (len(used) == 2 and bool(waiting - used))
    expected = held / (ranks * (end - begin))
    assert expected > 0.2
    assert room.at_adapters == pytest.approx(expected, abs=1e-9)
    assert room.limit == "max_loras"
    assert room.room <= 1 - expected + 1e-12
    assert run({**changes, "clients.0.lora.max_loras": 8}).rooms[0].at_adapters == 0
    assert run(LIGHT).rooms[0].at_adapters == 0


def test_engines_and_lanes_of_a_pipeline_count_alike():
    """A limit that nearly all steps reach leaves little room, however many tracks there are."""
    for layout in ("data_parallel_size", "pipeline_parallel_size"):
        seats = {"max_num_seqs": 2, "max_num_batched_tokens": 2048}
        lanes = {"clients.0.virtual_engines": layout == "pipeline_parallel_size"}
        result = run({f"clients.0.{layout}": 2, "clients.0.scheduler": seats, **lanes})
        room = result.rooms[0]
        assert room.at_sequences > 0.8
        assert 0 <= room.room <= 1 - room.at_sequences + 1e-12


@pytest.mark.parametrize(
    "changes",
    [
        {"clients.0.scheduler": {"type": "static"}},
        {"workload.arrivals": {"type": "all_at_once"}},
        {"lifecycle": {"failures": [{"clients": "llm", "at": "2 s", "repair": "1 s"}]}},
    ],
)
def test_where_it_is_not_known_it_is_no_number(changes):
    result = run(changes)
    assert np.isnan(result.clients.room).all()
    assert np.isnan(result.summary["room"])


def test_the_table_of_clients_says_which_limit(capsys):
    run(TIGHT["seats"][0]).show()
    shown = " ".join(capsys.readouterr().out.split())
    assert "room" in shown
    assert "no room in" in shown
    assert "of the time at llm, mostly for max_num_seqs" in shown
    run(LIGHT).show()
    assert "no room" not in capsys.readouterr().out
