"""Entries sent to prefill and decode clients at once: MIST's box "KV Retrieval" (section V-A3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

import mist_sim as mist
from benchmarks.mist_insights import SAMPLING

MODEL = "llama-3.1-70b"
TOKEN = mist.load_model(MODEL).kv_bytes_per_token
BANDWIDTHS = (2e9, 8e9, 32e9, 128e9)
NETWORK = 50e9  # bytes/s between the two clients: a NIC of 400 Gb/s
CONTEXT, NEW = 24_576, 1_155  # tokens kept; tokens of a prompt, the mean of Azure's conversations


@dataclass(frozen=True, kw_only=True)
class Move(mist.Stage):
    """Send KV entries from the prefill client to the decode client. num_tokens: of them."""

    kind: ClassVar[str] = "move"
    num_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Both(mist.Growing):
    """Read a context for the prefill client and for the decode client at once; then move the rest.

    at_once: else the prefill client has it first, and sends all of it on.
    """

    kind: ClassVar[str] = "both"
    leads_to: ClassVar[tuple[str, ...]] = ("kv_retrieval", "prefill", "move")
    at_once: bool

    def follow(self, request: mist.Request, rng: np.random.Generator) -> mist.Served:
        """Return the stages that read and compute the context, with or without a second reader."""
        read = mist.KvRetrieval(num_tokens=CONTEXT)
        prompt = mist.Prefill(num_prompt_tokens=CONTEXT + NEW)
        first = mist.Request(0, None, (read, prompt))
        if not self.at_once:
            return mist.Served(then=(Move(num_tokens=CONTEXT + NEW),), children=(first,))
        other = mist.Request(0, None, (read,))  # whose prompt has been computed by the other
        return mist.Served(then=(Move(num_tokens=NEW),), children=(first, other))


class Aside:
    """Send requests without a prompt to the store's other outlet."""

    def choose(self, request: mist.Request, stage: mist.Stage, candidates: mist.Candidates) -> int:
        """Return the first client for requests that compute, another for those that only read."""
        computes = any(isinstance(each, mist.Prefill) for each in request.to_serve)
        return candidates[0 if computes or len(candidates) == 1 else 1].client_id


def copies(
    bandwidth: float, *, at_once: bool, shares_outlet: bool, rate: float, requests: int
) -> dict[str, float]:
    """Return mean and P99 of the time until a decode client has all entries, in s.

    bandwidth: of the store to a client, bytes/s. shares_outlet: and to both clients together.
    """
    stores = [
        mist.KvRetrievalClient(
            name,
            bytes_per_token=TOKEN,
            levels=[
                mist.StorageLevel(
                    name="store" if shares_outlet else name,
                    read_bandwidth=bandwidth,
                    hit_rate=1.0,
                    shared=shares_outlet,
                    total_bandwidth=bandwidth if shares_outlet else None,
                )
            ],
        )
        for name in ("to prefill", "to decode")
    ]
    link = mist.SequentialClient(
        "link",
        serves=["move"],
        num_workers=1,
        service_time=lambda stage: 1e-3 + stage.num_tokens * TOKEN / NETWORK,
    )
    llm = mist.llm_client(
        "llm", model=MODEL, gpu="h100-sxm", tensor_parallel_size=4, sampling=SAMPLING
    )
    work = mist.Workload.from_lists(
        [CONTEXT + NEW] * requests,
        [1] * requests,
        arrivals=mist.PoissonArrivals(rate=rate),
        pipeline=mist.template([Both(at_once=at_once)]),
    )
    gateway = mist.SequentialClient("gateway", serves=["both"], num_workers=requests, base_time=0)
    clients = [*stores, link, llm, gateway]
    result = mist.Simulation(clients=clients, workload=work, router=Aside(), seed=1).run()
    users = result.requests[result.requests["parent_id"].isna()]
    times = users["finished_at"] - users["arrival_time"]
    return {"mean": float(times.mean()), "p99": float(times.quantile(0.99))}
