"""A router of your own: send long prompts to the last client, share the rest out by load."""

from dataclasses import dataclass

from mist_sim import PoissonArrivals, Profile, Simulation, Workload, llm_client


@dataclass
class LongPromptsApart:
    threshold: int = 2000

    def choose(self, request, stage, candidates):
        if request.num_prompt_tokens >= self.threshold or len(candidates) == 1:
            return candidates[-1].client_id
        return min(candidates[:-1], key=lambda client: client.num_outstanding).client_id


result = Simulation(
    clients=[llm_client(f"llm-{i}", model="llama-3.1-8b", gpu="l40s") for i in range(4)],
    workload=Workload(Profile(num_requests=1000), PoissonArrivals(rate=5.0)),
    router=LongPromptsApart(),
).run()
print(result.clients[["client", "num_visits", "num_prefill_tokens", "mean_decodes"]])
print(f"p99 TTFT {result.summary['p99_ttft_ms']:.0f} ms")
