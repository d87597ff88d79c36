"""Encoders: no cache, no causal mask, no answer; one pass over a batch of texts."""

import json
from dataclasses import replace

import numpy as np
import pytest

from mist_sim import EncoderPass, ScenarioError, llm_client
from mist_sim.core.batch import StepBatch
from mist_sim.hardware import load_gpu
from mist_sim.hardware.cluster import Cluster
from mist_sim.hardware.predictors import RooflinePredictor
from mist_sim.hardware.work import StepCounts, step_demand
from mist_sim.models import ModelSpec, operators
from tests.reference.scenarios import scenario
from tests.refusals import refused

BERT = {
    "model_type": "bert",
    "architectures": ["BertModel"],
    "num_hidden_layers": 12,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_attention_heads": 12,
    "vocab_size": 30522,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
}


def read(**changes: object) -> ModelSpec:
    return ModelSpec.from_config({**BERT, **changes}, name="tiny", source="tiny/config.json")


def roofline(model: ModelSpec, **said: object) -> RooflinePredictor:
    return RooflinePredictor(model, Cluster(load_gpu("l4")), **said)


def test_bert_base_has_its_published_parameters():
    """109,482,240: https://huggingface.co/google-bert/bert-base-uncased, encoder and pooler."""
    assert read().num_parameters == 109_482_240
    assert read(architectures=["BertForSequenceClassification"]).num_parameters == 109_483_778


def test_it_has_no_cache_and_no_head():
    bert = read()
    assert (bert.kv_bytes_per_token, bert.has_head) == (0, False)
    assert operators.logits(bert, 8, 1) == []
    names = [each.name for _, part in operators.token_operators(bert, 1, 1, True) for each in part]
    assert "rope_and_cache" not in names
    assert "embedding" in names


@pytest.mark.parametrize("lengths", [(1,), (20,), (512,), (3, 60, 500)])
def test_every_token_attends_to_every_token(lengths):
    """n^2 pairs of a text where a prompt has n (n + 1) / 2; all else is the same."""
    encoder = read()
    causal = replace(encoder, is_encoder=False)
    chunks = tuple((n, 0) for n in lengths)
    one, two = (roofline(model)._prompts for model in (encoder, causal))
    more = sum(n * n - n * (n + 1) / 2 for n in lengths) * two.per_pair
    assert one.of_step(0.0, chunks) == pytest.approx(two.of_step(0.0, chunks) + more, rel=1e-12)


def test_its_arithmetic_is_two_flops_a_weight_and_four_a_pair():
    """12 layers of 7,077,888 weights; 4 x 768 FLOPs for each of n^2 pairs; norms on top."""
    n, gpu = 100.0, load_gpu("l4")
    counts = StepCounts(
        num_steps=np.ones(1),
        num_prefill_tokens=np.array([n]),
        num_samples=np.ones(1),
        num_queries=np.zeros(1),
        prefill_keys=np.array([n]),
        prefill_pairs=np.array([n * (n + 1) / 2]),
        num_decodes=np.zeros(1),
        decode_keys=np.zeros(1),
    )
    flops = step_demand(read(), Cluster(gpu), counts).compute[0] * gpu.flops["bf16"]
    products = 2 * n * 12 * 7_077_888
    pairs = 12 * 4 * 768 * n * n
    assert products + pairs < flops < 1.01 * (products + pairs)


def test_a_pass_is_cut_at_the_longest_text_and_at_the_batch():
    bert = EncoderPass(model="dpr", gpu="l4", max_num_texts=2)
    full = bert.predictor.step_time(StepBatch(((512, 0), (512, 0))))
    assert bert.seconds([512, 9999]) == full
    rest = bert.predictor.step_time(StepBatch(((7, 0),)))
    assert bert.seconds([512, 512, 7]) == full + rest
    assert bert.seconds([]) == 0
    faster = EncoderPass(model="dpr", gpu="l4", enforce_eager=False)
    assert faster.seconds([5]) < bert.seconds([5])


def test_two_gpus_are_faster_than_one_for_long_texts():
    one, two = (
        EncoderPass(model="bge-reranker-v2-m3", gpu="h100-sxm", tensor_parallel_size=ranks)
        for ranks in (1, 2)
    )
    assert two.seconds([8000] * 8) < one.seconds([8000] * 8)


@pytest.mark.parametrize("changes", [{}, {"gated_mlp": True}, {"gated_mlp": False}])
def test_an_engine_refuses_to_generate_with_it(tmp_path, changes):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(BERT | changes), encoding="utf-8")
    with pytest.raises(ScenarioError, match="is an encoder: .* generates nothing"):
        llm_client("llm", model=str(path), gpu="l4")
    with pytest.raises(ScenarioError, match="clients.0.model: .* is an encoder"):
        scenario(clients__0__model=str(path))
    with pytest.raises(ScenarioError, match="is an encoder"):
        scenario(model=str(path))


test_other_encoders_are_refused = refused(
    lambda changes: read(**changes),
    ({"is_decoder": True}, "is_decoder must be false with model_type bert"),
    ({"model_type": "modernbert", "gated_mlp": True}, "modernbert is an encoder that is not"),
    ({"model_type": "distilbert", "gated_mlp": False}, "distilbert is an encoder that is not"),
    ({"num_attention_heads": 7}, "head_dim is missing"),
)


@pytest.mark.parametrize("field", ["has_head", "num_nextn_predict_layers"])
def test_an_encoder_made_in_python_is_checked(field):
    with pytest.raises(ValueError, match=f"{field} is not simulated with is_encoder"):
        replace(read(), **{field: 1})


def test_a_pass_needs_memory_and_names():
    with pytest.raises(ScenarioError, match="model must fit the memory of l4: .* got 22.03 GiB"):
        EncoderPass(model="llama-3.1-70b", gpu="l4")
    with pytest.raises(ScenarioError, match="no model and no file is named 'brt'"):
        EncoderPass(model="brt", gpu="l4")
    with pytest.raises(ValueError, match="max_num_texts must be >= 1, got 0"):
        EncoderPass(model="dpr", gpu="l4", max_num_texts=0)


@pytest.mark.parametrize(
    ("name", "longest"),
    [("bge-reranker-v2-m3", 8192), ("dpr-question-encoder", 512), ("ms-marco-minilm-l6", 512)],
)
def test_text_is_cut_at_longest_that_encoder_reads(name, longest):
    """XLM-RoBERTa has 8,194 positions; the first two belong to padding."""
    passes = EncoderPass(model=name, gpu="h100-sxm").passes([100_000])
    assert passes[0][0] == (longest,)


def test_positions_of_padding_are_parameters_that_read_nothing():
    """514 positions read 512 tokens, and have the parameters of 514."""
    bert, roberta = read(), read(model_type="roberta", max_position_embeddings=514)
    assert roberta.max_position_embeddings == 512
    assert roberta.num_parameters - bert.num_parameters == 2 * 768
    other = read(model_type="roberta", max_position_embeddings=513, pad_token_id=0)
    assert other.max_position_embeddings == 512
    with pytest.raises(ScenarioError, match="max_position_embeddings must be > pad_token_id . 1"):
        read(model_type="roberta", max_position_embeddings=2)
