"""HeadsMixer: attention with cached keys and values of each KV head."""

from __future__ import annotations

from dataclasses import dataclass

from mist_sim.models.mixers.base import Held, Mixer


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockIndexer:
    """An indexer that chooses blocks of keys, of which alone the heads read (MiniMax-M3).

    num_heads, head_dim: of its queries; its one key head is cached in 16 bits.
    num_blocks, block_size: blocks that a query chooses at most, and tokens in each.
    """

    num_heads: int
    head_dim: int
    num_blocks: int
    block_size: int

    @property
    def reach(self) -> int:
        """Tokens that a query sees at most."""
        return self.num_blocks * self.block_size

    @property
    def key_bytes(self) -> int:
        """Bytes that the cache holds of a token."""
        return 2 * self.head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadsMixer(Mixer):
    """Multi-head or grouped-query attention.

    num_heads, num_kv_heads: query heads; heads with cached keys and values.
    head_dim, v_head_dim: sizes of a query or key head, and of a value head.
    reach: largest number of tokens a query sees, its own included; None: all before it.
    is_chunked: the reach is the part of the context behind its last multiple (Llama 4), not a
        window that moves with the query.
    gated: the query matrix has an output gate of the same size beside the queries (Qwen3.5).
    shares_values: keys and values come from one matrix (Gemma 4's global layers); both are cached.
    vector_params: parameters of the norms of queries and keys, of biases and sinks.
    indexer: chooses the blocks of keys that are read.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    v_head_dim: int
    reach: int | None = None
    is_chunked: bool = False
    gated: bool = False
    shares_values: bool = False
    vector_params: int = 0
    indexer: BlockIndexer | None = None

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"the KV heads must divide the {self.num_heads} attention heads, "
                f"got {self.num_kv_heads}"
            )

    @property
    def window(self) -> int | None:
        """Tokens that a query reaches back; None: all."""
        return self.reach

    def kv_heads(self, ranks: int) -> int:
        """Return the KV heads of a rank; with more ranks than heads they replicate."""
        return max(1, self.num_kv_heads // ranks)

    def input_width(self, ranks: int) -> int:
        """Return the outputs of the matrix before attention on a rank."""
        queries = self.num_heads // ranks * self.head_dim * (2 if self.gated else 1)
        values = 0 if self.shares_values else self.v_head_dim
        return queries + self.kv_heads(ranks) * (self.head_dim + values)

    @property
    def index_width(self) -> int:
        """Outputs of the indexer's matrices, which lie whole on every rank."""
        indexer = self.indexer
        return (indexer.num_heads + 1) * indexer.head_dim if indexer else 0

    def held(self, hidden_size: int, ranks: int) -> Held:
        """Parameters of the projections of a rank's heads, and of its indexer."""
        output = self.num_heads // ranks * self.v_head_dim * hidden_size
        inputs = hidden_size * (self.input_width(ranks) + self.index_width)
        return Held({"attention": inputs, "attention_output": output}, self.vector_params)

    @property
    def most_ranks(self) -> int:
        """Its query heads; KV heads are copied to further ranks."""
        return self.num_heads

    def problem(self, ranks: int) -> str:
        """Return why the heads cannot be split; empty: they can."""
        if self.num_heads % ranks:
            return f"divide the {self.num_heads} attention heads"
        if self.num_kv_heads % ranks and ranks % self.num_kv_heads:
            return f"divide, or be a multiple of, the {self.num_kv_heads} KV heads"
        return ""

    def token_bytes(self, ranks: int, entry_bytes: int) -> float:
        """Bytes of the keys and values of a rank's KV heads, and of the index key."""
        values = self.kv_heads(ranks) * (self.head_dim + self.v_head_dim)
        return values * entry_bytes + (self.indexer.key_bytes if self.indexer else 0)
