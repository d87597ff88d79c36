"""Length distributions, joint profiles, and the sources that draw from them.

Means are compared at 4.42 standard errors: a false alarm once in 100,000 checks, and the seed
is fixed, so a check that passes once passes for good.
"""

import json
from collections import Counter
from itertools import islice

import numpy as np
import pytest
from scipy import stats

from mist_sim.errors import ScenarioError
from mist_sim.rng import Streams
from mist_sim.traces import (
    LENGTHS,
    SAMPLERS,
    AzureReader,
    FixedLength,
    GeometricLength,
    LengthDistribution,
    LengthsCsvReader,
    LogNormalLength,
    MeanMedianP95Length,
    NormalLength,
    PrefixRepetition,
    Profile,
    RowSampler,
    Synthetic,
    UniformLength,
)
from mist_sim.traces.lengths import Mix
from mist_sim.traces.profiles import _FOLDER, compute_profile, load_profile, profile_names
from tests.refusals import refused

Z = 4.42
N = 200_000


def rng(seed: int = 7) -> np.random.Generator:
    return Streams(seed).generator("lengths")


# name, distribution, mean and standard deviation in tokens
CASES = [
    (FixedLength(tokens=9), 9, 0),
    (UniformLength(low=1, high=9), 5, np.sqrt(80 / 12)),
    (NormalLength(mean=1000, std=200), 1000, 200),
    (LogNormalLength(mean=200, std=150), 200, 150),
    (GeometricLength(mean=50), 50, np.sqrt(50 * 49)),
    (MeanMedianP95Length(mean=218, median=232, p95=332), 218, 58.8),
]


@pytest.mark.parametrize(("distribution", "mean", "std"), CASES)
def test_a_distribution_has_its_mean_and_deviation(distribution, mean, std):
    drawn = distribution.sample(rng(), N)
    assert drawn.dtype == np.int64
    assert drawn.shape == (N,)
    assert drawn.min() >= 1
    assert abs(drawn.mean() - mean) <= Z * std / np.sqrt(N)
    assert drawn.std() == pytest.approx(std, rel=0.03)  # about 4 errors for the widest tail
    assert np.array_equal(drawn, distribution.sample(rng(), N))


def test_every_registered_distribution_is_tested_and_fits_protocol():
    assert {LENGTHS[name] for name in LENGTHS} == {type(case[0]) for case in CASES}
    assert all(isinstance(case[0], LengthDistribution) for case in CASES)


def test_normal_redraws_what_is_below_one_and_keeps_the_shape_above():
    drawn = NormalLength(mean=1, std=3).sample(rng(), N)
    share_of_ones = stats.norm.cdf(1.5, 1, 3) - stats.norm.cdf(0.5, 1, 3)
    expected = share_of_ones / stats.norm.sf(0.5, 1, 3)
    error = Z * np.sqrt(expected * (1 - expected) / N)
    assert abs(np.mean(drawn == 1) - expected) < error  # clipping would put half of them here
    a = (0.5 - 1) / 3
    mean = 1 + 3 * stats.norm.pdf(a) / stats.norm.sf(a)  # the bias that the docstring states
    assert drawn.mean() == pytest.approx(mean, rel=0.01)


test_impossible_parameters_are_refused = refused(
    lambda make: make(),
    (lambda: FixedLength(tokens=0), "tokens must be in [1, 1000000000], got 0"),
    (lambda: UniformLength(low=0, high=3), "low must be in [1, 1000000000], got 0"),
    (lambda: UniformLength(low=4, high=3), r"high must be >= low \(4\), got 3"),
    (lambda: NormalLength(mean=0.5, std=1), "mean must be finite and >= 1, got 0.5"),
    (lambda: NormalLength(mean=float("nan"), std=1), "mean must be finite"),
    (lambda: NormalLength(mean=5, std=-1), "std must be finite and >= 0, got -1"),
    (lambda: LogNormalLength(mean=5, std=float("inf")), "std must be finite"),
    (lambda: LogNormalLength(mean=5, std=501), r"std must be <= 100 x mean \(500\), got 501"),
    (lambda: GeometricLength(mean=0.9), "mean must be finite and >= 1, got 0.9"),
    (lambda: synthetic(0), "num_requests must be in [1, 1000000000], got 0"),
    (lambda: Profile(num_requests=0), "num_requests must be in [1, 1000000000], got 0"),
    (lambda: Profile(num_requests=1, name="azure"), "name must be one of arxiv-4096, azure-co"),
    (
        lambda: synthetic(1, max_total_tokens=1),
        "max_total_tokens must be >= 2, got 1; null is no limit",
    ),
    (lambda: Profile(num_requests=1, max_total_tokens=0), "max_total_tokens must be >= 2"),
    error=ValueError,
)


