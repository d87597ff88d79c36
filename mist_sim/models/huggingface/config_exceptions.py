"""Matrices that a quantized checkpoint leaves in 16 bits, from the modules that its config names.

A name stands for a module and all below it; "*" in it for any characters, and what follows "re:"
is a regular expression, matched from the start (compressed-tensors). Names may leave out the
prefix of the text model. A part (see `Part`) has to be in one format in all layers: checkpoints
that mix two in it would be timed wrongly and are refused.

Source of the forms: vLLM, `model_executor/layers/quantization`: `modelopt.py` (wildcards),
`compressed_tensors/utils.py` (regular expressions), `utils/quant_utils.py` (names).
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from itertools import chain

from mist_sim.errors import brief
from mist_sim.models.huggingface.config_reader import ConfigReader
from mist_sim.models.mixers import MlaSpec
from mist_sim.models.moe import MoeSpec
from mist_sim.models.quantization import LAYER_PARTS, Part

_KEYS = ("modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules")
_MOST, _LONGEST = 4096, 200  # names, and characters of one; real configs have up to 1,000 of 60
# Parts that are always in 16 bits here.
_PLAIN = re.compile(
    r"(.*[.*/:])?(embed_tokens|\w*norm\w*|gate|router|shared_expert_gate|e_score_correction_bias)"
    r"(\.\w+)?\*?\$?"
)
# Limits of a pattern: beyond these, matching 40 characters can take forever.
_NESTED = re.compile(r"\)[*+{]")
_MOST_REPEATS = 5
PATIENCE = 2.0  # seconds of processor time for all patterns of a file
# Image and sound towers, and layers that predict further tokens: not part of the model read.
_ELSEWHERE = re.compile(r".*(vis|image|audio|multi_modal|mm_proj|projector|patch_merge|mtp).*")
_LAYER = re.compile(r".*\blayers\.(\d+)\b.*")


def plain_parts(
    table: ConfigReader, num_layers: int, moe: MoeSpec | None, mla: MlaSpec | None
) -> frozenset[Part]:
    """Return the parts that a `quantization_config` leaves in 16 bits.

    Raises ScenarioError for a name that fits no module, and for a part in two formats.
    """
    said = [item for item in patterns(table) if not _is_harmless(item[1], num_layers)]
    modules = _matrix_names(num_layers, moe, mla) if said else {}
    below = _by_prefix(modules)
    named: dict[str, str] = {}  # the pattern by the matrix that it names
    deadline = time.process_time() + PATIENCE
    for key, pattern in said:
        hits = below.get(plain_name(pattern)) or search(table, key, pattern, below[""], deadline)
        if not hits:
            raise table.error(
                f"{key} names {brief(pattern)}, which is no matrix of this model; layers with "
                "quantized and plain matrices are simulated where all of one kind are plain in "
                "every layer"
            )
        named |= dict.fromkeys(hits, f"{key} names {brief(pattern)}")
    plain = frozenset(part for part, names in modules.items() if _is_plain(table, names, named))
    return LAYER_PARTS if plain and plain == modules.keys() else plain


def _by_prefix(modules: Mapping[Part, list[str]]) -> Mapping[str, list[str]]:
    """Names by each module above them, and by themselves; all of them by ""."""
    below: dict[str, list[str]] = {"": []}
    for name in chain.from_iterable(modules.values()):
        pieces = name.split(".")
        for end in range(len(pieces) + 1):
            below.setdefault(".".join(pieces[:end]), []).append(name)
    return below


def _is_plain(table: ConfigReader, names: list[str], named: Mapping[str, str]) -> bool:
    plain = [name for name in names if name in named]
    if plain and len(plain) < len(names):
        left = next(name for name in names if name not in named)
        raise table.error(
            f"{named[plain[0]]}, but not {left}; layers with quantized and plain matrices are "
            "simulated where all of one kind are plain in every layer"
        )
    return bool(plain)


def _matrix_names(
    num_layers: int, moe: MoeSpec | None, mla: MlaSpec | None
) -> dict[Part, list[str]]:
    """Return the names of the matrices by part, with one expert for all; without empty parts.

    Names are those of `transformers`; Mixtral's experts are renamed to match the other models'.
    """
    dense = moe.dense_layers if moe else frozenset(range(num_layers))
    with_experts = [layer for layer in range(num_layers) if layer not in dense]
    shared = with_experts if moe and moe.shared_intermediate_size else []
    modules: dict[Part, list[str]] = {
        "attention": _names(range(num_layers), "self_attn", _inputs(mla)),
        "attention_output": _names(range(num_layers), "self_attn", ["o_proj"]),
        "mlp": _names(sorted(dense), "mlp", _MLP),
        "shared_experts": _names(shared, "mlp.shared_experts", _MLP),
        "routed_experts": _names(with_experts, "mlp.experts", ["0"]),
    }
    return {part: names for part, names in modules.items() if names}


_MLP = ["gate_proj", "up_proj", "down_proj"]


def _inputs(mla: MlaSpec | None) -> list[str]:
    if mla is None:
        return ["q_proj", "k_proj", "v_proj"]
    query = ["q_a_proj", "q_b_proj"] if mla.q_lora_rank else ["q_proj"]
    return [*query, "kv_a_proj_with_mqa", "kv_b_proj"]


def _names(layers: range | list[int], block: str, leaves: list[str]) -> list[str]:
    return [f"model.layers.{layer}.{block}.{leaf}" for layer in layers for leaf in leaves]


def patterns(table: ConfigReader) -> Iterator[tuple[str, str]]:
    """Yield the keys, and the names under them, that a checkpoint leaves in 16 bits."""
    for key in _KEYS:
        items = table.items(key)
        if len(items) > _MOST:
            raise table.error(f"{key} must have <= {_MOST} names, got {len(items)}")
        for pattern in map(str, items):
            if len(pattern) > _LONGEST:
                raise table.error(
                    f"{key}: a name must have <= {_LONGEST} characters, got {len(pattern)}"
                )
            if pattern:
                yield key, pattern


def plain_name(pattern: str) -> str:
    """Return a name in the form of `_matrix_names`; a "*" at its end is redundant."""
    name = pattern.replace("language_model.", "").replace("block_sparse_moe", "mlp")
    name = re.sub(r"\bshared_expert\b", "shared_experts", name)
    return re.sub(r"(?<=[a-z])\*$", "", name)


def search(
    table: ConfigReader, key: str, pattern: str, names: list[str], deadline: float
) -> list[str]:
    """Return the names that a pattern, a regular expression or the end of a name stands for.

    Raises an error for a pattern that may not terminate, and after the deadline.
    """
    if _NESTED.search(pattern) or sum(map(pattern.count, "*+{")) > _MOST_REPEATS:
        raise table.error(
            f"{key}: {brief(pattern)} must repeat single characters, at most {_MOST_REPEATS} times"
        )
    if pattern.startswith("re:"):
        try:
            matches = re.compile(pattern.removeprefix("re:"))
        except re.error as error:
            raise table.error(
                f"{key}: {brief(pattern)} is no regular expression: {error}"
            ) from None
    else:
        body = ".*".join(re.escape(piece) for piece in plain_name(pattern).split("*"))
        matches = re.compile(rf"(?:.*\.)?{body}(?:\..*)?$")
    found = []
    for name in names:
        if matches.match(name):
            found.append(name)
        if time.process_time() > deadline:
            raise table.error(f"{key}: matching takes over {PATIENCE:g} s; name whole modules")
    return found


def _is_harmless(pattern: str, num_layers: int) -> bool:
    """Whether a name covers only parts that are in 16 bits anyway, or that are not read."""
    layer = _LAYER.fullmatch(pattern.removesuffix("*"))
    behind = layer is not None and int(layer[1][:9]) >= num_layers
    head = pattern.removeprefix("re:").endswith(("lm_head", "lm_head.*", "lm_head$"))
    return bool(behind or head or _PLAIN.fullmatch(pattern) or _ELSEWHERE.fullmatch(pattern))
