"""LatentMixer: latent attention over all entries, or over those an indexer chooses (DSA)."""

from __future__ import annotations

from dataclasses import dataclass

from mist_sim.models.mixers.base import Held, Mixer
from mist_sim.models.mla import MlaSpec

# An index key is cached in FP8 with one 32-bit scale for every 128 values (vLLM's
# `DeepseekV32IndexerCache` in `model_executor/models/deepseek_v2.py`).
_SCALED = 128
_SCALE_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexer:
    """DeepSeek's lightning indexer: small heads in FP8 that score all keys for each query.

    num_heads, head_dim: of its queries; all heads share one key.
    topk: entries that it chooses for each query.
    per_entry: tokens that one index key stands for (keys that are pooled).

    Source: DeepSeek-V3.2 (arXiv 2512.02556), section 2.1.
    """

    num_heads: int
    head_dim: int
    topk: int
    per_entry: int = 1

    @property
    def key_bytes(self) -> int:
        """Bytes that the cache holds of an index key."""
        return self.head_dim + _SCALE_BYTES * (self.head_dim // _SCALED)

    def params(self, hidden_size: int, query_rank: int) -> int:
        """Return the parameters of its matrices: queries, key, weights of the heads."""
        return (
            query_rank * self.num_heads * self.head_dim
            + hidden_size * self.head_dim
            + hidden_size * self.num_heads
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentMixer(Mixer):
    """Multi-head latent attention (`MlaSpec`) in a layer of its own sizes.

    topk: entries that a query sees at most, since an indexer chose them; None: all.
    indexer: that of this layer; None where the layer takes the choice of an earlier one.
    gated: an output gate of the size of all values (Kimi-K3).
    vector_params: parameters of the norms of query and latent.
    """

    mla: MlaSpec
    num_heads: int
    topk: int | None = None
    indexer: Indexer | None = None
    gated: bool = False
    vector_params: int = 0

    def held(self, hidden_size: int, ranks: int) -> Held:
        """Return the parameters on a rank."""
        heads, mla = self.num_heads // ranks, self.mla
        values = heads * mla.v_head_dim * hidden_size
        inputs = mla.down_params(hidden_size) + mla.head_params(hidden_size, heads)
        if self.gated:
            inputs += values
        if self.indexer:
            inputs += self.indexer.params(hidden_size, mla.q_lora_rank or hidden_size)
        return Held({"attention": inputs, "attention_output": values}, self.vector_params)

    @property
    def most_ranks(self) -> int:
        """Its query heads; each rank has at least one."""
        return self.num_heads

    def problem(self, ranks: int) -> str:
        """Return that the heads cannot be divided evenly; empty: they can."""
        return "" if self.num_heads % ranks == 0 else f"divide the {self.num_heads} heads"

    @property
    def block_alignment(self) -> int:
        """128 for latent attention; pooled index keys take 64 of them together."""
        indexer = self.indexer
        return max(128, 64 * indexer.per_entry) if indexer else 128

    def token_bytes(self, ranks: int, entry_bytes: int) -> float:
        """Bytes of the latent entry, which every rank holds whole, and of its index key."""
        indexer = self.indexer
        index = indexer.key_bytes / indexer.per_entry if indexer else 0
        return self.mla.latent_size * entry_bytes + index
