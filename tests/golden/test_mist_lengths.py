"""The law of a mean, a median and a 95th percentile: MIST's Table III, and what no law can have."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist_sim import MeanMedianP95Length, Scenario
from mist_sim.rng import Streams
from tests.effort import examples
from tests.refusals import refused

TABLE_III = {
    "summarization": ((19260, 11284, 59497), (218, 232, 332)),
    "reasoning": ((158, 93, 566), (6818, 5237, 17454)),
    "code": ((26979, 16204, 83920), (1088, 329, 2753)),
}


def law(figures: tuple[float, float, float]) -> MeanMedianP95Length:
    return MeanMedianP95Length(mean=figures[0], median=figures[1], p95=figures[2])


def drawn(figures: tuple[float, float, float], n: int = 200_000) -> list[float]:
    lengths = law(figures).sample(Streams(5).generator("lengths"), n)
    return [lengths.mean(), float(np.median(lengths)), float(np.percentile(lengths, 95))]


@pytest.mark.parametrize("figures", TABLE_III.values(), ids=TABLE_III)
def test_table_iii_is_drawn_within_two_per_cent(figures):
    for asked in figures:
        assert drawn(asked) == pytest.approx(asked, rel=0.02)


@pytest.mark.parametrize("name", TABLE_III)
def test_presets_have_the_lengths_of_table_iii(name):
    lengths = Scenario.load(f"mist-{name}").workload.lengths.make()
    said = tuple((d.mean, d.median, d.p95) for d in (lengths.prompt, lengths.output))
    assert said == TABLE_III[name]


def test_the_longest_lengths_are_bounded():
    """An answer of a model, not one of a million tokens: eleven times the 95th percentile."""
    code = law(TABLE_III["code"][1])
    assert 10 * code.p95 < code.longest < 12 * code.p95
    assert code.sample(Streams(0).generator("lengths"), 100_000).max() <= round(code.longest)


@examples(40)
@given(st.integers(60, 20_000), st.floats(1.05, 20), st.floats(0, 1))
def test_every_mean_that_is_possible_is_had(median, ratio, share):
    """From near the least mean that the other two allow to about that of a heavy tail."""
    p95 = median * ratio
    least = 0.5 + 0.45 * median + 0.05 * p95
    mean = least * 1.3 + share * 2 * p95
    assert drawn((mean, median, p95), 50_000) == pytest.approx((mean, median, p95), rel=0.06)


test_figures_that_no_law_has_are_refused = refused(
    law,
    ((100, 200, 300), r"mean must be >= 105.5 with median 200 and p95 300, got 100"),
    ((300, 200, 200), r"p95 must be > median \(200\), got 200"),
    ((0.5, 200, 300), r"mean must be finite and >= 1, got 0.5"),
    ((float("nan"), 2, 3), r"mean must be finite"),
    ((1e12, 100, 200), r"mean must be smaller with median 100 and p95 200, got 1e\+12"),
    ((1.3, 1.5, 2), r"figures that whole tokens can have, got 1.3, 1.5 and 2"),
    error=ValueError,
)
