"""Speculative decoding: its options, its random paths, its time and memory, and its results."""

from itertools import pairwise

import numpy as np
import pytest

from mist_sim import (
    ChunkedScheduler,
    Cluster,
    KvCacheConfig,
    Result,
    RooflinePredictor,
    Simulation,
    SpeculativeConfig,
    StepBatch,
    Workload,
    llm_client,
    load_gpu,
    load_model,
)
from mist_sim.clients.draft_paths import DraftPath, DraftPaths
from mist_sim.core.front_end import NONE
from mist_sim.hardware.drafter import drafter
from mist_sim.hardware.predictors import EngineOverhead, pipeline_predictor, with_drafting
from mist_sim.models.acceptance import PUBLISHED
from mist_sim.models.spec import rank_part
from mist_sim.models.speculative import METHODS
from mist_sim.rng import Streams
from mist_sim.testing import check_predictor
from tests.reference.comparison import pipeline_of
from tests.reference.predictors import ConstantPredictor
from tests.refusals import refused
from tests.warned import texts

CLUSTER = Cluster(load_gpu("h100-sxm"))
LLAMA = load_model("llama-3.1-8b")


def speculative(**changes: object) -> SpeculativeConfig:
    options = {"method": "ngram", "num_speculative_tokens": 3, "acceptance_rate": 0.7}
    return SpeculativeConfig(**options | changes)


DRAFTED = speculative(method="draft_model", model="llama-3.2-1b")

# --- options ----------------------------------------------------------------------------------


test_nonsense_is_refused = refused(
    lambda changes: speculative(**changes),
    ({"method": "medusa"}, "method has no 'medusa'"),
    ({"num_speculative_tokens": 0}, r"num_speculative_tokens must be in \[1, 1024\], got 0"),
    ({"acceptance_rate": 1.1}, r"acceptance_rate must be in \[0, 1\], got 1.1"),
    ({"acceptance_rate": [0.9, 0.8]}, "one number for each of the 3 speculative tokens"),
    ({"acceptance_rate": [0.9, 0.8, -0.1]}, r"acceptance_rate must be in \[0, 1\]"),
    ({"method": "draft_model"}, "model must be given with method draft_model"),
    ({"model": "llama-3.2-1b"}, "model must be given with method draft_model and no other"),
    ({"draft_tensor_parallel_size": 1}, "draft_tensor_parallel_size must be given with"),
    ({"drafting_time": -1.0}, "drafting_time must be finite and >= 0 s"),
    error=ValueError,
)


def test_list_of_rates_and_one_number_mean_same():
    listed = speculative(acceptance_rate=[0.7, 0.7, 0.7])
    assert listed.survival == speculative().survival == pytest.approx((0.7, 0.49, 0.343))


# --- the acceptance that nobody said ----------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "text", "which", "tokens"),
    [
        ("ngram", "chat", "low", {3: 1.37, 5: 1.40}),
        ("ngram", "chat", "high", {3: 1.66, 5: 1.77}),
        ("ngram", "rewrite", "chances", {5: 5376 / (993 + 821)}),
        ("ngram", "rewrite", "low", {7: 1 + (3.62 - 1) * 0.44 / 0.67}),
        ("eagle", "chat", "chances", {3: (2.60 + 2.26 + 2.56) / 3}),
        ("eagle", "chat", "low", {2: 1.89, 4: 2.08}),
        ("eagle", "chat", "high", {3: 2.92}),
        ("eagle", "code", "chances", {1: 1.80, 3: (2.80 + 2.71) / 2}),
        ("eagle", "code", "high", {1: 1.81, 2: 2.40}),
        ("eagle", "summary", "chances", {1: 1.68, 3: 2.30}),
        ("eagle", "summary", "low", {1: 1.67, 3: 2.25}),
        ("eagle", "summary", "high", {1: 1.69, 3: 2.35}),
        ("eagle", "rewrite", "chances", {3: 2.46}),
        ("mtp", "chat", "chances", {1: 1.85, 7: 3.20}),
        ("mtp", "chat", "low", {2: 1.99}),
    ],
)
def test_published_tokens_a_step_come_out(method, text, which, tokens):
    """As the sources measured them, within 3 %: by how many drafts."""
    chances = getattr(PUBLISHED[method][text], which)
    for number, published in tokens.items():
        assert chances.tokens_a_step(number) == pytest.approx(published, rel=0.03)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_a_rate_within_its_range(method):
    """Some rate of chats, which is the default, and of others where somebody has published one."""
    assert "chat" in PUBLISHED[method]
    for text, published in PUBLISHED[method].items():
        model = "llama-3.2-1b" if method == "draft_model" else None
        found = SpeculativeConfig(method=method, num_speculative_tokens=4, text=text, model=model)
        assert found.rates == published.chances.rates(4)
        low, mean, high = (
            each.tokens_a_step(4) for each in (published.low, published.chances, published.high)
        )
        assert low <= mean <= high
        assert published.source in found.assumed[-1]


