"""Models of two sizes: the small one answers, and what its reviewer doubts goes to the large one.

MIST names model routing in its abstract, and routing by complexity or quality as future work
(footnote 6). Here the outcome of a stage decides: a reward model has read the answer.
"""

from dataclasses import dataclass
from typing import ClassVar

import mist_sim as mist

SMALL, LARGE, REVIEWER = "llama-3.1-8b", "llama-3.1-70b", "qwen2.5-math-prm-7b"


@mist.STAGES.register("escalate")
@dataclass(frozen=True, kw_only=True)
class Escalate(mist.Growing):
    """Ask the large model as well where the answer is doubted. share: of the answers."""

    kind: ClassVar[str] = "escalate"
    leads_to: ClassVar[tuple[str, ...]] = ("prefill", "decode")
    names_models: ClassVar[tuple[str, ...]] = ("model",)
    share: float
    model: str = LARGE

    def follow(self, request, rng):
        if rng.random() >= self.share:
            return mist.Served()
        prompt, answer = request.num_prompt_tokens, 200  # a short answer of the large model
        stages = (mist.Prefill(num_prompt_tokens=prompt), mist.Decode(num_tokens=answer - 1))
        again = mist.Request(0, None, stages, content=request.content, model=self.model)
        return mist.Served(children=(again,))


def serve(stages, model):
    clients = [
        mist.ApplicationClient("gateway"),
        mist.llm_client("small", model=SMALL, gpu="l40s"),
        mist.llm_client("reviewer", model=REVIEWER, gpu="l40s", max_model_len=40_960),
        mist.llm_client("large", model=LARGE, gpu="h100-sxm", tensor_parallel_size=4),
    ]
    workload = mist.Workload(
        mist.Profile(num_requests=400),
        mist.PoissonArrivals(rate=2.0),
        mist.template([mist.Prefill, mist.Decode, *stages]),
        models={model: 1},
    )
    return mist.Simulation(clients=clients, workload=workload, seed=2).run()


def row(name, result):
    busy = result.clients.set_index("client")
    seconds = 4 * busy.loc["large", "busy"] / result.requests["parent_id"].isna().sum()
    mine = result.requests[result.requests["parent_id"].isna()]["e2el"]
    print(f"{name:22} E2E mean {mine.mean():4.1f} s, p99 {mine.quantile(0.99):4.1f} s; ", end="")
    print(
        f"{busy.loc['large', 'num_visits']:4,} visits of the large, {seconds:4.1f} GPU s of it each"
    )


row("always the large one", serve([], LARGE))
for share in (0.0, 0.1, 0.3, 0.6, 1.0):
    review = [mist.ModelPass(model=REVIEWER), Escalate(share=share)]
    row(f"small first, {100 * share:3.0f}% on", serve(review, SMALL))
