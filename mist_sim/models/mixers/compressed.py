"""CompressedMixer: DeepSeek-V4's attention over a window and over compressed entries (CSA, HCA).

One KV head of 512 values serves all query heads. A layer sees the last 128 tokens uncompressed, and
earlier ones as one entry per 4 tokens, of which an indexer chooses some (CSA), or per 128 tokens,
all of them (HCA). Layers without a ratio have only the window.

Source: DeepSeek-V4 (technical report and `inference/model.py` of deepseek-ai/DeepSeek-V4-Pro).
"""

from __future__ import annotations

from dataclasses import dataclass

from mist_sim.models.mixers.base import Held, Mixer
from mist_sim.models.mixers.latent import Indexer

_OVERLAPS = 4  # windows of this ratio overlap: a compressor weighs twice as many tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedMixer(Mixer):
    """One layer of this attention.

    num_heads, head_dim, rope_dim: query heads; their size, which is the entry's; the part of it
        with a position, which the cache holds in 16 bits, and the rest in FP8.
    q_lora_rank: size of the compressed query.
    o_groups, o_lora_rank: the output goes through one matrix for each group of heads, to so many
        values each, and through a common one.
    sliding_window: tokens seen uncompressed.
    ratio: tokens per compressed entry; 0: no such entries.
    indexer: chooses the compressed entries; None: all are seen.
    """

    num_heads: int
    head_dim: int
    rope_dim: int
    q_lora_rank: int
    o_groups: int
    o_lora_rank: int
    sliding_window: int
    ratio: int = 0
    indexer: Indexer | None = None

    @property
    def compressor_width(self) -> int:
        """Outputs of the compressors' matrices: of entries, and of the indexer's keys."""
        if not self.ratio:
            return 0
        times = 2 if self.ratio == _OVERLAPS else 1
        keys = self.indexer.head_dim if self.indexer else 0
        return 2 * times * (self.head_dim + keys)

    @property
    def input_width(self) -> int:
        """Outputs of the projections of the hidden state that every rank holds whole."""
        weights = self.indexer.num_heads if self.indexer else 0
        return self.q_lora_rank + self.head_dim + self.compressor_width + weights

    def query_width(self, ranks: int) -> int:
        """Return the outputs of the query matrix on a rank, the indexer's included."""
        index = self.indexer.num_heads * self.indexer.head_dim if self.indexer else 0
        return self.num_heads // ranks * self.head_dim + index

    def held(self, hidden_size: int, ranks: int) -> Held:
        """Return the parameters on a rank."""
        inputs = hidden_size * self.input_width + self.q_lora_rank * self.query_width(ranks)
        groups = self.o_groups // ranks
        output = self.num_heads // ranks * self.head_dim * self.o_lora_rank
        output += groups * self.o_lora_rank * hidden_size
        plain = self.q_lora_rank + self.head_dim + self.num_heads + self.ratio * self.head_dim
        return Held({"attention": inputs, "attention_output": output}, plain)

    @property
    def most_ranks(self) -> int:
        """Its query heads; each rank has at least one."""
        return self.num_heads

    def problem(self, ranks: int) -> str:
        """Return why the heads or output groups cannot be split; empty: they can."""
        if self.num_heads % ranks:
            return f"divide the {self.num_heads} attention heads"
        if self.o_groups % ranks:
            return f"divide the {self.o_groups} groups of the output matrix"
        return ""

    @property
    def entry_bytes(self) -> int:
        """Bytes of an entry: FP8 with a scale of 8 bits for 64 values, the rotated part 16 bits.

        In all 584 for an entry of 512 values (vLLM's `fp8_ds_mla` of DeepSeek-V4, one more byte
        pads the scales to eight).
        """
        plain = self.head_dim - self.rope_dim
        return plain + plain // 64 + 1 + 2 * self.rope_dim

    def token_bytes(self, ranks: int, entry_bytes: int) -> float:
        """Bytes of an entry and of its index key, divided by the tokens that share them."""
        if not self.ratio:
            return 0
        keys = self.indexer.key_bytes if self.indexer else 0
        return (self.entry_bytes + keys) / self.ratio

    def state_bytes(self, ranks: int, entry_bytes: int) -> int:
        """Return the bytes of the window's entries and of the compressors' unfinished ones."""
        pending = self.ratio * self.compressor_width * 4  # in 32 bits
        return self.sliding_window * self.entry_bytes + pending