# ------------------------------------------------------------------ sources


def synthetic(num_requests: int, **changes: object) -> Synthetic:
    parameters = {
        "prompt": NormalLength(mean=100, std=60),
        "output": GeometricLength(mean=20),
    } | changes
    return Synthetic(num_requests=num_requests, **parameters)


def repetition(num_requests: int, **changes: object) -> PrefixRepetition:
    parameters = {
        "suffix": NormalLength(mean=100, std=60),
        "output": GeometricLength(mean=20),
        "num_prefixes": 4,
        "prefix_len": 300,
    } | changes
    return PrefixRepetition(num_requests=num_requests, **parameters)


@pytest.mark.parametrize("make", [synthetic, lambda count: Profile(num_requests=count), repetition])
def test_a_longer_run_begins_like_a_shorter_one(make):
    longest = list(make(10_000).sample_rows(rng()))
    assert len(longest) == 10_000
    assert all(row.arrival_time is None for row in longest)
    for count in (1, 4_095, 4_096, 4_097, 9_999):
        assert list(make(count).sample_rows(rng())) == longest[:count]
    assert list(islice(make(10_000).sample_rows(rng(8)), 100)) != longest[:100]
    assert isinstance(make(1), RowSampler)


def test_requests_that_are_too_long_are_drawn_again():
    every = [
        (r.num_prompt_tokens, r.num_output_tokens) for r in synthetic(30_000).sample_rows(rng())
    ]
    short = synthetic(10_000, max_total_tokens=120)
    drawn = [(r.num_prompt_tokens, r.num_output_tokens) for r in short.sample_rows(rng())]
    assert drawn == [pair for pair in every if sum(pair) <= 120][:10_000]
    rows = list(Profile(num_requests=9_000, name="arxiv-4096").sample_rows(rng()))
    totals = [row.num_prompt_tokens + row.num_output_tokens for row in rows]
    assert max(totals) > 4096  # prompt and output of one quantile each
    rows = list(
        Profile(num_requests=9_000, name="arxiv-4096", max_total_tokens=4096).sample_rows(rng())
    )
    assert max(row.num_prompt_tokens + row.num_output_tokens for row in rows) <= 4096
    assert len(rows) == 9_000


def test_lengths_that_are_never_short_enough_are_refused():
    source = synthetic(5, prompt=FixedLength(tokens=500), max_total_tokens=500)
    with pytest.raises(ScenarioError, match=r"one draw in 1,000 or more, got 500; .* had 501; rai"):
        next(source.sample_rows(rng()))


def test_prompts_do_not_depend_on_distribution_of_outputs():
    first = list(synthetic(5_000).sample_rows(rng()))
    second = list(synthetic(5_000, output=LogNormalLength(mean=9, std=9)).sample_rows(rng()))
    assert [r.num_prompt_tokens for r in first] == [r.num_prompt_tokens for r in second]
    assert [r.num_output_tokens for r in first] != [r.num_output_tokens for r in second]


def test_prompts_share_their_prefixes_and_nothing_else():
    rows = list(repetition(20_000).sample_rows(rng()))
    plain = list(synthetic(20_000, prompt=NormalLength(mean=100, std=60)).sample_rows(rng()))
    suffixes = np.array([row.num_prompt_tokens - 300 for row in rows])
    mean = np.mean([row.num_prompt_tokens for row in plain])
    assert suffixes.min() >= 1
    assert abs(suffixes.mean() - mean) < 2 * Z * suffixes.std() / np.sqrt(len(rows))
    counts = Counter(row.content for row in rows)
    assert all(len(content) == 1 and content[0][1] == 300 for content in counts)
    assert len(counts) == 4
    for count in counts.values():
        assert abs(count - 5_000) < Z * np.sqrt(20_000 * 0.25 * 0.75)
    with pytest.raises(ValueError, match="num_prefixes must be in .1, 1000000000., got 0"):
        repetition(1, num_prefixes=0)