def test_assumed_rate_is_that_rate_and_is_named():
    drafts = {"method": "ngram", "num_speculative_tokens": 3}
    assumed = served(SpeculativeConfig(**drafts))
    said = served(SpeculativeConfig(**drafts, acceptance_rate=[0.28, 0.52, 0.52]))
    assert assumed.requests.equals(said.requests)
    (names,) = assumed.summary["assumed"].values()
    (told,) = [each for each in names if each.startswith("speculative_config")]
    assert "0.28, then 0.52 (ngram, chat): 1.50 tokens a decode step" in told
    assert "published ones -9 to +11 % (TensorRT-LLM blog 7" in told
    assert "acceptance_rate" not in str(said.summary.get("assumed"))
    warnings = [str(each["text"]) for each in assumed.summary["warnings"]]
    assert any(told.partition(": ")[2] in text for text in warnings)


test_kinds_of_text_without_a_rate_are_refused = refused(
    lambda changes: SpeculativeConfig(method="ngram", num_speculative_tokens=3, **changes),
    ({"text": "code"}, "text must be one of chat, rewrite with method ngram"),
    ({"text": "rewrite", "acceptance_rate": 0.5}, "text must be left out where acceptance_rate"),
    error=ValueError,
)


test_what_does_not_go_together_is_refused = refused(
    lambda arguments: llm_client("a", **{"speculative_config": speculative(), **arguments}),
    ({"model": "gpt-oss-120b", "speculative_config": DRAFTED}, "another method than draft_model"),
    (
        {"speculative_config": speculative(method="draft_model", model="qwen3-0.6b")},
        r"vocabulary of llama-3.1-8b \(128,256 tokens\), got qwen3-0.6b \(151,936\)",
    ),
    (
        {"model": "mixtral-8x7b", "speculative_config": speculative(method="eagle")},
        "another method than eagle for mixtral-8x7b",
    ),
    (
        {
            "tensor_parallel_size": 4,
            "speculative_config": speculative(
                method="draft_model", model="llama-3.2-1b", draft_tensor_parallel_size=2
            ),
        },
        r"draft_tensor_parallel_size 1 or tensor_parallel_size \(4\), got 2",
    ),
    (
        {"scheduler": ChunkedScheduler(max_num_seqs=256, max_num_batched_tokens=1000)},
        r"max_num_seqs x \(1 \+ num_speculative_tokens\) = 1024, got 1000",
    ),
    ({"predictor": ConstantPredictor(0.01)}, "such as roofline, got ConstantPredictor"),
    (
        {"predictor": pipeline_of(ConstantPredictor(0.01), 2), "pipeline_parallel_size": 2},
        "such as roofline, got ConstantPredictor",
    ),
)


# --- paths ------------------------------------------------------------------------------------


def test_a_path_depends_on_seed_and_request_alone():
    paths, others = (DraftPaths(Streams(5), speculative().survival) for _ in range(2))
    forwards = [paths.draw(number, 500).tolist() for number in range(20)]
    backwards = [others.draw(number, 500).tolist() for number in reversed(range(20))]
    assert forwards == backwards[::-1]
    assert len({tuple(path) for path in forwards}) == 20
    assert DraftPaths(Streams(6), speculative().survival).draw(0, 500).tolist() != forwards[0]


def test_longer_answer_goes_on_where_shorter_one_ends():
    paths = DraftPaths(Streams(5), speculative().survival)
    short, long = paths.draw(3, 10).tolist(), paths.draw(3, 5_000).tolist()
    assert short[0] == 0
    assert short[-1] >= 10
    assert long[: len(short)] == short
    assert {after - before for before, after in pairwise(long)} == {1, 2, 3, 4}


def test_rates_of_none_and_all():
    never, always = (
        DraftPaths(Streams(0), speculative(acceptance_rate=rate).survival) for rate in (0, 1)
    )
    assert set(np.diff(never.draw(0, 300))) == {1}
    assert set(np.diff(always.draw(0, 300))) == {4}


