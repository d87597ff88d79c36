"""MlaSpec: multi-head latent attention, whose cache holds one small vector for all heads."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class MlaSpec:
    """Sizes of multi-head latent attention, under the names of DeepSeek's configs.

    q_lora_rank: size of the compressed query; None projects the query in one matrix.
    kv_lora_rank: size of the latent vector from which keys and values of all heads are computed.
    qk_nope_head_dim, qk_rope_head_dim: parts of a query head without and with position; the key's
        part with position is shared by all heads, and may be 0.
    v_head_dim: size of a value head.

    Source: DeepSeek-V2 (arXiv 2405.04434), section 2.1 and appendix C.
    """

    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            may_be_none = field.name == "qk_rope_head_dim"
            if value is not None and (value < 0 or (value == 0 and not may_be_none)):
                least = ">= 0" if may_be_none else "> 0"
                raise ValueError(f"{field.name} must be {least}, got {value}")

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
