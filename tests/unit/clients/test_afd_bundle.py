"""A bundle of attention and FFN workers: its cycle, its slots, and who is placed where."""

from dataclasses import replace

import numpy as np
import pytest
import simpy

from mist_sim.clients.afd import PLACEMENTS, BatchSlots, Bundle, BundleConfig, Resident
from mist_sim.errors import ScenarioError
from mist_sim.hardware.afd import AfdCoefficients
from mist_sim.rng import Streams
from mist_sim.search import estimate_slot_load, simulate_bundle

# attention: a token and 10; FFN: 3 a request and 5; communication: 2 a request and 4
C = AfdCoefficients(alpha_a=1, beta_a=10, alpha_f=3, beta_f=5, alpha_c=2, beta_c=4)
CONFIG = BundleConfig(coefficients=C, attention_workers=2, slots=2)


def filled(config=CONFIG, tokens=(7, 3)):
    """A bundle with one request on each worker in every batch, which stay for long."""
    bundle = Bundle(config)
    for slots in bundle.batches:
        for worker, num_tokens in enumerate(tokens):
            slots.join(Resident(worker, num_tokens, 100))
    return bundle


# --- the cycle ----------------------------------------------------------------------------------


def test_two_batches_by_hand():
    """Attention 17 with the slower worker, legs (2 x 4 + 4) / 2 = 6, FFN 3 x 4 + 5 = 17."""
    bundle = filled()
    first, _ = bundle.run_pass(0)
    assert first[2:7] == (0, 17, 23, 40, 46)
    assert bundle.attention_work == 7 + 3 + 2 * 10
    second, _ = bundle.run_pass(1)
    assert second[2:7] == (17, 34, 40, 57, 63)  # FFN is free at 40, when the batch comes
    third, _ = bundle.run_pass(0)
    assert third[1:7] == (46, 46, 64, 70, 87, 93)  # a token more: 18
    assert bundle.ffn_work == 3 * 17


def test_empty_slots_cost_nothing_without_a_static_graph():
    bundle = filled(replace(CONFIG, static_graph=False))
    step, _ = bundle.run_pass(0)
    assert step[2:7] == (0, 17, 21, 32, 36)  # two requests: legs of 4, FFN 11
    bundle = Bundle(replace(CONFIG, static_graph=False))
    bundle.batches[0].join(Resident(1, 7, 9))
    bundle.run_pass(0)
    assert bundle.attention_work == 17  # the other worker has nothing to do


def test_ffn_workers_share_a_batch():
    whole = filled(replace(CONFIG, ffn_workers=2))
    step, _ = whole.run_pass(0)
    assert step[2:7] == (0, 17, 21, 32, 36)
    assert whole.ffn_work == 2 * 11


def reference(config: BundleConfig, lengths: list[tuple[int, int]]) -> list[float]:
    """Simulate a full bundle slot by slot in SimPy; return the ends of all passes, in order."""
    env = simpy.Environment()
    attention, ffn = simpy.Resource(env), simpy.Resource(env)
    c, queue, ends = config.coefficients, iter(lengths), []
    per_ffn = config.slots_per_batch / config.ffn_workers

    def batch(slots):
        while all(left for worker in slots for _, left in worker):
            with attention.request() as turn:
                yield turn
                slowest = max(sum(tokens for tokens, _ in worker) for worker in slots)
                yield env.timeout(c.attention_time(slowest))
            yield env.timeout(c.communication_time(per_ffn) / 2)
            with ffn.request() as turn:
                yield turn
                yield env.timeout(c.ffn_time(per_ffn))
            yield env.timeout(c.communication_time(per_ffn) / 2)
            ends.append(env.now)
            for worker in slots:
                for slot in worker:
                    slot[0] += 1
                    slot[1] -= 1
            for worker in slots:
                for slot in worker:
                    if slot[1] == 0:
                        slot[:] = next(queue, (0, 0))

    for _ in range(config.batches):
        slots = [
            [list(next(queue)) for _ in range(config.slots)]
            for _ in range(config.attention_workers)
        ]
        env.process(batch(slots))
    env.run()
    return ends


# --- placement ----------------------------------------------------------------------------------


def test_least_load_gives_longest_prompts_to_emptiest_workers():
    least = PLACEMENTS["least_load"](Streams(0).generator("x"))
    held, free = np.array([50, 30, 10, 30]), np.array([1, 1, 0, 2])
    assert least.place([5, 40, 9], held, free) == [3, 1, 3]
    assert (held.tolist(), free.tolist()) == ([50, 30, 10, 30], [1, 1, 0, 2])


def test_random_takes_free_slots_alike():
    random = PLACEMENTS["random"](Streams(0).generator("x"))
    held, free = np.zeros(3, dtype=int), np.array([1, 0, 3])
    chosen = [random.place([7], held, free)[0] for _ in range(4000)]
    assert set(chosen) == {0, 2}
    assert chosen.count(0) / 4000 == pytest.approx(0.25, abs=0.03)
    assert sorted(random.place([7] * 4, held, free)) == [0, 2, 2, 2]


def test_half_full_workers_are_loaded_evenly():
    """Where there is a choice: 256 prompts on 8 workers of 64 slots."""
    prompts = Streams(2).generator("lengths").geometric(1 / 1000, 256).tolist()
    barrier = {}
    for name in PLACEMENTS:
        placement, slots = PLACEMENTS[name](Streams(3).generator("p")), BatchSlots(8, 64)
        for tokens in prompts:
            (worker,) = placement.place([tokens], slots.held, 64 - slots.filled)
            slots.join(Resident(worker, tokens, 9))
        barrier[name] = slots.held.max() / slots.held.mean() - 1
    assert barrier["least_load"] < 0.1 < 0.2 < barrier["random"]


def test_full_slots_are_balanced_by_who_goes_where():
    """Those who come together are matched with those who have least, so the barrier is lower."""
    rng = Streams(2).generator("lengths")
    prefill, decode = rng.geometric(1 / 1000, 8000), rng.integers(80, 120, 8000)
    config = BundleConfig(
        coefficients=replace(C, beta_a=0, alpha_f=1e-3, alpha_c=0), attention_workers=8, slots=64
    )
    runs = {}
    for name in PLACEMENTS:
        draws = Streams(3).generator("run")
        runs[name] = simulate_bundle(
            config, prefill, decode, draws, placement=PLACEMENTS[name](draws)
        )
    random, least = runs["random"], runs["least_load"]
    assert least.attention_idle < 0.8 * random.attention_idle
    nu = estimate_slot_load(prefill, decode).load.std
    assert random.effective_std == pytest.approx(nu, rel=0.15)
    assert least.effective_std < 0.5 * nu


def test_one_worker_has_no_barrier():
    config = replace(CONFIG, attention_workers=1)
    run = simulate_bundle(config, [5] * 50, [9] * 50, Streams(0).generator("x"))
    assert run.barrier == pytest.approx(0, abs=1e-6)
    assert run.effective_std is None


# --- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["attention_workers", "ffn_workers", "slots", "batches"])
def test_a_bundle_without_something(name):
    with pytest.raises(ValueError, match=f"{name} must be in .1, .*, got 0"):
        replace(CONFIG, **{name: 0})


def test_too_few_requests_for_the_slots():
    rng = Streams(0).generator("x")
    with pytest.raises(ScenarioError, match="8 requests or more, for 8 slots, got 7"):
        simulate_bundle(CONFIG, [1] * 7, [1] * 7, rng)
