"""Models that no reader knows: what is said of them, and what the nearest known one gives."""

import json

import pytest

import mist_sim as mist
from mist_sim import Scenario, Simulation, Workload
from mist_sim.errors import ScenarioError
from mist_sim.models import ModelSpec, load_model
from tests.unit.models.test_models_that_differ import QWEN, UNKNOWN

HYENA = UNKNOWN | {"hyena_layers": [1, 2], "hyena_order": 64}


def test_unknown_models_say_which_keys_are_not_understood(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(UNKNOWN))
    assert load_model(str(path)).num_layers == 4  # nothing but what a decoder has
    path.write_text(json.dumps(UNKNOWN | {"hyena_layers": [1, 2], "hyena_order": 64}))
    with pytest.raises(ScenarioError, match="'hyena9' is not known, .*: hyena_layers, hyena_order"):
        load_model(str(path))
    model = load_model(f"approximate:{path}")
    assert model.approximated == ("hyena9 as llama", "hyena_layers", "hyena_order")
    workload = Workload.from_lists([50], [5], [0.0])
    client = mist.llm_client("llm", model=f"approximate:{path}", gpu="h200")
    summary = Simulation(clients=[client], workload=workload).run().summary
    assert "model: hyena9 as llama" in summary["assumed"]["llm"]
    bars = summary["expected_errors"]["llm"]
    assert all(bar["low"] is None for bar in bars.values())


