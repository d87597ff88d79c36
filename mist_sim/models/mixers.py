"""Mixers: the parts of a layer that connect tokens, attention or a state.

CompressedMixer: DeepSeek-V4's attention over a window and over compressed entries (CSA, HCA).

One KV head of 512 values serves all query heads. A layer sees the last 128 tokens uncompressed, and
earlier ones as one entry per 4 tokens, of which an indexer chooses some (CSA), or per 128 tokens,
all of them (HCA). Layers without a ratio have only the window.

Source: DeepSeek-V4 (technical report and `inference/model.py` of deepseek-ai/DeepSeek-V4-Pro).

LinearMixer: layers with a state of fixed size in place of a cache.

Gated DeltaNet (arXiv 2412.06464; Qwen3-Next, Qwen3.5 and later), Kimi Delta Attention (arXiv
2510.26692; Kimi-Linear, Kimi-K3, GLM-5.3-Flash) and Mamba-2 (arXiv 2405.21060; Nemotron-H and 3).

Source of the shapes of states: vLLM, `MambaStateShapeCalculator` in
`model_executor/layers/mamba/mamba_utils.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from mist_sim.checks import Checked, NotNegative, Positive
from mist_sim.models.quantization import Part


@dataclass(frozen=True, slots=True, kw_only=True)
class MlaSpec(Checked):
    """Sizes of multi-head latent attention, under the names of DeepSeek's configs.

    q_lora_rank: size of the compressed query; None projects the query in one matrix.
    kv_lora_rank: size of the latent vector from which keys and values of all heads are computed.
    qk_nope_head_dim, qk_rope_head_dim: parts of a query head without and with position; the key's
        part with position is shared by all heads, and may be 0.
    v_head_dim: size of a value head.

    Source: DeepSeek-V2 (arXiv 2405.04434), section 2.1 and appendix C.
    """

    q_lora_rank: Positive[int] | None
    kv_lora_rank: Positive[int]
    qk_nope_head_dim: Positive[int]
    qk_rope_head_dim: NotNegative[int]
    v_head_dim: Positive[int]

    @property
    def latent_size(self) -> int:
        """Values that the cache holds for a token in one layer."""
        return self.kv_lora_rank + self.qk_rope_head_dim

    @property
    def qk_head_dim(self) -> int:
        """Size of a query or key head."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def norm_params(self) -> int:
        """Parameters of the norms of the compressed query and of the latent."""
        return (self.q_lora_rank or 0) + self.kv_lora_rank

    def down_params(self, hidden_size: int) -> int:
        """Parameters of a layer's down-projections, which lie whole on every rank."""
        return hidden_size * ((self.q_lora_rank or 0) + self.latent_size)

    def head_params(self, hidden_size: int, num_heads: int) -> int:
        """Parameters of a layer's matrices that belong to so many heads: Q, and K, V up."""
        query = (self.q_lora_rank or hidden_size) * self.qk_head_dim
        return num_heads * query + self.kv_up_params(num_heads)

    def kv_up_params(self, num_heads: int) -> int:
        """Parameters of the matrix that turns latents into keys and values of so many heads."""
        return self.kv_lora_rank * num_heads * (self.qk_nope_head_dim + self.v_head_dim)


class Held(NamedTuple):
    """Parameters of a mixer on one rank: of its matrices by part, and of norms, biases, gates."""

    matrices: Mapping[Part, int]
    plain: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixer(ABC):
    """Attention, or a state that takes its place, in one layer.

    `ranks` are tensor-parallel; with one rank every method tells of the whole layer.
    """

    @abstractmethod
    def held(self, hidden_size: int, ranks: int) -> Held:
        """Return the parameters on a rank."""

    @abstractmethod
    def problem(self, ranks: int) -> str:
        """Return how it cannot be split over so many ranks ("divide ..."); empty: it can."""

    @abstractmethod
    def token_bytes(self, ranks: int, entry_bytes: int) -> float:
        """Return the bytes that each token of a context adds to the cache of a rank.

        entry_bytes: of one cached value. With a window, as long as the window holds the token.
        """

    def state_bytes(self, ranks: int, entry_bytes: int) -> int:
        """Return the bytes of a rank for a sequence, however long it is."""
        return 0

    @property
    @abstractmethod
    def most_ranks(self) -> int:
        """Ranks that it can be split over at most: its heads."""

    @property
    def block_alignment(self) -> int:
        """Tokens of which its kernels take multiples as blocks (vLLM, `platforms/interface.py`)."""
        return 16

    @property
    def window(self) -> int | None:
        """Largest number of tokens with entries in the cache; None: all of them."""
        return None


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


