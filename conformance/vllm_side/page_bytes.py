"""Bytes of an installed vLLM's pages, for mixers that stdin describes: KV entries and states.

`python -m conformance.vllm_side.page_bytes < mixers.json > bytes.json`, from the folder that holds
`conformance`; it needs no GPU.

Source: `vllm/v1/kv_cache_interface.py`, `MambaStateShapeCalculator` in
`vllm/model_executor/layers/mamba/mamba_utils.py`, `_align_hybrid_block_size` in
`vllm/platforms/interface.py`.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from math import ceil
from typing import Any

_BLOCK = 16  # tokens of a block whose bytes are divided by its tokens


def token_bytes(mixer: dict[str, Any]) -> float:
    """Return the bytes that a token adds to the cache of one layer on a rank."""
    import torch
    from vllm.v1.kv_cache_interface import (
        FullAttentionSpec,
        MLAAttentionSpec,
        SlidingWindowSpec,
    )

    shape = {"block_size": _BLOCK, "dtype": torch.bfloat16}
    if mixer["kind"] == "latent":
        latent = MLAAttentionSpec(num_kv_heads=1, head_size=mixer["size"], **shape)
        found = latent.page_size_bytes
        if mixer["index_bytes"]:  # `DeepseekV32IndexerCache`
            keys = {**shape, "dtype": torch.uint8}
            index = MLAAttentionSpec(num_kv_heads=1, head_size=mixer["index_bytes"], **keys)
            found += index.page_size_bytes
        return found / _BLOCK
    sizes = {"num_kv_heads": mixer["kv_heads"], "head_size": mixer["head_dim"]}
    sizes |= {"head_size_v": mixer["v_head_dim"], **shape}
    if mixer["window"]:
        found = SlidingWindowSpec(**sizes, sliding_window=mixer["window"]).page_size_bytes
    else:
        found = FullAttentionSpec(**sizes).page_size_bytes
    return found / _BLOCK


def state_bytes(mixer: dict[str, Any]) -> int:
    """Return the bytes of a sequence's state in one layer on a rank."""
    import torch
    from vllm.model_executor.layers.mamba.mamba_utils import MambaStateShapeCalculator as Shapes
    from vllm.v1.kv_cache_interface import MambaSpec

    ranks, kernel = mixer["ranks"], mixer["conv_kernel"]
    keys, values = mixer["key_heads"], mixer["value_heads"]
    if mixer["state"] == "gdn":
        shapes = Shapes.gated_delta_net_state_shape(
            ranks, keys, values, mixer["key_dim"], mixer["value_dim"], kernel
        )
    elif mixer["state"] == "kda":
        shapes = Shapes.kda_state_shape(
            ranks, values, mixer["value_dim"], keys, mixer["key_dim"], kernel
        )
    else:
        inner = values * mixer["value_dim"]
        shapes = Shapes.mamba2_state_shape(
            ranks, inner, keys, values, mixer["value_dim"], mixer["key_dim"], kernel
        )
    widths = {2: torch.bfloat16, 4: torch.float32}
    dtypes = (torch.bfloat16, widths[mixer["state_value_bytes"]])
    return int(MambaSpec(shapes=shapes, dtypes=dtypes, block_size=-1).page_size_bytes)


def block_size(entry: float, state: int, alignment: int) -> int:
    """Return the tokens of a block whose entries are at least a state."""
    return alignment * ceil(state / (alignment * entry))


def main() -> None:
    """Read mixers, write their bytes."""
    os.environ |= {"VLLM_TARGET_DEVICE": "cpu", "VLLM_LOGGING_LEVEL": "ERROR"}
    asked = json.load(sys.stdin)
    with contextlib.redirect_stdout(sys.stderr):
        import vllm

        found = []
        for mixer in asked:
            is_state = mixer["kind"] == "state"
            found.append(state_bytes(mixer) if is_state else token_bytes(mixer))
    json.dump({"version": vllm.__version__, "bytes": found}, sys.stdout)


if __name__ == "__main__":
    main()
