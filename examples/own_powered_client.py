"""A prefill client of your own that draws power and costs money, before a decode engine."""

from dataclasses import dataclass, replace

import mist_sim as mist
from mist_sim.environment import PLAN


@dataclass(eq=False)
class OneByOne(mist.Client):
    """Computes prompts one by one on a machine, at a fixed rate."""

    name: str
    machine: mist.Machine
    tokens_per_second: float = 40e3

    def __post_init__(self):
        model, times = self.machine.model, mist.TimesOrigin(estimate="assumed")
        form = mist.KvForm(block_size=16, dtype=model.kv_cache_dtype)
        traits = {"serves": ("prefill",), "role": "prefill", "sends_entries": True}
        traits |= {"model": model.name, "entries": form, "machine": self.machine, "times": times}
        super().__init__(self.name, mist.ClientTraits(**traits))

    def start(self, env, client_id, recorder):
        super().start(env, client_id, recorder)
        self.queue, self.is_busy = [], False

    def accept(self, visit):
        self.queue.append(visit)
        if not self.is_busy:
            self.is_busy = True
            self.env.start(self.work())

    def abort(self, visit):
        if visit in self.queue:  # one in work leaves when it is done
            self.queue.remove(visit)
            self.finish(visit)

    def work(self):
        yield self.env.at(self.env.now, PLAN)
        while self.queue:
            visit = self.queue.pop(0)
            self.begin(visit)
            start, tokens = self.env.now, visit.stages[0].num_prompt_tokens
            yield self.env.timeout(tokens / self.tokens_per_second)
            self.track.step(start, self.env.now, mist.StepBatch(((tokens, 0),)))
            self.emit_prompt(visit)
            self.finish(visit)
        self.is_busy = False


if __name__ == "__main__":
    answers = mist.llm_client("answers", gpu="h100-sxm", role="decode")
    prompts = OneByOne("prompts", replace(answers.traits.machine, power_limit=400.0))
    parts = {"clients": [prompts, answers], "network": mist.Link(bandwidth=12.5e9)}
    workload = mist.Workload(mist.Profile(num_requests=500), mist.PoissonArrivals(rate=10.0))
    result = mist.Simulation(workload=workload, cost=mist.CostOptions(), **parts).run()
    shown = ["client", "average_power", "energy", "cost"]
    print(result.clients[shown].round(3).to_string(index=False))
