"""Uneven decodes in tables: the law of the kernel that replays read, and where it counts."""

import heapq
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import mist_sim as mist
from mist_sim.core.batch import StepGrowth
from mist_sim.hardware.predictors import TablePredictor
from mist_sim.hardware.tables.uneven import UnsplitDecodes, last_split, weights_plane
from mist_sim.rng import Streams
from tests.reference import measured

MODEL = mist.load_model("llama-3.1-8b")
GPU = replace(mist.load_gpu("h100-sxm"), attention_slots=None)
KERNEL = UnsplitDecodes(slots=188, heads=8, speed_up=4.0)


def kernel_time(contexts: list[float], kernel: UnsplitDecodes) -> float:
    """Run a decode kernel block by block: head after head, each slot takes the next when free.

    Busy slots share a bandwidth of `slots`, and none is faster than `speed_up`.
    """
    waiting = contexts * kernel.heads
    running, waiting = waiting[: kernel.slots], waiting[kernel.slots :][::-1]
    heapq.heapify(running)
    seconds = read = 0.0
    while running:
        rate = min(kernel.speed_up, kernel.slots / len(running))
        end = heapq.heappop(running)
        seconds += (end - read) / rate
        read = end
        if waiting:
            heapq.heappush(running, read + waiting.pop())
    return seconds


@pytest.mark.parametrize("ratio", [0.2, 0.3, 0.5])
@pytest.mark.parametrize("num_decodes", [16, 24, 32, 40, 48, 56, 64, 128])
def test_the_law_is_that_of_the_kernel_run_block_by_block(num_decodes, ratio):
    rng = Streams(num_decodes).generator("contexts")
    others = rng.uniform(0.8, 1.2, num_decodes - 1)
    longest = 1.0 / ratio
    others *= (num_decodes - longest) / others.sum()
    batches = [np.insert(others, place, longest) for place in range(0, num_decodes, 3)]
    uneven = np.mean([kernel_time(batch.tolist(), KERNEL) for batch in batches])
    even = (
        num_decodes * KERNEL.heads / min(KERNEL.slots, KERNEL.speed_up * num_decodes * KERNEL.heads)
    )
    expected = uneven / even - 1
    assert KERNEL.share(num_decodes, np.array(ratio)) == pytest.approx(expected, abs=0.06, rel=0.05)


def skew_rows(*rows: tuple[int, float, float]) -> pd.DataFrame:
    """Return rows of decodes, mean / longest context, and the weight that they tell."""
    columns = ["n", "kv_mean", "kv_big", "t_mean_us", "t_max_us", "t_skew_us"]
    return pd.DataFrame(
        [(n, r, 1.0, 10 * r, 10.0, 10 * r + weight * 10 * (1 - r)) for n, r, weight in rows],
        columns=columns,
    )


def test_a_speed_up_is_found_again_in_kernels_run_block_by_block():
    found = []
    for n in (64, 128, 256):
        others = Streams(n).generator("contexts").uniform(0.5, 1.5, n - 1)
        batch = [4 * others.mean(), *others]  # profiles put the long one first
        even = sum(batch) * KERNEL.heads / KERNEL.slots
        found.append((n, np.mean(batch), batch[0], even, kernel_time(batch, KERNEL)))
    columns = ["n", "kv_mean", "kv_big", "t_mean_us", "t_skew_us"]
    small = pd.DataFrame([(32, 0.26, 1.0, 1.0, 1.9)], columns=columns)  # split, so no witness
    law = UnsplitDecodes(188, 8).fitted(pd.concat([pd.DataFrame(found, columns=columns), small]))
    assert law.speed_up == pytest.approx(KERNEL.speed_up, rel=0.15)


def test_a_weight_says_what_law_says_of_time():
    ratios = np.array([0.02, 0.1, 0.3, 0.6, 0.9])
    for n in (2, 8, 24, 48):
        weight = KERNEL.weight(n, ratios)
        assert (weight >= 0).all()
        assert (weight <= 1).all()
        of_mean = 1 + weight * (1 / ratios - 1)
        possible = ratios >= 1 / n
        expected = 1 + KERNEL.share(n, ratios)
        assert of_mean[possible] == pytest.approx(expected[possible])
    assert KERNEL.weight(4, ratios) == pytest.approx(1.0)  # each has a slot: the longest decides


def test_one_weight_meets_the_rows_of_number_best():
    rows = skew_rows((8, 0.25, 0.3), (8, 0.5, 0.3), (32, 0.25, 0.1), (32, 0.5, 0.2))
    weights = weights_plane(rows)
    assert weights.at(8, 0.1) == weights.at(8, 0.9) == pytest.approx(0.3)
    assert 0.1 < weights.at(32, 0.4) < 0.15  # the less even row tells more
    assert weights.at(64, 0.4) == weights.at(32, 0.4)
    tripled = rows.assign(**{name: 3 * rows[name] for name in rows if name.startswith("t_")})
    assert weights_plane(tripled).at(32, 0.4) == pytest.approx(weights.at(32, 0.4))


