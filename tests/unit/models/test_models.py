"""Models: sizes of the catalog, what follows from them, and every way to get a config wrong."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist_sim.errors import ScenarioError
from mist_sim.models import ModelSpec, load_model, model_names
from tests.refusals import refused

# Parameters of the checkpoints, as their safetensors on Hugging Face count them.
COUNTS = {
    176_247_271_424: "bloom-176b",
    567_755_777: "bge-reranker-v2-m3",
    33_743_970_304: "codellama-34b",
    8_190_735_360: "deepseek-r1-0528-qwen3-8b qwen3-8b",
    1_777_088_000: "deepseek-r1-distill-qwen-1.5b",
    # without the module that predicts a second token
    671_026_419_200: "deepseek-v3 deepseek-v3.1-nvfp4",
    108_891_648: "dpr-question-encoder",
    11_766_034_176: "gemma-3-12b",  # without its vision tower
    27_009_346_304: "gemma-3-27b",  # without its vision tower
    3_880_263_168: "gemma-3-4b",  # without its vision tower
    110_468_824_832 - 3_616_573_568: "glm-4.5-air",  # without the layer that drafts
    358_337_791_296 - 5_539_962_272: "glm-4.6",  # GLM-4.5's, without the layer that drafts
    31_221_488_576 - 1_278_094_656: "glm-4.7-flash",  # without the layer that drafts
    116_829_156_672: "gpt-oss-120b",
    20_914_757_184: "gpt-oss-20b",
    # without its vision tower
    1_026_408_232_448: "kimi-k2 kimi-k2-instruct-0905 kimi-k2.5 kimi-k2.6 kimi-k2.6-nvfp4",
    13_015_864_320: "llama-2-13b",
    68_976_648_192: "llama-2-70b",
    6_738_415_616: "llama-2-7b",
    15_009_845_248: "llama-3-15b",
    70_553_706_496: "llama-3-70b llama-3.1-70b llama-3.1-70b-fp8",
    8_030_261_248: "llama-3-8b llama-3.1-8b",
    405_853_388_800: "llama-3.1-405b",
    1_235_814_400: "llama-3.2-1b",
    3_212_749_824: "llama-3.2-3b",
    # without the modules that predict further tokens
    228_689_764_864: "minimax-m2 minimax-m2-nvfp4 minimax-m2.7",
    # of the sizes in arXiv 2601.08584; its card says 13.5 B
    13_506_073_600: "ministral-3-14b ministral-3-14b-fp8",
    3_849_090_048 - 420_083_712: "ministral-3-3b ministral-3-3b-fp8",  # without its vision tower
    # of the sizes in arXiv 2601.08584; its card says 8.4 B
    8_489_553_920: "ministral-3-8b ministral-3-8b-fp8",
    7_241_732_096: "mistral-7b-v0.1 mistral-7b-v0.2",
    7_248_023_552: "mistral-7b-v0.3",
    23_572_403_200: "mistral-small-24b mistral-small-3.1-24b",  # without its vision tower
    140_620_634_112: "mixtral-8x22b",
    46_702_792_704: "mixtral-8x7b",
    22_713_601: "ms-marco-minilm-l6",
    14_659_507_200: "phi-4",
    494_032_768: "qwen2.5-0.5b",
    1_543_714_304: "qwen2.5-1.5b qwen2.5-1.5b-instruct",
    14_770_033_664: "qwen2.5-14b qwen2.5-14b-instruct",
    32_763_876_352: "qwen2.5-32b qwen2.5-32b-instruct",
    3_085_938_688: "qwen2.5-3b",
    72_706_203_648: "qwen2.5-72b qwen2.5-72b-instruct",
    7_615_616_512: "qwen2.5-7b qwen2.5-7b-instruct",
    7_070_619_136: "qwen2.5-math-prm-7b",  # without its head of two labels, 12,855,810
    596_049_920: "qwen3-0.6b",
    1_720_574_976: "qwen3-1.7b",
    14_768_307_200: "qwen3-14b",
    235_093_634_560: (
        "qwen3-235b-a22b qwen3-235b-a22b-fp8 qwen3-235b-a22b-instruct-2507 qwen3-235b-a22b-nvfp4"
    ),
    30_532_122_624: "qwen3-30b-a3b qwen3-30b-a3b-fp8 qwen3-30b-a3b-instruct-2507",
    32_762_123_264: "qwen3-32b qwen3-32b-fp8",
    4_022_468_096: "qwen3-4b qwen3-4b-instruct-2507",
    480_154_875_392: "qwen3-coder-480b-a35b",
    2_614_341_888: "shieldgemma-2b",
}
PUBLISHED_PARAMETERS = {name: count for count, names in COUNTS.items() for name in names.split()}

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 101,
    "max_position_embeddings": 128,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}


def read(**changes: object) -> ModelSpec:
    config = {key: value for key, value in {**LLAMA, **changes}.items() if value is not ...}
    return ModelSpec.from_config(config, name="tiny", source="tiny/config.json")


def test_catalog_counts_the_published_parameters():
    models = {name: load_model(name) for name in model_names()}
    # those whose layers differ: test_models_that_differ.py
    alike = {name: model for name, model in models.items() if not model.layers}
    counted = {name: model.num_parameters for name, model in alike.items()}
    assert counted == PUBLISHED_PARAMETERS


@pytest.mark.parametrize("name", sorted(PUBLISHED_PARAMETERS))
def test_catalog_entry_names_its_source_and_splits_over_two_ranks(name):
    model = load_model(name)
    assert model.name == name
    assert "Hugging Face" in model.source
    model = model.with_dtypes(weights="bf16")  # DeepSeek's are FP8
    assert model.weight_bytes_per_rank(1) == 2 * model.num_parameters
    half = model.weight_bytes_per_rank(2)
    replicated = 1.02 if model.is_encoder else 1.001  # 2 bytes, 2 ranks
    mla, latents = model.mla, 0  # which lie whole on every rank
    if mla:
        latents = (mla.q_lora_rank or 0) + mla.kv_lora_rank + mla.qk_rope_head_dim
        latents *= model.hidden_size * model.num_layers
    assert model.num_parameters + latents < half < replicated * model.num_parameters + latents


@pytest.mark.parametrize(
    ("name", "kv_bytes"),
    [
        ("llama-3.1-70b", 327_680),  # MIST §II
        ("codellama-34b", 196_608),  # Seesaw, from the shapes of its table
        ("llama-3.1-8b", 131_072),
        ("qwen3-4b", 147_456),  # head_dim 128, although hidden_size / heads is 80
    ],
)
def test_kv_bytes_per_token(name, kv_bytes):
    assert load_model(name).kv_bytes_per_token == kv_bytes


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("meta-llama/Llama-3.1-70B", "llama-3.1-70b"),
        ("meta-llama/llama-3.1-70b-instruct", "llama-3.1-70b"),
        ("llama2-70b", "llama-2-70b"),
        ("bigscience/bloom", "bloom-176b"),
        ("meta-llama/Llama-3.3-70B-Instruct", "llama-3.1-70b"),
        ("Llama-3.3-70B", "llama-3.1-70b"),
        ("Mistral-7B", "mistral-7b-v0.3"),
        ("mistralai/Mistral-Small-3.2-24B-Instruct-2506", "mistral-small-3.1-24b"),
        ("qwen/qwen3-30b-a3b-instruct-2507", "qwen3-30b-a3b-instruct-2507"),
        ("deepseek-ai/DeepSeek-R1", "deepseek-v3"),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-32B", "qwen2.5-32b"),
    ],
)
def test_aliases_and_hugging_face_ids(alias, name):
    assert load_model(alias) == load_model(name)
    assert load_model(alias).name == name


def test_contexts_of_models_of_one_size():
    """An instruct model's config may allow another context than its base's."""
    contexts = {
        "Qwen/Qwen2.5-7B": 131_072,
        "Qwen/Qwen2.5-7B-Instruct": 32_768,
        "Qwen/Qwen3-30B-A3B": 40_960,
        "Qwen/Qwen3-30B-A3B-Instruct-2507": 262_144,
        "meta-llama/Meta-Llama-3-8B": 8_192,
        "meta-llama/Llama-3.1-8B": 131_072,
        "mistralai/Mistral-Small-24B-Instruct-2501": 32_768,
        "mistralai/Mistral-Small-3.1-24B-Instruct-2503": 131_072,
        "moonshotai/Kimi-K2-Instruct": 131_072,
        "moonshotai/Kimi-K2-Instruct-0905": 262_144,
    }
    assert {name: load_model(name).max_position_embeddings for name in contexts} == contexts


@pytest.mark.parametrize(
    ("name", "total", "non_embedding"),
    [
        # Qwen2.5's model cards
        ("qwen2.5-0.5b", 0.49, 0.36),
        ("qwen2.5-1.5b", 1.54, 1.31),
        ("qwen2.5-3b", 3.09, 2.77),
        ("qwen2.5-7b", 7.61, 6.53),
        ("qwen2.5-72b", 72.7, 70.0),
        # Qwen3's
        ("qwen3-8b", 8.2, 6.95),
        # Gemma 3, arXiv 2503.19786, table 1 (embedding and the rest, without vision)
        ("gemma-3-4b", 3.884, 3.209),
        ("gemma-3-12b", 11.771, 10.759),
    ],
)
def test_billions_of_the_model_cards(name, total, non_embedding):
    model = load_model(name)
    rest = model.num_parameters - model.embedding_params
    assert rest / 1e9 == pytest.approx(non_embedding, rel=0.01)
    assert model.num_parameters / 1e9 == pytest.approx(total, rel=0.01)


def test_no_alias_stands_for_two_models():
    for name in model_names():
        assert load_model(name).name == name
    with pytest.raises(ScenarioError, match="no model"):
        load_model("")


def test_sizes_of_a_small_model():
    model = read()
    assert model.head_dim == 8
    assert model.attention_params_per_layer == 64 * 64 * 2 + 64 * 16 * 2
    assert model.mlp_params_per_layer == 3 * 64 * 96
    assert model.layer_params == 2 * (10_240 + 18_432 + 2 * 64)
    assert model.embedding_params == 2 * 101 * 64
    assert model.num_parameters == model.layer_params + model.embedding_params + 64
    assert read(tie_word_embeddings=True).embedding_params == 101 * 64


def test_ranks_share_matrices_and_replicate_kv_heads_and_norms():
    model = read()
    assert [model.kv_heads_per_rank(ranks) for ranks in (1, 2, 4, 8)] == [2, 1, 1, 1]
    assert model.kv_bytes_per_token == model.kv_bytes_per_token_per_rank(1) == 2 * 2 * 2 * 8 * 2
    assert model.kv_bytes_per_token_per_rank(4) == model.kv_bytes_per_token // 2
    matrices = 2 * (16 + 8) * 64 + 18_432 // 4  # 2 query heads and 1 KV head of 8 on each rank
    vocabulary = 2 * 26 * 64  # 101 rows over 4 ranks
    assert model.weight_bytes_per_rank(4) == 2 * (2 * (matrices + 2 * 64) + vocabulary + 64)


@pytest.mark.parametrize(
    ("name", "ranks", "problem"),
    [
        ("qwen2.5-14b", 3, r"divide the 40 attention heads of qwen2\.5-14b, got 3; these work: 1,"),
        ("qwen2.5-14b", 5, r"divide, or be a multiple of, the 8 KV heads .* these work: 1, 2, 4"),
        ("llama-3.1-70b", 0, "divide the 64 attention heads"),
        ("llama-3.1-70b", 128, "divide the 64 attention heads"),
    ],
)
def test_impossible_tensor_parallel_sizes(name, ranks, problem):
    model = load_model(name)
    for call in (
        model.check_tensor_parallel,
        model.weight_bytes_per_rank,
        model.kv_bytes_per_token_per_rank,
    ):
        with pytest.raises(ScenarioError, match=problem):
            call(ranks)


def test_ranks_divide_the_vocabulary_in_whole_64_words():
    """As vLLM: "AssertionError: 129280 is not divisible by 3"."""
    heads = {"num_attention_heads": 24, "num_key_value_heads": 12, "intermediate_size": 14_400}
    model = replace(load_model("llama-3.1-8b"), vocab_size=129_217, **heads)
    model.check_tensor_parallel(4)
    with pytest.raises(ScenarioError, match="divide the vocabulary of 129,217 words of .*got 3"):
        model.check_tensor_parallel(3)


def test_mlp_must_split_too():
    with pytest.raises(ScenarioError, match="divide the MLP size 100"):
        read(intermediate_size=100).check_tensor_parallel(8)


@given(
    heads=st.sampled_from([1, 2, 4, 6, 8, 12, 40]),
    group=st.sampled_from([1, 2, 4, 5]),
    ranks=st.integers(-1, 41),
    tied=st.booleans(),
    vocab=st.integers(1, 300),
)
def test_ranks_together_hold_the_model_and_no_less(heads, group, ranks, tied, vocab):
    kv_heads = max(1, heads // group) if heads % group == 0 else heads
    model = read(
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=8,
        intermediate_size=40 * 12,
        vocab_size=vocab,
        tie_word_embeddings=tied,
    )
    if ranks < 1 or heads % ranks or (kv_heads % ranks and ranks % kv_heads):
        with pytest.raises(ScenarioError, match="tensor_parallel_size must divide"):
            model.weight_bytes_per_rank(ranks)
    else:
        assert ranks * model.weight_bytes_per_rank(ranks) >= 2 * model.num_parameters
        assert ranks * model.kv_bytes_per_token_per_rank(ranks) >= model.kv_bytes_per_token


# ------------------------------------------------------------------ reading a config


def test_biases_and_norms_of_each_architecture():
    qkv, out, mlp = (8 + 2 * 2) * 8, 64, 2 * 96 + 64
    norms = 2 * 64
    assert read().vector_params_per_layer == norms
    assert read(model_type="mistral").vector_params_per_layer == norms
    assert read(model_type="qwen2").vector_params_per_layer == norms + qkv
    assert read(model_type="qwen3").vector_params_per_layer == norms + 2 * 8
    assert read(attention_bias=True).vector_params_per_layer == norms + qkv + out
    assert read(mlp_bias=True).vector_params_per_layer == norms + mlp
    bloom = read(model_type="bloom", num_key_value_heads=...)
    assert bloom.vector_params_per_layer == 2 * 128 + 3 * 64 + 64 + 96 + 64
    assert bloom.vector_params_outside_layers == 2 * 128


def test_bloom_names():
    config = {"model_type": "bloom", "n_layer": 2, "n_embed": 64, "n_head": 8, "vocab_size": 101}
    model = ModelSpec.from_config(config, name="tiny", source="config.json")
    assert (model.intermediate_size, model.num_key_value_heads) == (256, 8)
    assert (model.tie_word_embeddings, model.gated_mlp) == (True, False)
    assert (model.max_position_embeddings, model.dtype_bytes) == (2048, 2)


def test_defaults_of_absent_keys():
    bare = read(num_key_value_heads=..., tie_word_embeddings=..., torch_dtype=..., hidden_act=...)
    assert bare.num_key_value_heads == bare.num_attention_heads
    assert not bare.tie_word_embeddings
    assert bare.dtype_bytes == 2
    assert read(head_dim=None).head_dim == 8
    assert read(model_type="other", tie_word_embeddings=...).tie_word_embeddings


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "torch.float16"])
def test_sixteen_bits_are_served(dtype):
    assert read(torch_dtype=dtype).dtype_bytes == 2
    assert read(torch_dtype=..., dtype=dtype).dtype_bytes == 2


def test_other_dense_models_say_whether_their_mlp_is_gated():
    assert read(model_type="phi3").gated_mlp
    assert not read(model_type="gptx", hidden_act="gelu", gated_mlp=False).gated_mlp
    with pytest.raises(ScenarioError, match=r'tiny/config.json: .*add "gated_mlp"'):
        read(model_type="gptx", hidden_act="gelu")


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "qwen2", "sliding_window": 64, "use_sliding_window": False},
        {"model_type": "qwen3", "sliding_window": 64},
        {"model_type": "mistral", "sliding_window": None},
        {"model_type": "mistral", "sliding_window": 128},  # as long as the context
        {"layer_types": ["full_attention", "full_attention"]},
        {"num_local_experts": None, "kv_lora_rank": None, "quantization_config": None},
    ],
)
def test_features_that_are_named_but_off(changes):
    spec = read(**changes)
    assert (spec.num_layers, spec.moe, spec.mla, spec.quantization) == (2, None, None, None)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"num_experts": 128}, "num_experts means a mixture of experts"),
        ({"num_local_experts": 8}, "num_local_experts means a mixture of experts"),
        ({"kv_lora_rank": 512}, "kv_lora_rank means multi-head latent attention"),
        ({"quantization_config": {"bits": 4}}, "quantization_config means quantized weights"),
        ({"text_config": {}, "hidden_size": ...}, "hidden_size"),
        ({"text_config": {"hidden_size": 1}, "hidden_size": ...}, "model_type is missing"),
        ({"is_encoder_decoder": True}, "an encoder-decoder model"),
        ({"layer_types": ["full_attention", "mamba"]}, "layer_types names 'mamba'"),
        ({"num_hidden_layers": ...}, r"num_hidden_layers \(or n_layer\) is missing"),
        ({"max_position_embeddings": None}, "max_position_embeddings .* is missing"),
        ({"hidden_size": 65}, "head_dim is missing"),
        ({"hidden_size": 0}, "hidden_size must be an integer > 0, got 0"),
        ({"hidden_size": 64.0}, "hidden_size must be an integer > 0, got 64.0"),
        ({"vocab_size": True}, "vocab_size must be an integer > 0, got True"),
        ({"num_key_value_heads": 3}, "num_key_value_heads must divide the 8 attention heads"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings must be true or false, got 'no'"),
        ({"torch_dtype": "float8_e4m3fn"}, "torch_dtype must be one of .* got 'float8_e4m3fn'"),
    ],
)
def test_wrong_configs_name_the_file_and_the_key(changes, problem):
    with pytest.raises(ScenarioError, match=f"^tiny/config.json: .*{problem}"):
        read(**changes)


def test_a_spec_made_in_python_is_checked_too():
    with pytest.raises(ValueError, match="dtype_bytes must be >= 1, got 0"):
        ModelSpec(
            name="x",
            num_layers=1,
            hidden_size=1,
            intermediate_size=1,
            num_attention_heads=1,
            num_key_value_heads=1,
            head_dim=1,
            vocab_size=1,
            max_position_embeddings=1,
            dtype_bytes=0,
        )


# ------------------------------------------------------------------ finding a model


def test_a_file_or_its_folder(tmp_path: Path):
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA), "utf-8")
    (tmp_path / "other.json").write_text(json.dumps(LLAMA), "utf-8")
    for path, name in ((folder, "my-model"), (folder / "config.json", "my-model")):
        model = load_model(str(path))
        assert model.name == name
        assert model.source == str(folder / "config.json")
    assert load_model(str(tmp_path / "other.json")).name == "other"


@pytest.mark.parametrize(
    ("folder", "said", "name"),
    [
        ("files", {}, "llama"),
        ("Downloads", {"_name_or_path": "org/Mine-7B"}, "Mine-7B"),
        ("mine", {"_name_or_path": "org/other"}, "mine"),
    ],
)
def test_a_folder_that_tells_nothing_names_no_model(tmp_path, folder, said, name):
    (tmp_path / folder).mkdir()
    path = tmp_path / folder / "config.json"
    path.write_text(json.dumps(LLAMA | said), "utf-8")
    assert load_model(str(path)).name == name


test_unknown_names_help = refused(
    load_model,
    ("lama-3.1-70b", "did you mean 'llama-3.1-70b'"),
    ("meta-llama/Llama-3.1-70", "did you mean 'meta-llama/llama-3.1-70b'"),
    ("zzz", r"named 'zzz'\. mist list models shows all"),
    ("Qwen/Qwen3-30B-A3B-Instruct-2508", "did you mean 'qwen/qwen3-30b-a3b-instruct-2507'"),
    ("nowhere/model.json", "or give the path of a Hugging Face config.json"),
)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "not valid JSON"),
        (b"{'hidden_size': 1}", "not valid JSON"),
        (b'{"hidden_size": 1, "hidden_size": 2}', "key 'hidden_size' is given twice"),
        (b"[1, 2]", "must hold a JSON object, got list"),
        (b"\xff\xfe", "not a UTF-8 text file"),
        (b'{"hidden_size": 1e3}', "hidden_size must be an integer"),
        (b'{"hidden_size": NaN}', "hidden_size must be an integer"),
    ],
)
def test_files_that_cannot_be_read_name_themselves(tmp_path, content, problem):
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(ScenarioError, match=problem) as caught:
        load_model(str(path))
    assert str(caught.value).startswith(str(path))


def test_missing_files(tmp_path):
    for path in (tmp_path, tmp_path / "nowhere" / "config.json"):
        with pytest.raises(ScenarioError, match=r"config\.json: no such file"):
            load_model(str(path))


@pytest.mark.parametrize(
    ("key", "value"),
    [("num_hidden_layers", 10**400), ("model_type", ["llama"])],
    ids=["size", "type"],
)
def test_a_config_with_impossible_values_is_refused(tmp_path, key, value):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA | {key: value}))
    with pytest.raises(ScenarioError, match="config.json"):
        load_model(str(path))