LinearKind = Literal["gdn", "kda", "mamba2"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearMixer(Mixer):
    """A layer whose heads keep a matrix of key_dim x value_dim values for all tokens before.

    kind: "gdn", "kda" or "mamba2".
    key_heads, value_heads: heads of keys (Mamba-2: groups) and of values.
    key_dim, value_dim: sizes of a key (Mamba-2: of the state) and of a value of one head.
    conv_kernel: tokens seen by the short convolution before it.
    chunk_size: tokens per chunk in which a prompt is computed.
    state_value_bytes: bytes of a value of the state (`mamba_ssm_dtype`); the convolution's values
        have 16 bits.
    full_gate: whether KDA's output gate is one whole matrix rather than two small ones.
    conv_bias: the convolution has a bias.
    """

    kind: LinearKind
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_kernel: int = 4
    chunk_size: int = 64
    state_value_bytes: int = 4
    full_gate: bool = False
    conv_bias: bool = False

    @property
    def values(self) -> int:
        """Values of a token over all heads."""
        return self.value_heads * self.value_dim

    def keys_on(self, ranks: int) -> int:
        """Return the key heads of a rank; Mamba-2's groups replicate where they run out."""
        return max(1, self.key_heads // ranks)

    def conv_width(self, ranks: int) -> int:
        """Return the channels of the convolution on a rank: queries, keys and values."""
        return 2 * self.keys_on(ranks) * self.key_dim + self.values // ranks

    def input_width(self, ranks: int) -> int:
        """Return the outputs of the matrices before it on a rank, from the hidden state."""
        heads, values = self.value_heads // ranks, self.values // ranks
        channels = self.conv_width(ranks)
        if self.kind == "gdn":  # queries, keys, values; output gate; decay and beta of each head
            return channels + values + 2 * heads
        if self.kind == "mamba2":  # values, B, C; output gate; time step of each head
            return channels + values + heads
        gate = values if self.full_gate else self.value_dim
        return channels + gate + self.key_dim + heads  # forget gate's first matrix; beta

    def low_rank_params(self, ranks: int) -> int:
        """Return the parameters of KDA's second small matrices, of forget and output gate."""
        if self.kind != "kda":
            return 0
        gates = self.key_dim * self.keys_on(ranks) * self.key_dim
        return gates + (0 if self.full_gate else self.value_dim * self.values // ranks)

    def held(self, hidden_size: int, ranks: int) -> Held:
        """Return the parameters on a rank."""
        channels, heads = self.conv_width(ranks), self.value_heads // ranks
        plain = channels * (self.conv_kernel + self.conv_bias)
        if self.kind == "gdn":  # decay, bias of the step, norm of a head
            plain += 2 * heads + self.value_dim
        elif self.kind == "kda":
            plain += heads + self.keys_on(ranks) * self.key_dim + self.value_dim
        else:  # decay, skip, bias of the step, norm over all values
            plain += 3 * heads + self.values // ranks
        inputs = hidden_size * self.input_width(ranks) + self.low_rank_params(ranks)
        matrices: dict[Part, int] = {
            "linear_attention": inputs,
            "linear_output": self.values // ranks * hidden_size,
        }
        return Held(matrices, plain)

    @property
    def most_ranks(self) -> int:
        """Its value heads; each rank has at least one."""
        return self.value_heads

    def problem(self, ranks: int) -> str:
        """Return why the heads cannot be split; empty: they can."""
        if self.value_heads % ranks:
            return f"divide the {self.value_heads} heads of the linear layers"
        if self.key_heads % ranks and (self.kind != "mamba2" or ranks % self.key_heads):
            return f"divide the {self.key_heads} key heads of the linear layers"
        return ""

    def token_bytes(self, ranks: int, entry_bytes: int) -> float:
        """0: its state does not grow with the context."""
        return 0

    def conv_state_bytes(self, ranks: int) -> int:
        """Return the bytes of the convolution's last inputs, of one sequence on a rank."""
        return self.conv_width(ranks) * (self.conv_kernel - 1) * 2

    def recurrent_state_bytes(self, ranks: int) -> int:
        """Return the bytes of the state itself, of one sequence on a rank."""
        return self.values // ranks * self.key_dim * self.state_value_bytes

    def state_bytes(self, ranks: int, entry_bytes: int) -> int:
        """Bytes of the convolution's state and of the recurrent one."""
        return self.conv_state_bytes(ranks) + self.recurrent_state_bytes(ranks)
