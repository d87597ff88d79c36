"""The ends of TaiChi's sliders as a file writes them: clients that are alike, and prompts apart."""

from typing import Any

import pytest

from mist_sim import Result, Scenario, ScenarioError, simulate
from mist_sim.scenario.build import build
from tests.reference.scenarios import of_profile

CHUNK = 512
RECORDS = ("requests", "stages", "steps", "transfers")
ROUTERS = [{"type": "length_aware", "ttft": "300 ms"}, "least_outstanding", "round_robin"]


def hybrid(s_p: int = 1024, s_d: int = CHUNK, *, watermark: float = 0.05) -> dict[str, Any]:
    """Return one whose answers flow, as a user writes it."""

    def client(name: str, role: str, chunk: int) -> dict[str, Any]:
        return {
            "name": name,
            "role": role,
            "count": 2,
            "gpu": "a100-sxm-80gb",
            "scheduler": {"max_num_batched_tokens": chunk, "max_num_seqs": 128},
            "async_scheduling": False,
        }

    policy = {"type": "flowing", "tpot": "60 ms", "watermark": watermark}
    return {
        "model": "qwen2.5-14b",
        "workload": of_profile(120, "12 /s"),
        "clients": [client("p", "p_heavy", s_p), client("d", "d_heavy", s_d)],
        "network": {"topology": "hgx-a100"},
        "hand_over": {"first_token": "decode", "policy": policy},
    }


def run(data: dict[str, Any]) -> Result:
    return simulate(Scenario.from_dict(data))


def without_roles(data: dict[str, Any]) -> dict[str, Any]:
    """Return the same clients, with nothing between them."""
    plain = {key: value for key, value in data.items() if key not in ("network", "hand_over")}
    plain["clients"] = [
        {key: value for key, value in client.items() if key != "role"} for client in data["clients"]
    ]
    return plain


@pytest.mark.parametrize("router", ROUTERS, ids=["length_aware", "least", "in turn"])
@pytest.mark.parametrize("transfer", ["pull", "push"])
def test_chunks_of_one_size_are_clients_without_role(router, transfer):
    """S_D = S_P: nothing flows, and all records are those of the pure design."""
    data = hybrid(CHUNK, CHUNK) | {"router": router}
    data["hand_over"]["transfer"] = transfer
    mine, theirs = run(data), run(without_roles(data))
    for name in RECORDS:
        assert getattr(mine, name).equals(getattr(theirs, name)), name
    assert len(mine.transfers) == 0
    assert "max_moves_per_request" not in mine.summary
    assert mine.summary == theirs.summary


def test_chunks_of_two_sizes_flow():
    """A token is enough."""
    result = run(hybrid(CHUNK, CHUNK - 1))
    assert result.summary["max_moves_per_request"] > 0


def test_all_chunks_have_to_be_of_one_size():
    data = hybrid(CHUNK, CHUNK)
    data["clients"].insert(1, {**data["clients"][0], "name": "q", "count": 1})
    data["clients"][1]["scheduler"] = {"max_num_batched_tokens": 2 * CHUNK, "max_num_seqs": 128}
    data["network"] = {"bandwidth": "300 GB/s"}
    assert run(data).summary["num_hand_overs"] > 0


def test_clients_that_are_alike_keep_their_roles_where_sliders_move():
    """They have to become something else later, and answers flow until then, too."""
    data = hybrid(CHUNK, CHUNK) | {"slo": {"ttft": "1 s", "tpot": "60 ms"}}
    data["reconfigure"] = {"schedule": [{"at": "5 s", "num_p": 1, "s_p": 1024, "s_d": 256}]}
    result = run(data)
    assert result.transfers["start"].min() < 5.0
    assert result.summary["reconfigurations"][0]["s_d"] == 256


def test_one_kind_of_clients_alone_is_refused_as_before():
    data = hybrid(CHUNK, CHUNK)
    data["clients"][1]["role"] = "p_heavy"
    with pytest.raises(ScenarioError, match="FlowingPolicy needs a client with role d_heavy"):
        build(Scenario.from_dict(data))


@pytest.mark.parametrize("scheduler", [{"max_num_batched_tokens": 0}, {"max_num_seqs": 64}])
def test_no_chunk_at_all_is_refused_and_says_what_to_write(scheduler):
    """S_D = 0. The advice, taken, is prefill and decode apart."""
    data = hybrid()
    data["clients"][1]["scheduler"] = {"max_num_batched_tokens": 0} | scheduler
    with pytest.raises(ScenarioError) as info:
        Scenario.from_dict(data)
    for part in (
        "clients.1.scheduler: max_num_batched_tokens must be >= 1 with role d_heavy, got 0",
        "write role: decode here, and role: prefill for the p_heavy clients",
        "leave hand_over.policy out",
    ):
        assert part in str(info.value)
    p, d = data["clients"]
    p["role"], d["role"] = "prefill", "decode"
    p["scheduler"]["max_num_batched_tokens"] = 131_072
    del d["scheduler"]["max_num_batched_tokens"], data["hand_over"]["policy"]
    result = run(data)
    assert set(result.transfers["source"]) == {"p-0", "p-1"}
    assert "max_moves_per_request" not in result.summary
