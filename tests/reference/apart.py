"""Clients for prompts and for answers whose times are sums of powers of two."""

import numpy as np

from mist_sim.clients import AfdClient, LlmClient
from mist_sim.clients.scheduling import ContinuousScheduler, Scheduler
from mist_sim.network import Link
from tests.reference.engines import llm_engine


class TwoSpeeds:
    """A step takes 1/8 s with a prompt in it, and 1/32 s without."""

    def step_time(self, batch):
        return 1 / 8 if batch.chunks else 1 / 32

    def run(self, batch, growth, num_steps):
        return np.full(num_steps, self.step_time(batch))


def engine(role: str, scheduler: Scheduler | None = None, **more: object) -> LlmClient:
    """Blocks of 4 tokens, each of 1,000 bytes: 1/64 s on the link."""
    return llm_engine(
        more.pop("name", role),
        scheduler=scheduler or ContinuousScheduler(),
        predictor=TwoSpeeds(),
        role=role,
        block_size=4,
        **{"num_gpu_blocks": 100, "kv_block_bytes": 1000.0, **more},
    )


def bundle() -> AfdClient:
    """Return a bundle of attention and FFN workers for answers, which prompts can go to."""
    return AfdClient(
        "bundle",
        model="llama-3.1-8b",
        attention_workers=1,
        slots=4,
        cycle_s=1e-3,
        coefficients="deepseek-v3-ascend-910c",
    )


def link() -> Link:
    return Link(bandwidth=64_000.0, latency=1 / 128)
