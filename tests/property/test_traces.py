"""Laws of workloads over random inputs."""

import csv
import json
from fractions import Fraction
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mist_sim.rng import Streams
from mist_sim.traces import (
    AzureReader,
    BurstyArrivals,
    DailyArrivals,
    GammaArrivals,
    MooncakeReader,
    NormalArrivals,
    NormalLength,
    Synthetic,
    TraceRow,
    UniformLength,
)

TICKS = 10_000_000  # Azure's timestamps count 100 ns
tokens = st.integers(1, 200_000)
rates = st.floats(1e-3, 1e4)


@given(
    start=st.integers(0, 3_600 * TICKS),
    gaps=st.lists(st.integers(0, 7_200 * TICKS), max_size=20),
    lengths=st.lists(st.tuples(tokens, tokens), min_size=21, max_size=21),
)
def test_azure_times_are_exact_to_the_last_bit(start, gaps, lengths):
    ticks = np.cumsum([start, *gaps]).tolist()
    base = np.datetime64("2023-11-16T18:15:00.0000000", "ns")
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trace.csv"
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["TIMESTAMP", "ContextTokens", "GeneratedTokens"])
            for tick, pair in zip(ticks, lengths, strict=False):
                stamp = str(base + np.timedelta64(tick * 100, "ns"))[:-2].replace("T", " ")
                writer.writerow([stamp, *pair])
        rows = list(AzureReader(path=str(path)).rows())
    assert rows == [
        TraceRow(*pair, float(Fraction(tick - start, TICKS)))
        for tick, pair in zip(ticks, lengths, strict=False)
    ]


@given(
    times=st.lists(st.integers(0, 10**9), min_size=1, max_size=20).map(sorted),
    pair=st.tuples(tokens, tokens),
    start=st.integers(0, 10**6),
    block_size=st.integers(1, 1_000),
    completed=st.booleans(),
)
def test_mooncake_rows_come_back_as_written(times, pair, start, block_size, completed):
    """Hash ids of all blocks, the last one in part, or of full blocks up to the answer's end."""
    block_size = max(block_size, -(-sum(pair) // 1_000))  # at most a thousand ids
    prompt, output = pair
    blocks = range(start, start + -(-prompt // block_size))
    ids = {"hash_ids": list(blocks)}
    sizes = [min(block_size, prompt - k * block_size) for k in range(len(blocks))]
    if completed:
        full = prompt // block_size
        blocks = range(start, start + (prompt + output) // block_size)
        ids = {"hash_ids": list(blocks)[:full], "output_hash_ids": list(blocks)[full:]}
        sizes = [block_size] * len(blocks)
    keys = ("timestamp", "input_length", "output_length")
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trace.jsonl"
        lines = [json.dumps(dict(zip(keys, (time, *pair), strict=True)) | ids) for time in times]
        path.write_text("\n".join(lines))
        rows = list(MooncakeReader(path=str(path), hash_block_size=block_size).rows())
    ids_of_content = [number for number, _ in rows[0].content]
    assert len(set(ids_of_content)) == len(blocks)
    content = tuple(zip(ids_of_content, sizes, strict=True))
    assert rows == [TraceRow(*pair, (time - times[0]) / 1000, None, content) for time in times]


@given(
    process=st.one_of(
        st.builds(GammaArrivals, rate=rates, burstiness=st.floats(0.05, 50)),
        st.builds(NormalArrivals, rate=rates, cv=st.floats(1e-3, 1e3)),
        st.builds(BurstyArrivals, rate_on=rates, on=rates, off=rates),
        st.builds(
            lambda low, high, day: DailyArrivals(
                peak=low + high, low=low, peak_at=day / 3, period=day
            ),
            rates,
            rates,
            rates,
        ),
    ),
    seed=st.integers(0, 2**32),
    count=st.integers(1, 9_000),
)
def test_arrival_times_never_decrease_and_have_prefix_property(process, seed, count):
    def draw(how_many: int) -> list[float]:
        return list(islice(process.times(Streams(seed).generator("arrivals")), how_many))

    times = draw(9_000)
    assert np.all(np.diff(times) >= 0)
    assert times[0] >= 0
    assert np.isfinite(times[-1])
    assert draw(count) == times[:count]


@given(
    mean=st.floats(1, 1e5),
    spread=st.floats(0, 10),
    low=tokens,
    seed=st.integers(0, 2**32),
    count=st.integers(1, 9_000),
)
def test_synthetic_rows_are_whole_positive_and_have_the_prefix_property(
    mean, spread, low, seed, count
):
    def draw(how_many: int) -> list[TraceRow]:
        source = Synthetic(
            num_requests=how_many,
            prompt=NormalLength(mean=mean, std=mean * spread),
            output=UniformLength(low=low, high=low + 5),
        )
        return list(source.sample_rows(Streams(seed).generator("lengths")))

    rows = draw(9_000)
    assert all(type(row.num_prompt_tokens) is int for row in rows)
    assert min(row.num_prompt_tokens for row in rows) >= 1
    assert low <= min(row.num_output_tokens for row in rows)
    assert max(row.num_output_tokens for row in rows) <= low + 5
    assert draw(count) == rows[:count]
