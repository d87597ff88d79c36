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
from torch.nn.functional import scaled_dot_product_attention, silu

from mist_sim.core.batch import StepBatch
from mist_sim.models.spec import ModelSpec
from mist_sim_torch.pointwise import Pointwise, normed


class Layers:
    """Weights of some layers, and of embedding and head, on one device.

    num_layers: layers held here; the model may have more. ranks: tensor-parallel size. pointwise:
    the operations between matrices, fused or not.
    """

    def __init__(
        self,
        model: ModelSpec,
        ranks: int,
        num_layers: int,
        device: torch.device,
        seed: int,
        pointwise: Pointwise | None = None,
    ) -> None:
        self.model, self.device = model, device
        self.pointwise = pointwise or Pointwise()
        self.heads = model.num_attention_heads // ranks
        self.kv_heads = max(model.num_key_value_heads // ranks, 1)
        self._draws = torch.Generator(device).manual_seed(seed)
        hidden, inner = model.hidden_size, model.intermediate_size // ranks
        head_dim = model.head_dim
        self.layers = [
            {
                "norm": self.drawn(hidden),
                "qkv": self.drawn(hidden, (self.heads + 2 * self.kv_heads) * head_dim),
                "out": self.drawn(self.heads * head_dim, hidden),
                "mlp_norm": self.drawn(hidden),
                "up": self.drawn(hidden, (2 if model.gated_mlp else 1) * inner),
                "down": self.drawn(inner, hidden),
            }
            for _ in range(num_layers)
        ]
        vocab = model.vocab_size // ranks
        self.embedding = self.drawn(vocab, hidden) if model.has_embedding else None
        self.head = self.drawn(hidden, vocab) if model.has_head else None
        self.norm = self.drawn(hidden)

    def drawn(self, *shape: int) -> Tensor:
        """Random values: with zeros a device draws less power and may run faster."""
        values = torch.empty(shape, dtype=torch.bfloat16, device=self.device)
        return values.normal_(0.0, 0.02, generator=self._draws)

    def rotary(self, num_tokens: int) -> Tensor:
        """Cosines and sines of every token, shape (2, tokens, 1, head_dim)."""
        return self.drawn(2, num_tokens, 1, self.model.head_dim)

    def step(self, batch: StepBatch) -> Callable[[], Tensor]:
        """Return a call that runs all layers held here on a batch; its memory is made now."""
        num_tokens = batch.num_prefill_tokens + batch.num_decodes
        hidden, before = (self.drawn(num_tokens, self.model.hidden_size) for _ in range(2))
        rotary = self.rotary(num_tokens)
        caches = [Cache(self, batch) for _ in self.layers]

        def run() -> Tensor:
            x, out = hidden, before
            for weights, cache in zip(self.layers, caches, strict=True):
                x, inner = self.pointwise.added_norm(x, out, weights["norm"])
                out = self.attention(weights, inner, rotary, cache)
                x, inner = self.pointwise.added_norm(x, out, weights["mlp_norm"])
                out = self.mlp(weights, inner)
            return out

        return run

    def ends(self, num_tokens: int, num_samples: int) -> Callable[[], Tensor]:
        """Return a call that runs the work done once per step: embedding, last norm, logits."""
        ids = torch.arange(num_tokens, device=self.device)
        if self.embedding is not None:
            ids %= len(self.embedding)
        passed_on = self.drawn(num_tokens, self.model.hidden_size)

        def run() -> Tensor:
            x = passed_on if self.embedding is None else self.embedding[ids]
            if self.head is None:
                return x
            return torch.argmax(normed(x, self.norm)[:num_samples] @ self.head, dim=-1)

        return run

    # --- modules ------------------------------------------------------------------------------

    def attention(
        self, weights: dict[str, Tensor], x: Tensor, rotary: Tensor, cache: Cache
    ) -> Tensor:
        """Projections, rotary embedding, cache write and attention of every part of the batch."""
        heads, kv_heads, size = self.heads, self.kv_heads, self.model.head_dim
        qkv = (x @ weights["qkv"]).view(-1, heads + 2 * kv_heads, size)
        qk, v = qkv.split([heads + kv_heads, kv_heads], dim=1)
        q, k = self.pointwise.rotated(qk, rotary).split([heads, kv_heads], dim=1)
        return cache.attend(q, k, v) @ weights["out"]

    def mlp(self, weights: dict[str, Tensor], x: Tensor) -> Tensor:
        """Gated MLP, or a plain one."""
        up = x @ weights["up"]
        inner = self.pointwise.gated(up) if self.model.gated_mlp else silu(up)
        return inner @ weights["down"]


class Cache:
    """Keys and values of one layer for a batch: a pair for each chunk, and one for all decodes."""

    def __init__(self, layers: Layers, batch: StepBatch) -> None:
        self._sizes = batch.chunks
        self._num_prefill = batch.num_prefill_tokens
        self._num_decodes = n = batch.num_decodes
        size = layers.model.head_dim

        def filled(sequences: int, tokens: int) -> list[Tensor]:
            alike = (layers.drawn(1, layers.kv_heads, tokens, size) for _ in "kv")
            return [one.repeat(sequences, 1, 1, 1) for one in alike]

        self.chunks = [filled(1, new + context) for new, context in batch.chunks]
        self.decodes = filled(n, batch.context_sum // n + 1) if n else []

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
        return torch.cat(found) if len(found) > 1 else found[0]


def _causal(new: int, context: int) -> dict[str, Any]:
    """Return the mask of a chunk: each query sees the context and earlier tokens of the chunk."""
    if new == 1:
        return {}
    if context == 0:
        return {"is_causal": True}
    from torch.nn.attention.bias import causal_lower_right

    return {"attn_mask": causal_lower_right(new, new + context)}
