"""Options that are refused together: each rule can be broken, and the error says what to change."""

from dataclasses import replace
from typing import Any

import pytest

from mist_sim.clients import EngineConfig
from mist_sim.clients.kv_cache import KvCacheConfig
from mist_sim.clients.options.overload import AdmissionControl
from mist_sim.clients.options.refused_options import REFUSALS, Refusal, Rule
from mist_sim.clients.options.resharding_options import Resharding
from mist_sim.clients.scheduling import ChunkedScheduler, ContinuousScheduler, StaticScheduler
from mist_sim.errors import ScenarioError
from mist_sim.hardware.devices import MemoryTier
from mist_sim.models.adapters import LoraConfig
from mist_sim.models.speculative import SpeculativeConfig
from mist_sim.models.vision import ImagesConfig
from tools.pages.generated import refusals

PLAIN = KvCacheConfig(enable_prefix_caching=False)
TIER = MemoryTier(name="cpu", capacity=2.0**30)
ALONE: dict[str, dict[str, Any]] = {
    "role: p_heavy or d_heavy": {"role": "p_heavy"},
    "lora": {"lora": LoraConfig()},
    "kv_cache.tiers: loads_in_step": {
        "kv_cache": KvCacheConfig(tiers=(replace(TIER, loads_in_step=True),))
    },
    "images": {"images": ImagesConfig()},
    "decode_context_parallel_size > 1": {
        "tensor_parallel_size": 2,
        "decode_context_parallel_size": 2,
    },
    "prefill_context_parallel_size > 1": {"prefill_context_parallel_size": 2},
    "resharding": {
        "resharding": Resharding(tensor_parallel_size=1, pipeline_parallel_size=1),
        "scheduler": ContinuousScheduler(),
        "kv_cache": PLAIN,
    },
}
BROKEN: dict[str, dict[str, Any]] = {
    "role": {"role": "decode"},
    "pipeline_parallel_size": {"pipeline_parallel_size": 2},
    "decode_context_parallel_size": {"decode_context_parallel_size": 2},
    "enable_expert_parallel": {"enable_expert_parallel": True, "data_parallel_size": 2},
    "speculative_config": {
        "speculative_config": SpeculativeConfig(
            method="ngram", num_speculative_tokens=3, acceptance_rate=0.7
        )
    },
    "resharding": ALONE["resharding"],
    "kv_cache.tiers": {"kv_cache": KvCacheConfig(tiers=(TIER,))},
    "kv_cache.enable_prefix_caching": {"kv_cache": KvCacheConfig()},
    "scheduler": {"scheduler": StaticScheduler()},
    "scheduler.order": {"scheduler": ChunkedScheduler(order="priority")},
    "scheduler.preemption": {"scheduler": ChunkedScheduler(preemption="swap")},
    "scheduler.prefill_schedule_interval": {
        "scheduler": ChunkedScheduler(prefill_schedule_interval=2)
    },
    "scheduler.max_num_partial_prefills": {
        "scheduler": ChunkedScheduler(max_num_partial_prefills=2, long_prefill_token_threshold=64)
    },
    "language_model_only": {"language_model_only": True},
    "lora": ALONE["lora"],
    "images": ALONE["images"],
    "async_scheduling": {"async_scheduling": True},
    "admission.early_rejection": {"admission": AdmissionControl(early_rejection=True)},
    "predictor": {"predictor": object()},
}
CASES = [(refusal, rule) for refusal in REFUSALS for rule in refusal.rules]


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda refusal: refusal.option)
def test_each_option_works_alone(refusal):
    EngineConfig(**ALONE[refusal.option])


@pytest.mark.parametrize(
    ("refusal", "rule"), CASES, ids=[f"{one.option}, {other.option}" for one, other in CASES]
)
def test_each_rule_can_be_broken(refusal: Refusal, rule: Rule):
    broken = BROKEN[rule.option]
    if refusal.option == "resharding" and rule.option == "scheduler.preemption":
        broken = {"scheduler": ContinuousScheduler(preemption="swap")}
    if refusal.option == "resharding" and rule.option == "kv_cache.tiers":
        broken = {"kv_cache": replace(PLAIN, tiers=(TIER,))}
    with pytest.raises(ScenarioError) as caught:
        EngineConfig(**{**ALONE[refusal.option], **broken})
    assert str(caught.value).startswith(f"{rule.option} must {rule.rule.split(',')[0]}")


def test_the_page_has_a_row_for_each():
    rows = refusals().splitlines()[2:]
    assert [row.split("`")[1] for row in rows] == [refusal.option for refusal in REFUSALS]
    assert all(f"`{rule.option}`" in row for row, each in zip(rows, REFUSALS, strict=True)
               for rule in each.rules)  # fmt: skip