@pytest.mark.parametrize("rates", [0.6, [0.9, 0.5, 0.1], [0.2, 1.0, 0.9]])
def test_positions_are_accepted_as_often_as_asked(rates):
    """Each share within 4.9 standard errors: a false alarm in a million."""
    config = speculative(acceptance_rate=rates)
    paths = DraftPaths(Streams(1), config.survival)
    accepted = np.concatenate([np.diff(paths.draw(k, 2_000)) for k in range(100)]) - 1
    for position, chance in enumerate(config.survival):
        error = (chance * (1 - chance) / len(accepted)) ** 0.5
        assert abs((accepted > position).mean() - chance) <= 4.9 * error


def test_a_preempted_request_goes_on_with_its_path():
    path = DraftPath(np.array([0, 2, 3, 7, 8, 12]))
    assert path.accepted.tolist() == [1, 0, 3, 0, 3]
    tokens, num_accepted = path.take(2, 9)
    assert (tokens.tolist(), num_accepted) == ([2, 1], 1)
    tokens, num_accepted = path.take(2, 5)
    assert (tokens.tolist(), num_accepted) == ([4, 1], 3)
    assert path.accepted.tolist() == [3]


def test_tokens_behind_the_last_are_none_but_their_drafts_are_accepted():
    path = DraftPath(np.array([0, 2, 3, 7, 8, 12]))
    tokens, num_accepted = path.take(5, 9)
    assert (tokens.tolist(), num_accepted) == ([2, 1, 4, 1, 1], 7)


# --- time -------------------------------------------------------------------------------------


def timed(config: SpeculativeConfig, model: str = "llama-3.1-8b", ranks: int = 1):
    cluster = Cluster(load_gpu("h100-sxm"), ranks)
    target = load_model(model)
    drafted = with_drafting(
        RooflinePredictor(target, cluster), config, drafter(config, target, cluster)
    )
    return drafted.ranks[0]


@pytest.mark.parametrize(
    ("config", "model", "ranks"),
    [
        (speculative(drafting_time=1e-3), "llama-3.1-8b", 1),
        (DRAFTED, "llama-3.1-8b", 1),
        (speculative(method="eagle", num_speculative_tokens=1), "llama-3.1-8b", 2),
        (speculative(method="mtp"), "deepseek-v3", 16),
        (speculative(method="mtp"), "minimax-m2", 4),
        (speculative(method="eagle"), "gemma-3-27b", 2),
    ],
)
def test_predictors_that_draft_pass_the_checks(config, model, ranks):
    check_predictor(lambda: timed(config, model, ranks))


def test_verifying_reads_the_weights_once():
    """Four tokens of a decode cost little more than one while memory is the limit."""
    one, four = StepBatch((), 1, 1_000), StepBatch((), 1, 1_000, num_drafts=3)
    roofline = RooflinePredictor(LLAMA, CLUSTER)
    assert 1 < roofline.step_time(four) / roofline.step_time(one) < 1.05
    one, four = StepBatch((), 1024, 100_000), StepBatch((), 1024, 100_000, num_drafts=3)
    assert roofline.step_time(four) / roofline.step_time(one) > 2.5


def test_drafting_takes_a_pass_for_every_draft():
    batch = StepBatch((), 1, 1_000, num_drafts=3)
    target = RooflinePredictor(LLAMA, CLUSTER).step_time(batch)
    draft = RooflinePredictor(load_model("llama-3.2-1b"), CLUSTER)
    extra = timed(DRAFTED).step_time(batch) - target
    assert extra == pytest.approx(3 * draft.step_time(StepBatch((), 1, 1_000)), rel=0.02)


def test_prompts_are_drafted_from_too():
    prompt = StepBatch(((2_000, 0),))
    target = RooflinePredictor(LLAMA, CLUSTER).step_time(prompt)
    draft = RooflinePredictor(load_model("llama-3.2-1b"), CLUSTER)
    assert timed(DRAFTED).step_time(prompt) > target + draft.step_time(prompt)
    assert timed(speculative()).step_time(prompt) == target


def test_a_layer_of_target_costs_fraction_of_it():
    batch = StepBatch((), 8, 8_000, num_drafts=1)
    config = speculative(method="mtp", num_speculative_tokens=1)
    alone = timed(speculative(), "deepseek-v3", 16).step_time(batch)
    assert 1.01 < timed(config, "deepseek-v3", 16).step_time(batch) / alone < 1.1