def test_prompts_and_outputs_are_independent():
    same = NormalLength(mean=500, std=100)
    rows = list(synthetic(20_000, prompt=same, output=same).sample_rows(rng()))
    pairs = np.array([(row.num_prompt_tokens, row.num_output_tokens) for row in rows])
    assert abs(np.corrcoef(pairs.T)[0, 1]) < Z / np.sqrt(len(rows))


def test_third_party_distribution_below_one_token_is_refused():
    class Zeros:
        def sample(self, rng: np.random.Generator, n: int) -> np.ndarray:
            return np.zeros(n, dtype=np.int64)

    with pytest.raises(ScenarioError, match=r"lengths must be >= 1 token, got 0 from .*Zeros"):
        next(synthetic(5, output=Zeros()).sample_rows(rng()))


def test_samplers_are_registered():
    assert dict(SAMPLERS) == {
        "synthetic": Synthetic,
        "profile": Profile,
        "prefix_repetition": PrefixRepetition,
        "mix": Mix,
    }


# ------------------------------------------------------------------ profiles

TRACES = {"azure-conv-2023": "conv", "azure-code-2023": "code"}
SOURCES = {
    "sharegpt-300": ["MIT", "LLMServingSim 2.0"],
    "arxiv-4096": ["MIT", "Vidur", "MLSys 2024"],
    "sharegpt-2048": ["Apache-2.0", "Sarathi-Serve", "OSDI 2024"],
}
NAMES = [*TRACES, *SOURCES]
FIGURES = {  # of the traces, (prompt, output): mean, std, and what 10, 50, 90 and 99 % are below
    "azure-conv-2023": [
        *((1154.7, 211.1), (1108.8, 162.9)),
        *((207, 54), (1020, 129), (2734.5, 424), (4142, 601)),
    ],
    "azure-code-2023": [
        *((2047.85, 27.9), (1973.8, 59.9)),
        *((147, 7), (1469, 13), (5187.6, 55), (7436, 251.5)),
    ],
    "sharegpt-300": [
        *((857.5, 652.5), (527.4, 98.3)),
        *((363, 530.9), (731.5, 632), (1460.1, 770), (2765.2, 784.1)),
    ],
    "arxiv-4096": [
        *((2588.1, 291.4), (944.7, 530.5)),
        *((1242, 78), (2730, 167), (3702, 372), (3933.4, 3271.3)),
    ],
    "sharegpt-2048": [
        *((606.5, 395.6), (512.2, 259.7)),
        *((28, 62), (528, 375), (1362, 778), (1787, 985)),
    ],
}


def lengths(path, most: int) -> np.ndarray:
    """Return the (prompt, output) lengths of a file of at most so many tokens in all."""
    rows = LengthsCsvReader(path=str(path)).rows()
    found = np.array([(row.num_prompt_tokens, row.num_output_tokens) for row in rows])
    return found[found.sum(axis=1) <= most]


def pairs(shared, name: str) -> np.ndarray:
    if name == "sharegpt-300":
        path = shared("measurements/vllm-0.19-rtxpro6000-llama3.1-8b/workload_block16.jsonl")
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        return np.array([(row["input_length"], row["output_length"]) for row in rows])
    if name == "arxiv-4096":
        path = shared("traces/arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv")
        return lengths(path, 4096)
    if name == "sharegpt-2048":
        return lengths(shared("traces/sharegpt-lengths/sharegpt_8k_turns_llama2.csv"), 2048)
    path = shared(f"traces/AzureLLMInferenceTrace_{TRACES[name]}.csv")
    rows = AzureReader(path=str(path)).rows()
    return np.array([(row.num_prompt_tokens, row.num_output_tokens) for row in rows])


def test_shipped_profiles_are_small_and_name_their_source():
    assert profile_names() == sorted(NAMES)
    for name in profile_names():
        path = _FOLDER / f"{name}.json"
        assert path.stat().st_size < 10_000
        table = json.loads(path.read_text())
        told = SOURCES.get(name, ["CC-BY 4.0", "ISCA 2024"])
        assert all(word in table["source"] for word in told)


