"""Uneven decodes in tables: the law of the kernel that replays read, and where it counts."""

import heapq
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import mist_sim as mist
from mist_sim.core.batch import StepGrowth
from mist_sim.hardware.predictors import TablePredictor
from mist_sim.hardware.tables.uneven import UnsplitDecodes, share_plane
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


def test_a_speed_up_is_found_again_in_kernels_run_block_by_block():
    found = []
    for n in (64, 128, 256):
        others = Streams(n).generator("contexts").uniform(0.5, 1.5, n - 1)
        batch = [4 * others.mean(), *others]  # profiles put the long one first
        ratio = np.mean(batch) / batch[0]
        even = sum(batch) * KERNEL.heads / KERNEL.slots
        found.append((n, ratio, kernel_time(batch, KERNEL) / even - 1))
    rows = pd.DataFrame(found, columns=["n", "ratio", "share"])
    small = pd.DataFrame({"n": [32], "ratio": [0.26], "share": [0.9]})  # split, so no witness
    law = UnsplitDecodes(188, 8).fitted(pd.concat([rows, small]))
    assert law.speed_up == pytest.approx(KERNEL.speed_up, rel=0.15)


def test_measured_shares_hold_where_the_profiled_kernel_did_not_split():
    rows = pd.DataFrame({"n": [8, 32, 64, 128], "ratio": 0.3, "share": [0.0, 0.0, 0.2, 0.1]})
    plain, replayed = share_plane(rows), share_plane(rows, UnsplitDecodes(188, 8))
    assert plain.at(32, 0.3) == 0 < plain.at(48, 0.3) < 0.11
    assert replayed.at(64, 0.3) == pytest.approx(0.2)
    assert replayed.at(128, 0.3) == pytest.approx(0.1)
    assert replayed.at(1, 0.3) == 0
    for n in (8, 32, 48, 60):
        assert replayed.at(n, 0.3) > plain.at(n, 0.3) + 0.05
        assert replayed.at(n, 1.0) == 0


def test_a_profile_of_split_kernels_alone_stays_as_it_was_measured():
    rows = pd.DataFrame({"n": [8, 32], "ratio": 0.3, "share": [0.1, 0.1]})
    assert share_plane(rows, UnsplitDecodes(188, 8)).at(16, 0.3) == pytest.approx(0.1)


def test_slots_of_the_gpu_change_the_steps_of_a_profile(tmp_path):
    path = measured.write_layer_profile(tmp_path, MODEL.num_layers)
    batch = mist.StepBatch((), 8, 8 * 500, None, 1_000)
    times = {
        slots: TablePredictor(
            MODEL, mist.Cluster(replace(GPU, attention_slots=slots)), str(path), "layer_profile"
        ).step_time(batch)
        for slots in (None, 188)
    }
    assert times[None] < times[188]


def test_the_law_goes_on_below_the_lowest_measured_ratio_at_every_number():
    rows = pd.DataFrame({"n": [32, 64, 64, 128], "ratio": [0.3, 0.3, 0.5, 0.25], "share": 0.1})
    shares = share_plane(rows, UnsplitDecodes(188, 8))
    law = UnsplitDecodes(188, 8).fitted(rows)
    for n, lowest in ((64, 0.3), (128, 0.25)):
        assert shares.at(n, lowest) == pytest.approx(0.1)
        measured_on = 0.1 - float(law.share(n, np.array(lowest)))
        for ratio in (0.02, 0.05, 0.1, 0.2):
            carried = measured_on + float(law.share(n, np.array(ratio)))
            assert shares.at(n, ratio) == pytest.approx(carried)
            assert shares.at(n, ratio) > 0.1
    assert shares.at(64, 0.4) == pytest.approx(0.1)


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