@pytest.mark.parametrize(
    ("more", "nearest"),
    [
        ({"linear_num_value_heads": 4, "linear_key_head_dim": 16}, "qwen3_next"),
        ({"kv_lora_rank": 16, "n_routed_experts": 8}, "deepseek_v3"),
        ({"num_experts": 8, "moe_intermediate_size": 32}, "qwen3_moe"),
    ],
)
def test_unknown_models_are_nearest_to_what_their_keys_tell(tmp_path, more, nearest):
    config = {**UNKNOWN, **more, "new_block": 3}
    if nearest == "qwen3_next":
        config = {**QWEN, **config}
    if nearest == "deepseek_v3":
        config |= {"qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8}
        config["moe_intermediate_size"] = 32
    if nearest != "qwen3_next":
        config["num_experts_per_tok"] = 2
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    found = load_model(f"approximate:{path}").approximated
    assert found[0] == f"hyena9 as {nearest}"
    assert "new_block" in found


def test_configs_above_a_megabyte_are_read(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(UNKNOWN | {"_names": ["x" * 100] * 15_000}))
    assert path.stat().st_size > 2**20
    assert load_model(str(path)).num_layers == 4


@pytest.mark.parametrize("key", ["hidden_size_per_layer_input", "num_kv_shared_layers"])
def test_a_block_of_a_known_family_is_left_out_by_name(key):
    config = {
        **UNKNOWN,
        "model_type": "gemma4_text",
        "head_dim": 16,
        "global_head_dim": 32,
        "sliding_window": 64,
        "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
        key: 8,
    }
    with pytest.raises(ScenarioError, match=f"{key} must be 0 or absent.*--approximate"):
        ModelSpec.from_config(config, name="tiny", source="")
    found = ModelSpec.from_config(config, name="tiny", source="", is_nearest=True)
    assert found.approximated == ("gemma4_text as gemma4_text", key)
    plain = ModelSpec.from_config(config | {key: 0}, name="tiny", source="")
    assert found.layers == plain.layers
    assert not plain.approximated


@pytest.mark.parametrize(
    ("kind", "taken"),
    [
        ("conv", "linear_attention"),
        ("mamba", "linear_attention"),
        ("recurrent", "linear_attention"),
        ("global_attention", "full_attention"),
        ("hyena", "full_attention"),
    ],
)
def test_unknown_kind_of_layer_is_taken_as_nearest(kind, taken):
    kinds = ["linear_attention", "full_attention", "linear_attention", kind]
    config = {**QWEN, "layer_types": kinds}
    with pytest.raises(ScenarioError, match=f"layer_types names '{kind}', .*--approximate"):
        ModelSpec.from_config(config, name="tiny", source="")
    found = ModelSpec.from_config(config, name="tiny", source="", is_nearest=True)
    assert f"layer_types: {kind} as {taken}" in found.approximated
    same = ModelSpec.from_config({**QWEN, "layer_types": [*kinds[:3], taken]}, name="t", source="")
    assert found.layers == same.layers


@pytest.mark.parametrize("name", ["llama-3.1-8b", "minimax-m3", "kimi-k3", "glm-5.3-flash"])
def test_a_known_model_is_read_as_it_is(name, tmp_path):
    """What is known is not approximated, whoever asks for it."""
    from mist_sim.models.model_loading import _catalog

    path = tmp_path / "config.json"
    path.write_text(json.dumps(dict(_catalog()[name])))
    found, plain = load_model(f"approximate:{path}"), load_model(name)
    assert (found.layers, found.num_parameters) == (plain.layers, plain.num_parameters)
    assert not found.approximated


def test_refusal_says_what_would_have_to_be_said():
    config = UNKNOWN | {"num_experts": 8, "moe_intermediate_size": 32, "router_blocks": 2}
    with pytest.raises(ScenarioError) as caught:
        ModelSpec.from_config(config, name="tiny", source="c.json")
    text = str(caught.value)
    assert text.startswith("c.json: model_type 'hyena9' is not known, and these keys may change")
    assert '"model_type": "qwen3_moe"), and give num_experts_per_tok; or --approximate' in text
    assert "\n" not in text
    with pytest.raises(ScenarioError, match="as qwen3_moe: num_experts_per_tok is missing"):
        ModelSpec.from_config(config, name="tiny", source="c.json", is_nearest=True)
    said = config | {"num_experts_per_tok": 2}
    assert ModelSpec.from_config(said, name="t", source="", is_nearest=True).moe is not None


def test_experts_with_shared_one_are_nearest_to_experts():
    """The keys of GLM-4.5, whose first layers are dense."""
    config = UNKNOWN | {
        "model_type": "glm9_moe",
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "first_k_dense_replace": 1,
    }
    found = ModelSpec.from_config(config, name="tiny", source="", is_nearest=True)
    assert found.approximated == ("glm9_moe as qwen3_moe",)
    assert found.num_moe_layers == 3
    assert found.moe is not None
    assert found.moe.shared_intermediate_size == 32


def test_scenario_takes_unknown_models_where_it_says_so(tmp_path):
    path = tmp_path / "hyena" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(HYENA))
    said = {"model": str(path.parent), "clients.0.count": 1}
    with pytest.raises(ScenarioError, match="hyena_layers, hyena_order"):
        Scenario.load("demo", said)
    found = Scenario.load("demo", said | {"approximate": True})
    assert found.model == f"approximate:{path.parent}"
    again = Scenario.from_yaml(found.resolved())
    assert again.resolved() == found.resolved()
    assert "approximate" not in Scenario.load("demo").resolved()


def test_the_command_line_takes_unknown_models(tmp_path, mist):
    path = tmp_path / "hyena.json"
    path.write_text(json.dumps(HYENA))
    words = ["explain", "demo", "--set", f"model={path}", "--decodes", "4", "--context", "9"]
    code, _, said = mist(*words)
    assert code == 2
    assert "hyena_layers, hyena_order" in " ".join(said.split())
    assert "Traceback" not in said
    assert mist(*words, "--approximate")[0] == 0
    serve = ["from-vllm", f"vllm serve {path}", "--gpu", "h200"]
    code, _, said = mist(*serve)
    assert code == 2
    assert "hyena_layers, hyena_order" in " ".join(said.split())
    code, out, _ = mist(*serve, "--approximate")
    assert code == 0
    assert f"model: {path}" in out
    assert "approximate: true" in out
