"""The layers of a dense decoder in PyTorch, with random weights: an engine's work in a step.

One tensor-parallel rank: its heads and its slice of the MLP, without collectives. Norms, fused
QKV, rotary embedding, cache write, attention of every chunk and of all decodes (PyTorch's fused
`scaled_dot_product_attention`), output, gated or plain MLP, as Hugging Face and vLLM order them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import rms_norm, scaled_dot_product_attention, silu

from mist_sim.core.batch import StepBatch
from mist_sim.models.spec import ModelSpec


class Layers:
    """Weights of some layers, and of embedding and head, on one device.

    num_layers: layers held here; the model may have more. ranks: tensor-parallel size.
    """

    def __init__(
        self, model: ModelSpec, ranks: int, num_layers: int, device: torch.device, seed: int
    ) -> None:
        self.model, self.device = model, device
        self.heads = model.num_attention_heads // ranks
        self.kv_heads = max(model.num_key_value_heads // ranks, 1)
        self._draws = torch.Generator(device).manual_seed(seed)
        hidden, inner = model.hidden_size, model.intermediate_size // ranks
        head_dim = model.head_dim
        self.layers = [
            {
                "norm": self._weights(hidden),
                "qkv": self._weights(hidden, (self.heads + 2 * self.kv_heads) * head_dim),
                "out": self._weights(self.heads * head_dim, hidden),
                "mlp_norm": self._weights(hidden),
                "up": self._weights(hidden, (2 if model.gated_mlp else 1) * inner),
                "down": self._weights(inner, hidden),
            }
            for _ in range(num_layers)
        ]
        vocab = model.vocab_size // ranks
        self.embedding = self._weights(vocab, hidden) if model.has_embedding else None
        self.head = self._weights(hidden, vocab) if model.has_head else None
        self.norm = self._weights(hidden)

    def _weights(self, *shape: int) -> Tensor:
        values = torch.empty(shape, dtype=torch.bfloat16, device=self.device)
        return values.normal_(0.0, 0.02, generator=self._draws)

    def step(self, batch: StepBatch) -> Callable[[], Tensor]:
        """Return a call that runs all layers held here on a batch; its memory is made now."""
        num_tokens = batch.num_prefill_tokens + batch.num_decodes
        hidden = self._weights(num_tokens, self.model.hidden_size)
        rotary = self._weights(2, num_tokens, 1, self.model.head_dim // 2)
        caches = [Cache(self, batch) for _ in self.layers]

        def run() -> Tensor:
            x = hidden
            for weights, cache in zip(self.layers, caches, strict=True):
                x = x + self.attention(weights, self.normed(x, weights["norm"]), rotary, cache)
                x = x + self.mlp(weights, self.normed(x, weights["mlp_norm"]))
            return x

        return run

    def ends(self, num_tokens: int, num_samples: int) -> Callable[[], Tensor]:
        """Return a call that runs the work done once per step: embedding, last norm, logits."""
        ids = torch.arange(num_tokens, device=self.device)
        if self.embedding is not None:
            ids %= len(self.embedding)
        passed_on = self._weights(num_tokens, self.model.hidden_size)

        def run() -> Tensor:
            x = passed_on if self.embedding is None else self.embedding[ids]
            if self.head is None:
                return x
            return torch.argmax(self.normed(x, self.norm)[:num_samples] @ self.head, dim=-1)

        return run

    # --- modules ------------------------------------------------------------------------------

    def normed(self, x: Tensor, weight: Tensor) -> Tensor:
        """RMS norm."""
        return rms_norm(x, (x.shape[-1],), weight, 1e-6)

    def attention(
        self, weights: dict[str, Tensor], x: Tensor, rotary: Tensor, cache: Cache
    ) -> Tensor:
        """Projections, rotary embedding, cache write and attention of every part of the batch."""
        heads, kv_heads, size = self.heads, self.kv_heads, self.model.head_dim
        qkv = (x @ weights["qkv"]).view(-1, heads + 2 * kv_heads, size)
        q, k, v = qkv.split([heads, kv_heads, kv_heads], dim=1)
        q, k = _rotated(q, rotary), _rotated(k, rotary)
        return cache.attend(q, k, v) @ weights["out"]

    def mlp(self, weights: dict[str, Tensor], x: Tensor) -> Tensor:
        """Gated MLP, or a plain one."""
        up = x @ weights["up"]
        if self.model.gated_mlp:
            gate, up = up.chunk(2, dim=-1)
            return (silu(gate) * up) @ weights["down"]
        return silu(up) @ weights["down"]


def _rotated(x: Tensor, rotary: Tensor) -> Tensor:
    """Rotary embedding: pairs of a head's values turn by an angle."""
    one, other = x.chunk(2, dim=-1)
    cosine, sine = rotary
    return torch.cat([one * cosine - other * sine, other * cosine + one * sine], dim=-1)


class Cache:
    """Keys and values of one layer for a batch: a pair for each chunk, and one for all decodes."""

    def __init__(self, layers: Layers, batch: StepBatch) -> None:
        self._sizes = batch.chunks
        self._num_prefill = batch.num_prefill_tokens
        self._num_decodes = n = batch.num_decodes
        size = layers.model.head_dim

        def empty(sequences: int, tokens: int) -> list[Tensor]:
            shape = (sequences, layers.kv_heads, tokens, size)
            return [torch.zeros(shape, dtype=torch.bfloat16, device=layers.device) for _ in "kv"]

        self.chunks = [empty(1, new + context) for new, context in batch.chunks]
        self.decodes = empty(n, batch.context_sum // n + 1) if n else []

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Write the new keys and values; return the attention's outputs, (tokens, heads x size)."""
        found = []
        start = 0
        for (new, context), (keys, values) in zip(self._sizes, self.chunks, strict=True):
            part = slice(start, start + new)
            keys[0, :, context:] = k[part].transpose(0, 1)
            values[0, :, context:] = v[part].transpose(0, 1)
            query = q[part].transpose(0, 1).unsqueeze(0)
            read = scaled_dot_product_attention(
                query, keys, values, enable_gqa=True, **_causal(new, context)
            )
            found.append(read[0].transpose(0, 1).reshape(new, -1))
            start += new
        if self._num_decodes:
            keys, values = self.decodes
            keys[:, :, -1], values[:, :, -1] = k[start:], v[start:]
            query = q[start:].unsqueeze(2)
            read = scaled_dot_product_attention(query, keys, values, enable_gqa=True)
            found.append(read.reshape(self._num_decodes, -1))
        return torch.cat(found)


def _causal(new: int, context: int) -> dict[str, Any]:
    """Return the mask of a chunk: each query sees the context and earlier tokens of the chunk."""
    if new == 1:
        return {}
    if context == 0:
        return {"is_causal": True}
    from torch.nn.attention.bias import causal_lower_right

    return {"attn_mask": causal_lower_right(new, new + context)}
