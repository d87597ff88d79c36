"""Configs of unknown models: the keys that the reader does not understand.

Any dense decoder with Llama's keys is read. Other keys of its config may change its computation:
results name them. Keys that imply other layers (`_OTHER_LAYERS`) are refused by name; `nearest`
reads such a model as the nearest known one instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from mist_sim.errors import ScenarioError
from mist_sim.models.huggingface.config_reader import NEAREST_HINT, ConfigReader

# Keys that change no work and no memory: names, ids of tokens, positions, training, generation.
# Compiled when the first key is judged, since that takes a twentieth of a start.
_HARMLESS = (
    r"_.*|.*(token|dropout|rope|rotary|norm_eps|epsilon|eps|init|initializer|cache|version|loss|coef|bias_std"
    r"|softcap|multiplier|logit|renorm|scoring|scaling|beam|penalty|temperature|top_p|label)s?(_.*)?"
    r"|aliases|architectures|auto_map|(torch_)?dtype|pretraining_tp|name|hf_id|source|based_on|typical_p"
    r"|top_k|do_sample|hidden_act(ivation)?|model_type|max_window_layers|use_sliding_window|problem_type"
    r"|sliding_window|task_specific_params|tf_legacy.*|is_decoder|output_(attentions|hidden_states)"
    r"|return_dict.*|chunk_size_feed_forward|pruned_heads|torchscript|use_bfloat16|cross_attention.*"
    r"|attention_bias|mlp_bias|transformers.*|use_mrope|norm_topk_prob|vision_config|audio_config"
    r"|quantization_config|topk_method|swiglu.*|.*_iters|image_.*|video_.*|id2label|(min|max)_length|finetuning_task|prefix"
    r"|original_.*|.*pdrop|(use_)?qk_.*norm|use_bias|norm_type|mlp_type|activation.*|use_fused.*"
    r"|attn_implementation|ep_size|unk_.*|sep_.*|bos_.*|eos_.*|pad_.*|num_return_sequences"
    r"|add_cross_attention|tie_.*|gated_mlp|early_stopping|remove_invalid.*|layernorm.*|.*_layernorm"
    # the hub and training
    r"|license.*|languages?|library_name|tags|datasets?|base_model.*|hub_.*|trust_remote_code|unsloth.*"
    r"|gradient_checkpointing.*|use_reentrant|lora_(r|alpha|bias|target.*)|peft_.*|.*seq_len(gth)?"
    r"|model_max_length|(use_)?flash_attn.*|use_flash.*|ignore_index|deepspeed.*|use_liger.*|sft_.*"
    r"|neftune.*|fp16|bf16|fp32|seed|.*tokenizer.*|block_size|n(um)?_layers?|onnx_safe|softmax_in_.*"
    # scales, clips, biases and the order of parts, with almost no cost
    r"|clip_qkv|(use_)?(qkv_)?bias|no_bias|(use_)?parallel_(residual|attn|embedding)|scale_.*|dim_model_base"
    r"|full_attn_mod|interpolate_factor|compression_ratio|layer_switch|order_of_interleaved_layers"
    r"|reorder_and_norm|post_norm|use_gated_activation|use_embedding_sharing|position_embedding_type"
    r"|sliding_window_pattern|use_dynamic_ntk|use_logn_attn|alibi|(use_)?qk_norm"
)

_OTHER_LAYERS = (
    r"(.*_)?(layers|blocks?|experts?|moe|mamba.*|ssm|conv|states?|recurrent|linear|rnn|lru|rwkv|xlstm"
    r"|retention|hyena|index|indexer|sparse|blocksparse|kda|gdn|delta|latents?|memory|hybrid|ratios|ngram"
    r"|loops?|lora_rank)(_.*)?"
)
"""Keys of layers that may be of another kind: with these an unknown model is not read."""


class Watched(dict[str, object]):
    """A config that notes which of its keys are read."""

    def __init__(self, config: Mapping[str, object]) -> None:
        super().__init__(config)
        self.read: set[str] = set()

    def get(self, key: str, default: object = None) -> object:
        """Return the value of a key."""
        self.read.add(key)
        return super().get(key, default)

    def __getitem__(self, key: str) -> object:
        self.read.add(key)
        return super().__getitem__(key)

    def not_understood(self) -> Iterator[str]:
        """Yield the keys that the reader ignored and that may change the model's computation."""
        for key, value in self.items():
            if value and key not in self.read and not re.fullmatch(_HARMLESS, key):
                yield key


def tells_other_layers(keys: Iterable[str]) -> bool:
    """Tell whether one of the keys implies layers of another kind."""
    return any(re.fullmatch(_OTHER_LAYERS, key) for key in keys)


def refusal(
    reader: ConfigReader, keys: Sequence[str], nearest: str, missing: Sequence[str]
) -> ScenarioError:
    """Return the error for a model that is not known.

    keys: those of its config that are not understood. nearest: the `model_type` of the nearest
        known model. missing: keys that a model of that type has and this one has not.
    """
    model_type = reader.config.get("model_type")
    said = f"model_type {str(model_type)!r:.40} is not known"
    if model_type is None:
        said = "model_type is missing"
    say = "Say whose layers it has"
    if keys:
        said += f", and these keys may change what it computes: {_some(keys)}"
        say = "Leave out those that do not, and name the model whose layers it has"
    also = f", and give {_some(missing)}" if missing else ""
    return reader.error(
        f'{said}. {say} (the nearest known is "model_type": "{nearest}"){also}; or {NEAREST_HINT}'
    )


def _some(keys: Sequence[str]) -> str:
    return ", ".join(keys[:8]) + (f" and {len(keys) - 8} more" if len(keys) > 8 else "")
