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


def figures(result):
    """Return mean and P99 of E2E, in s, and visits and GPU seconds a request of the large model."""
    users = result.requests[result.requests["parent_id"].isna()]
    large = result.clients.set_index("client").loc["large"]
    return {
        "mean": users["e2el"].mean(),
        "p99": users["e2el"].quantile(0.99),
        "visits": large["num_visits"],
        "gpu_seconds": 4 * large["busy"] / len(users),
    }


def compared(shares=(0.0, 0.1, 0.3, 0.6, 1.0)):
    """Yield figures of the large model alone, and of the small one first, by share that goes on."""
    yield "always the large one", figures(serve([], LARGE))
    for share in shares:
        review = [mist.ModelPass(model=REVIEWER), Escalate(share=share)]
        yield f"small first, {100 * share:3.0f}% on", figures(serve(review, SMALL))


if __name__ == "__main__":
    for name, found in compared():
        times = f"E2E mean {found['mean']:4.1f} s, p99 {found['p99']:4.1f} s"
        large = f"{found['visits']:4,} visits of the large, {found['gpu_seconds']:4.1f} GPU s of it"
        print(f"{name:22} {times}; {large} each")