def test_a_layer_that_drafts_has_its_published_size():
    """DeepSeek-V3: 11.5 B parameters beside embedding and head (its README_WEIGHTS.md)."""
    spec = load_model("deepseek-v3")
    module = drafter(speculative(method="mtp"), spec, CLUSTER)
    assert module is not None
    in_16_bits = 2 * 7_168 * 7_168 * 2
    assert (module.weight_bytes_per_rank - in_16_bits) / 1e9 == pytest.approx(11.5, rel=0.02)
    assert module.kv_bytes_per_token_per_rank * 61 == spec.kv_bytes_per_token_per_rank(1)


def test_the_last_rank_of_a_pipeline_drafts():
    batch = StepBatch(((500, 0),), 4, 4_000, num_drafts=3)
    cluster = Cluster(load_gpu("h100-sxm"), 1, pipeline_parallel_size=4)
    ranks = pipeline_predictor(lambda part: RooflinePredictor(part, cluster), LLAMA, cluster)
    drafted = with_drafting(ranks, DRAFTED, drafter(DRAFTED, LLAMA, cluster))
    assert drafted.ranks[:3] == ranks.ranks[:3]
    assert drafted.rank_delay is ranks.rank_delay
    one_gpu = timed(DRAFTED).step_time(batch) - RooflinePredictor(LLAMA, CLUSTER).step_time(batch)
    extra = drafted.ranks[3].step_time(batch) - ranks.ranks[3].step_time(batch)
    assert extra == pytest.approx(one_gpu)


# --- memory -----------------------------------------------------------------------------------


def test_a_draft_model_takes_memory_of_weights_and_of_every_block():
    plain, ngram = llm_client("a"), llm_client("a", speculative_config=speculative())
    draft = llm_client("a", speculative_config=DRAFTED)
    assert ngram.num_gpu_blocks == plain.num_gpu_blocks
    small = load_model("llama-3.2-1b")
    tokens = 16 * (plain.num_gpu_blocks + 1)
    kv = LLAMA.kv_bytes_per_token_per_rank(1)
    left = tokens * kv - small.weight_bytes_per_rank(1)
    expected = left / (kv + small.kv_bytes_per_token_per_rank(1)) / 16
    assert abs(draft.num_gpu_blocks + 1 - expected) <= 1  # with the null block


def test_a_draft_model_takes_memory_of_last_rank():
    plain, draft = (
        llm_client("a", pipeline_parallel_size=2, speculative_config=config)
        for config in (None, DRAFTED)
    )
    small, last = load_model("llama-3.2-1b"), rank_part(LLAMA, 1, 2)
    tokens, kv = 16 * (plain.num_gpu_blocks + 1), last.kv_bytes_per_token_per_rank(1)
    left = tokens * kv - small.weight_bytes_per_rank(1)
    expected = left / (kv + small.kv_bytes_per_token_per_rank(1)) / 16
    assert abs(draft.num_gpu_blocks + 1 - expected) <= 1  # with the null block


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_layer_that_drafts_behind_a_pipeline_has_an_embedding_of_its_own(ranks):
    config = speculative(method="eagle")
    alone, behind = (
        drafter(config, LLAMA, Cluster(load_gpu("h100-sxm"), ranks, pipeline_parallel_size=size))
        for size in (1, 2)
    )
    embedding = LLAMA.vocab_size // ranks * LLAMA.hidden_size * LLAMA.dtype_bytes
    assert behind.weight_bytes_per_rank - alone.weight_bytes_per_rank == embedding
    assert behind.kv_bytes_per_token_per_rank == alone.kv_bytes_per_token_per_rank


# --- results ----------------------------------------------------------------------------------


def served(config: SpeculativeConfig | None, num_jobs: int = 40, **options) -> Result:
    scheduler = ChunkedScheduler(max_num_seqs=30)
    synchronous = {"async_scheduling": False, **options}  # as with drafts
    client = llm_client("a", speculative_config=config, scheduler=scheduler, **synchronous)
    workload = Workload.from_lists([100] * num_jobs, [200] * num_jobs, [0.01] * num_jobs)
    return Simulation(clients=[client], workload=workload, seed=4, front_end=NONE).run()


