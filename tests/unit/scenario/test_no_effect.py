"""What would change nothing is said before a run, with the field and the reason."""

from dataclasses import dataclass

import pytest

from mist_sim import Client, Rag, ScenarioError, SpeculativeConfig, llm_client
from mist_sim.clients import CLIENTS
from mist_sim.clients.scheduling import ChunkedScheduler
from mist_sim.core.visit import Visit
from mist_sim.scenario.build import build
from tests.reference.scenarios import BASE, scenario


@dataclass(eq=False)
class Lookup(Client):
    """A type of somebody else's."""

    name: str

    def __post_init__(self) -> None:
        super().__init__(self.name, ["rag"])

    def accept(self, visit: Visit) -> None:
        self.begin(visit)
        self.finish(visit)

    def abort(self, visit: Visit) -> None:
        raise NotImplementedError


WORKER = {"name": "search", "type": "sequential", "serves": ["rag"], "base_time": "20 ms"}


def refusal(**overrides: object) -> str:
    with pytest.raises(ScenarioError) as caught:
        build(scenario(**overrides))
    return str(caught.value)


def with_rag(**numbers: int) -> dict[str, object]:
    return {
        "workload__pipeline": [{"type": "rag", **numbers}, "prefill", "decode"],
        "clients": [*BASE["clients"], WORKER],
    }


def test_numbers_of_retrieval_that_no_worker_looks_at():
    build(scenario(**with_rag()))
    message = refusal(**with_rag(num_query_tokens=20, num_documents=5))
    for name in ("num_query_tokens", "num_documents"):
        assert (
            f"workload.pipeline.0.{name}: has no effect: search serves all rag stages alike; "
            "leave it out"
        ) in message
    assert Rag() == Rag(num_query_tokens=None, num_documents=None)


@pytest.fixture
def lookup():
    CLIENTS.register("lookup")(Lookup)
    yield
    del CLIENTS._classes["lookup"]


def test_clients_of_others_may_look_at_them(lookup):
    changes = with_rag(num_documents=5)
    changes["clients"] = [*BASE["clients"], {"name": "own", "type": "lookup"}]
    simulation = build(scenario(**changes))
    assert [type(client).__name__ for client in simulation.clients][-1] == "Lookup"


def test_experts_over_one_rank():
    options = {"clients__0__model": "qwen3-30b-a3b", "clients__0__gpu": "h200"}
    spread = options | {"clients__0__enable_expert_parallel": True}
    assert "enable_expert_parallel: must be false with tensor_parallel_size 1" in refusal(**spread)
    for ranks in ("tensor_parallel_size", "data_parallel_size"):
        build(scenario(**spread | {f"clients__0__{ranks}": 2}))
    with pytest.raises(ScenarioError, match="it has no effect on one rank"):
        llm_client("llm", model="qwen3-30b-a3b", gpu="h200", enable_expert_parallel=True)


def test_a_limit_of_prompts_in_pieces_without_threshold():
    limited = {"clients__0__scheduler": {"type": "chunked", "max_num_partial_prefills": 2}}
    assert (
        "clients.0.scheduler.max_num_partial_prefills: must be left out without "
        "long_prefill_token_threshold, got 2; it has no effect"
    ) in refusal(**limited)
    limited["clients__0__scheduler"]["long_prefill_token_threshold"] = 256
    build(scenario(**limited))
    with pytest.raises(ValueError, match="it has no effect"):
        ChunkedScheduler(max_num_partial_prefills=1)


@pytest.mark.parametrize("model", ["llama-3.1-8b", "kimi-k2", "gpt-oss-20b"])
def test_mtp_needs_layers_that_predict(model):
    config = SpeculativeConfig(method="mtp", num_speculative_tokens=1, acceptance_rate=0.7)
    with pytest.raises(ScenarioError, match=f"another method than mtp for {model}, which has no"):
        llm_client(
            "llm", model=model, gpu="mi355x", tensor_parallel_size=8, speculative_config=config
        )


@pytest.mark.parametrize("model", ["deepseek-v3", "deepseek-ai/DeepSeek-R1", "minimax-m2"])
def test_models_with_such_layers_draft(model):
    config = SpeculativeConfig(method="mtp", num_speculative_tokens=1, acceptance_rate=0.7)
    drafting, plain = (
        llm_client("llm", model=model, gpu="mi355x", tensor_parallel_size=8, speculative_config=c)
        for c in (config, None)
    )
    assert drafting.num_gpu_blocks < plain.num_gpu_blocks
