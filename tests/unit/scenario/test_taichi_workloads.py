"""The workloads of TaiChi's study: what presets draw, beside the lengths that they come from."""

import numpy as np
import pytest
from scipy import optimize, stats

from mist_sim import Scenario
from mist_sim.rng import Streams
from mist_sim.scenario import build

SHORTEST = 1000  # below it prompts are mostly abstracts whose papers are the answers
MOST = 4096  # tokens in all of the known lengths


def drawn(preset, num_requests):
    """Return (prompt, output) lengths of a preset's workload."""
    scenario = Scenario.load(preset, overrides={"workload.lengths.num_requests": num_requests})
    rows = build(scenario).workload.source.sample_rows(Streams(0).generator("lengths"))
    return np.array([(row.num_prompt_tokens, row.num_output_tokens) for row in rows])


def test_chatbot_lengths_have_means_of_paper_s_filter():
    """14,568 turns of ShareGPT of at most 2,048 tokens: 607 and 396."""
    lengths = drawn("taichi-chatbot", 200_000)
    assert lengths.mean(axis=0) == pytest.approx([607, 396], rel=0.01)
    assert np.mean(lengths.sum(axis=1) > 2048) < 0.02


def test_summarisation_lengths_end_at_16384():
    lengths = drawn("taichi-summarisation", 100_000)
    assert lengths.sum(axis=1).max() <= 16_384
    assert lengths.mean(axis=0) == pytest.approx([8073, 192], rel=0.01)
    # table 2 of Sarathi-Serve (OSDI 2024) has arXiv's own: median 7,059, P90 12,985 tokens
    assert np.quantile(lengths[:, 0], [0.5, 0.9]) == pytest.approx([7059, 12_985], rel=0.1)


def test_law_of_prompts_is_what_known_lengths_give(shared):
    """The lognormal of greatest likelihood, given that prompt and answer fit in 4,096 tokens."""
    path = shared("traces/arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv")
    prompts, outputs = np.genfromtxt(path, delimiter=",", skip_header=1, usecols=(0, 1)).T
    known = prompts >= SHORTEST
    prompts, outputs = prompts[known], outputs[known]
    least, most, logs = np.log(SHORTEST), np.log(MOST - outputs), np.log(prompts)

    def against(parameters):
        mean, std = parameters[0], np.exp(parameters[1])
        between = stats.norm.cdf((most - mean) / std) - stats.norm.cdf((least - mean) / std)
        densities = stats.norm.logpdf((logs - mean) / std) - np.log(std)
        return -(densities - np.log(between)).sum()

    mean, std = optimize.minimize(against, [8.8, -0.5], method="Nelder-Mead").x
    prompt = stats.lognorm(np.exp(std), scale=np.exp(mean))
    source = Scenario.load("taichi-summarisation").workload.lengths
    assert prompt.mean() == pytest.approx(source.prompt.mean, rel=0.005)
    assert prompt.std() == pytest.approx(source.prompt.std, rel=0.005)
    output = stats.lognorm(np.log(outputs).std(), scale=np.exp(np.log(outputs).mean()))
    assert output.mean() == pytest.approx(source.output.mean, rel=0.005)
    assert output.std() == pytest.approx(source.output.std, rel=0.005)