def test_every_token_has_a_time_and_those_of_a_step_have_the_same():
    result = served(speculative(acceptance_rate=1.0), num_jobs=1)
    times = result.token_times(0)
    assert len(times) == 200
    steps, counts = np.unique(times, return_counts=True)
    assert counts.tolist() == [1, *[4] * 49, 3]
    summary = result.summary
    assert summary["mean_itl_ms"] == pytest.approx(np.diff(steps).mean() * 1e3)
    assert summary["mean_tpot_ms"] == pytest.approx((times[-1] - times[0]) / 199 * 1e3)
    assert result.clients["num_decode_tokens"].item() == 199
    assert result.clients["mean_decodes"].item() == 1


def test_the_summary_says_what_came_of_drafts():
    summary = served(speculative(), num_jobs=400).summary
    assert summary["spec_decode_draft_tokens"] == 3 * summary["spec_decode_num_drafts"]
    length = summary["spec_decode_acceptance_length"]
    assert length == pytest.approx(1 + sum(speculative().survival), rel=0.02)
    assert summary["spec_decode_acceptance_rate"] == pytest.approx(100 * (length - 1) / 3)
    assert not any("spec_decode" in key for key in served(None).summary)


def test_drafts_that_are_never_accepted_change_nothing_but_the_time():
    plain, drafted = served(None), served(speculative(acceptance_rate=0.0))
    columns = ["request_id", "status", "num_output_tokens"]
    assert plain.requests[columns].equals(drafted.requests[columns])
    assert plain.clients["num_steps"].item() == drafted.clients["num_steps"].item()
    assert drafted.summary["mean_tpot_ms"] > plain.summary["mean_tpot_ms"]
    assert drafted.summary["spec_decode_acceptance_length"] == 1


def test_a_pipeline_accepts_the_same_drafts():
    kernels = EngineOverhead(step=0.0, sequence=0.0)  # a host's work is less for each of two lanes
    alone, pipeline = (
        served(DRAFTED, pipeline_parallel_size=size, overhead=kernels) for size in (1, 2)
    )
    counts = ["spec_decode_num_drafts", "spec_decode_accepted_tokens"]
    assert [alone.summary[name] for name in counts] == [pipeline.summary[name] for name in counts]
    assert pipeline.summary["mean_tpot_ms"] > alone.summary["mean_tpot_ms"]  # lanes, hand-overs


def test_more_acceptance_is_faster():
    tpots = [
        served(speculative(acceptance_rate=rate)).summary["mean_tpot_ms"]
        for rate in (0.0, 0.3, 0.6, 0.9, 1.0)
    ]
    assert tpots == sorted(tpots, reverse=True)


def test_slots_for_drafts_are_held_while_memory_is_scarce():
    """The pool holds 4 answers, but not their lookahead, so the last one waits or gives way."""
    options = {"kv_cache": KvCacheConfig(num_gpu_blocks_override=4 * 19 + 1)}
    without = served(None, num_jobs=4, **options)
    config = speculative(method="eagle", num_speculative_tokens=16, acceptance_rate=0.0)
    with_drafts = served(config, num_jobs=4, **options)
    assert without.summary["num_preemptions"] == 0
    assert with_drafts.summary["num_preemptions"] > 0
    assert with_drafts.clients["peak_used_blocks"].item() == 4 * 19


def test_request_without_room_for_drafts_is_told_so():
    options = {"kv_cache": KvCacheConfig(num_gpu_blocks_override=20)}
    result = served(speculative(num_speculative_tokens=64), num_jobs=1, **options)
    reason = result.requests["reason"].item()
    assert "for drafts exceed the KV cache of 304 tokens (19 blocks of 16)" in reason


def test_eagle3_is_timed_as_eagle_and_says_so():
    first, third = (served(speculative(method=method)) for method in ("eagle", "eagle3"))
    assert third.requests.equals(first.requests)
    assert [len(texts(each.summary, "draft head")) for each in (first, third)] == [0, 1]


@pytest.mark.parametrize(
    ("rates", "told"),
    [
        ([0.7, 0.5, 0.35], ("2.17 tokens", "2.55", "0.7, 0.714, 0.7 here")),
        ([0.5, 0.0, 0.0], ("1.50 tokens", "1.50", "0.5, 0, 0 here")),
        ([0.7, 0.7, 0.7], None),
        ([0.7, 0.714, 0.7], None),
        (0.7, None),
    ],
)
def test_list_that_falls_says_how_it_is_read(rates, told):
    config = speculative(acceptance_rate=rates)
    found = texts(served(config, num_jobs=1).summary, "draft rates")
    assert len(found) == len(config.assumed) == bool(told)
    assert all(each in found[0] for each in told or ())
