"""LinearMixer: layers with a state of fixed size in place of a cache.

Gated DeltaNet (arXiv 2412.06464; Qwen3-Next, Qwen3.5 and later), Kimi Delta Attention (arXiv
2510.26692; Kimi-Linear, Kimi-K3, GLM-5.3-Flash) and Mamba-2 (arXiv 2405.21060; Nemotron-H and 3).

Source of the shapes of states: vLLM, `MambaStateShapeCalculator` in
`model_executor/layers/mamba/mamba_utils.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mist_sim.models.mixers.base import Held, Mixer
from mist_sim.models.quantization import Part

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
