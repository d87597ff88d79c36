"""A decode client of your own behind engines with `role: prefill`."""

from dataclasses import dataclass

import simpy

import mist_sim as mist
from mist_sim.units import Seconds


@mist.CLIENTS.register("streamer")
@dataclass(eq=False)
class Streamer(mist.Client):
    """Streams answers at a fixed pace. slots: answers at once."""

    name: str
    model: str
    seconds_per_token: Seconds = 10e-3
    slots: int = 64

    def __post_init__(self):
        form = mist.KvForm(block_size=16, dtype="bf16", block_bytes=2 * 2**20)
        traits = {"serves": ("decode",), "role": "decode", "model": self.model}
        super().__init__(self.name, mist.ClientTraits(takes_entries=True, entries=form, **traits))

    def start(self, env, client_id, recorder):
        super().start(env, client_id, recorder)
        self.free = simpy.Resource(env, self.slots)
        self.answers = {}

    def accept(self, visit):
        self.answers[visit] = self.env.process(self.answer(visit))

    def abort(self, visit):
        self.answers[visit].interrupt()

    def answer(self, visit):
        try:
            with self.free.request() as slot:
                yield slot
                self.begin(visit)
                yield self.fetch_entries(visit)  # over the network; the prefill client lets go
                visit.first_token_at = self.env.now + self.seconds_per_token
                tokens = visit.stages[0].num_tokens
                yield self.env.timeout(tokens * self.seconds_per_token)
                visit.num_output_tokens, visit.last_token_at = tokens, self.env.now
        except simpy.Interrupt:
            pass
        self.finish(visit)


if __name__ == "__main__":
    prompts = {"name": "prompts", "gpu": "h100-sxm", "role": "prefill"}
    answers = {"name": "answers", "type": "streamer", "model": "llama-3.1-8b", "count": 2}
    split = {"clients": [prompts, answers], "network": {"bandwidth": "100 Gb/s"}}
    summary = mist.simulate(mist.Scenario.load("demo", overrides=split)).summary
    print(f"{summary['completed']} served, mean TPOT {summary['mean_tpot_ms']:.1f} ms")
    print(f"{summary['num_hand_overs']} hand-overs, mean {summary['mean_hand_over_ms']:.1f} ms")