def test_noise_gives_no_weight_below_0_and_none_above_1():
    rows = skew_rows((8, 0.5, -0.2), (32, 0.5, 1.7))
    assert weights_plane(rows).at(8, 0.5) == 0.0
    assert weights_plane(rows).at(32, 0.5) == 1.0


def test_measured_weights_hold_where_the_profiled_kernel_did_not_split():
    rows = skew_rows((8, 0.3, 0.0), (32, 0.3, 0.0), (64, 0.3, 0.1), (128, 0.3, 0.05))
    plain, replayed = weights_plane(rows), weights_plane(rows, UnsplitDecodes(188, 8))
    assert plain.at(32, 0.3) == 0
    assert plain.at(33, 0.3) == plain.at(64, 0.3) == pytest.approx(0.1)
    for ratio in (0.01, 0.3, 0.9):
        assert replayed.at(64, ratio) == pytest.approx(0.1)
        assert replayed.at(128, ratio) == pytest.approx(0.05)
    for n in (2, 8, 32):
        assert replayed.at(n, 0.3) > plain.at(n, 0.3) + 0.02


def test_a_profile_of_split_kernels_alone_stays_as_it_was_measured():
    rows = skew_rows((8, 0.3, 0.1), (32, 0.3, 0.1))
    assert weights_plane(rows, UnsplitDecodes(188, 8)).at(16, 0.3) == pytest.approx(0.1)


def test_slots_of_the_gpu_change_steps_of_profile(tmp_path):
    path = measured.write_layer_profile(tmp_path, MODEL.num_layers)
    batch = mist.StepBatch((), 8, 8 * 500, None, 1_000)
    times = {
        slots: TablePredictor(
            MODEL, mist.Cluster(replace(GPU, attention_slots=slots)), str(path), "layer_profile"
        ).step_time(batch)
        for slots in (None, 188)
    }
    assert times[None] < times[188]


def test_a_longer_context_counts_beside_many_decodes_and_is_said_to_be_outside(tmp_path):
    path = measured.write_layer_profile(tmp_path, MODEL.num_layers)
    cluster = mist.Cluster(replace(GPU, attention_slots=188))
    predictor = TablePredictor(MODEL, cluster, str(path), "layer_profile")
    batches = [
        mist.StepBatch((), 64, 64 * 500, None, longest) for longest in (1_000, 1_001, 4_000, 8_000)
    ]
    times = [predictor.step_time(batch) for batch in batches]
    assert times == sorted(times)
    assert times[3] > times[2] > times[0] * 1.01
    inside = [predictor.steps_inside(batch, StepGrowth(64)) > 0 for batch in batches]
    assert inside == [True, False, False, False]
    beside = [replace(batch, chunks=((64, 256),)) for batch in batches]
    inside = [predictor.steps_inside(batch, StepGrowth(64)) > 0 for batch in beside]
    assert inside == [True, False, False, False]


# --- where kernels stop splitting ---------------------------------------------------------------


def one_long(*rows: tuple[int, float]) -> pd.DataFrame:
    """Return rows of a long context among equal ones, and the share that it adds to the time."""
    columns = ["n", "kv_mean", "kv_big", "t_mean_us", "t_max_us", "t_skew_us"]
    return pd.DataFrame(
        [(n, 0.25, 1.0, 10.0, 40.0, 10.0 * (1 + share)) for n, share in rows], columns=columns
    )


def test_weights_jump_where_the_kernel_stops_splitting():
    rows = one_long((8, 0.03), (16, 0.0), (32, 0.006), (64, 0.3), (128, 0.1))
    assert last_split(rows) == 32
    weights = weights_plane(rows)
    assert weights.at(24, 0.5) < weights.at(32, 0.5) == pytest.approx(0.002)
    for n in (33, 48, 64):
        assert weights.at(n, 0.5) == pytest.approx(0.1)
    assert 0.1 / 3 < weights.at(65, 0.5) < 0.1


@pytest.mark.parametrize(
    "shares",
    [
        [(8, 0.02), (16, 0.05), (32, 0.04)],  # split as far as it was measured
        [(8, 0.5), (16, 0.3), (32, 0.1)],  # never split
        [(8, 0.3), (16, 0.5), (32, 0.2)],
        [(8, 0.02)],
    ],
)
def test_without_sudden_share_nothing_tells_where_splitting_stops(shares):
    rows = one_long(*shares)
    assert last_split(rows) is None
    assert weights_plane(rows).at(8, 0.5) == pytest.approx(shares[0][1] / 3)


@pytest.mark.parametrize(
    ("folder", "last"),
    [
        ("vllm-0.19-rtxpro6000-llama3.1-8b/profile/skew.csv", 32),
        ("layer-profiles/RTXPRO6000/Llama-3.1-8B-tp2/skew.csv.gz", 64),
    ],
)
def test_a_real_kernel_stops_splitting_at_twice_the_sequences_with_half_the_heads(
    shared, folder, last
):
    """8 and 4 KV heads; the code of the kernel says 37 and 75 sequences on this card."""
    rows = pd.read_csv(shared("measurements") / folder)
    assert last_split(rows[rows["pc"] == 0]) == last