@pytest.mark.parametrize("name", NAMES)
def test_a_profile_is_monotone_and_stays_in_range(name):
    profile = load_profile(name)
    assert np.all(np.diff(profile.prompt) >= 0)
    assert np.all(np.diff(profile.output, axis=1) >= 0)
    prompts, outputs = profile.sample(rng(), N)
    assert profile.prompt[0] <= prompts.min() <= prompts.max() <= profile.prompt[-1]
    assert profile.output.min() <= outputs.min() <= outputs.max() <= profile.output.max()
    assert prompts.min() >= 1
    assert outputs.min() >= 1


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_profile_is_what_its_trace_gives(shared, name):
    table = json.loads((_FOLDER / f"{name}.json").read_text())
    computed = compute_profile((int(prompt), int(output)) for prompt, output in pairs(shared, name))
    for key, value in json.loads(json.dumps(computed)).items():
        assert table[key] == value, key


def figures(lengths: np.ndarray) -> np.ndarray:
    shares = np.percentile(lengths, [10, 50, 90, 99], axis=0)
    return np.stack([lengths.mean(axis=0), lengths.std(axis=0), *shares])


@pytest.mark.parametrize("name", NAMES)
def test_profile_draws_lengths_with_figures_of_its_trace(name):
    drawn = figures(np.array(load_profile(name).sample(rng(), 1_000_000)).T)
    expected = np.array(FIGURES[name])
    assert drawn[0] == pytest.approx(expected[0], rel=0.01)
    assert drawn[1] == pytest.approx(expected[1], rel=0.07)
    assert drawn[2:] == pytest.approx(expected[2:], rel=0.02, abs=2)


@pytest.mark.parametrize("name", NAMES)
def test_these_are_the_figures_of_the_traces(shared, name):
    assert figures(pairs(shared, name)) == pytest.approx(np.array(FIGURES[name]), abs=0.051)


def test_a_profile_of_lengths_has_their_quantiles_and_what_belongs_together():
    """Forty prompts, each with answers of a hundredth of it, and a few less or more."""
    rows = [(100 * k, k + more) for k in range(1, 41) for more in (0, 1, 2)]
    table = compute_profile(reversed(rows), num_bins=4)
    assert table["num_requests"] == 120
    found = dict(zip(table["prompt_levels"], table["prompt"], strict=True))
    assert (found[0], found[0.5], found[1]) == (100, 2050, 4000)
    ends = [(part[0], part[-1]) for part in table["output"]]
    assert ends == [(1, 12), (11, 22), (21, 32), (31, 42)]
    middle = table["output_levels"].index(0.5)
    assert [part[middle] for part in table["output"]] == pytest.approx(
        [6.5, 16.5, 26.5, 36.5], abs=1
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_profile_draws_what_the_trace_holds(shared, name):
    trace = pairs(shared, name)
    drawn = np.array(load_profile(name).sample(rng(), 1_000_000)).T
    assert drawn.mean(axis=0) == pytest.approx(trace.mean(axis=0), rel=0.01)
    assert drawn.std(axis=0) == pytest.approx(trace.std(axis=0), rel=0.07)
    percents = [10, 25, 50, 75, 90, 95, 99]
    expected = np.percentile(trace, percents, axis=0)
    assert np.percentile(drawn, percents, axis=0) == pytest.approx(expected, rel=0.02, abs=2)
    ranks = stats.spearmanr(trace).statistic
    close = 0.01 if name in TRACES else 0.03  # 300 requests are few for 20 bins
    assert stats.spearmanr(drawn).statistic == pytest.approx(ranks, abs=close)


def test_the_conversation_profile_keeps_the_dependence():
    """Half-long prompts got the longest answers: the mean output is no function of rank only."""
    prompts, outputs = load_profile("azure-conv-2023").sample(rng(), N)
    short = outputs[prompts < np.quantile(prompts, 0.2)].mean()
    middle = outputs[np.abs(stats.rankdata(prompts) / N - 0.5) < 0.1].mean()
    assert abs(short / middle - 1) > 0.2
