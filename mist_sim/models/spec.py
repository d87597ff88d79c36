"""ModelSpec: the sizes of a dense transformer, and what follows from them in bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mist_sim.errors import ScenarioError
from mist_sim.models.config import read_config

_SIZES = (
    "num_layers",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "max_position_embeddings",
    "dtype_bytes",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """The sizes of one dense decoder-only model, under the names of Hugging Face configs.

    num_layers: decoder layers (`num_hidden_layers`).
    head_dim: size of one attention head; heads times head_dim need not be the hidden size.
    max_position_embeddings: longest context in tokens that the model accepts.
    tie_word_embeddings: one vocabulary matrix serves as input embedding and output head.
    gated_mlp: the MLP has three matrices (SwiGLU) rather than two.
    dtype_bytes: bytes of one weight, activation or KV entry (2 for bf16 and fp16).
    vector_params_per_layer, vector_params_outside_layers: parameters of norms and biases.
    source: where the figures come from.
    """

    name: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    tie_word_embeddings: bool = False
    gated_mlp: bool = True
    dtype_bytes: int = 2
    vector_params_per_layer: int = 0
    vector_params_outside_layers: int = 0
    source: str = ""

    def __post_init__(self) -> None:
        for field in _SIZES:
            if getattr(self, field) <= 0:
                raise ValueError(f"{field} must be > 0, got {getattr(self, field)}")
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_key_value_heads must divide the {self.num_attention_heads} attention "
                f"heads, got {self.num_key_value_heads}"
            )

    @classmethod
    def from_config(cls, config: Mapping[str, object], *, name: str, source: str) -> ModelSpec:
        """Read a Hugging Face `config.json` that was parsed to a mapping.

        Raises ScenarioError, starting with `source`, when a key is missing or wrong, or when
        the model needs a feature that is not simulated (see `mist_sim.models.config`).
        """
        fields = read_config(config, source)
        try:
            return cls(name=name, source=source, **fields)
        except ValueError as error:
            raise ScenarioError(f"{source}: {error}") from None

    @property
    def attention_params_per_layer(self) -> int:
        """Parameters of the Q, K, V and output matrices of one layer."""
        heads = 2 * self.num_attention_heads + 2 * self.num_key_value_heads
        return self.hidden_size * self.head_dim * heads

    @property
    def mlp_params_per_layer(self) -> int:
        """Parameters of the MLP matrices of one layer."""
        return (3 if self.gated_mlp else 2) * self.hidden_size * self.intermediate_size

    @property
    def layer_params(self) -> int:
        """Parameters of all layers: matrices, norms and biases, without the vocabulary."""
        matrices = self.attention_params_per_layer + self.mlp_params_per_layer
        return self.num_layers * (matrices + self.vector_params_per_layer)

    @property
    def embedding_params(self) -> int:
        """Parameters of the input embedding and the output head; tied ones count once."""
        return (1 if self.tie_word_embeddings else 2) * self.vocab_size * self.hidden_size

    @property
    def num_parameters(self) -> int:
        """All parameters of the model."""
        return self.layer_params + self.embedding_params + self.vector_params_outside_layers

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of keys and values of one token in all layers of one whole model."""
        entries = 2 * self.num_layers * self.num_key_value_heads * self.head_dim
        return entries * self.dtype_bytes

    def kv_heads_per_rank(self, tensor_parallel_size: int) -> int:
        """KV heads on one rank, at least 1: heads replicate when there are more ranks.

        Plain arithmetic: `check_tensor_parallel` says whether the split is possible.
        """
        return max(1, self.num_key_value_heads // tensor_parallel_size)

    def kv_bytes_per_token_per_rank(self, tensor_parallel_size: int) -> int:
        """Bytes of keys and values of one token in all layers on one rank."""
        self.check_tensor_parallel(tensor_parallel_size)
        heads = self.kv_heads_per_rank(tensor_parallel_size)
        return 2 * self.num_layers * heads * self.head_dim * self.dtype_bytes

    def weight_bytes_per_rank(self, tensor_parallel_size: int) -> int:
        """Bytes of weights on one rank.

        Matrices are split over the ranks, the vocabulary rounded up to whole rows and KV heads
        replicated as in `kv_heads_per_rank`; norms and biases lie whole on every rank.
        """
        ranks = tensor_parallel_size
        self.check_tensor_parallel(ranks)
        heads = self.num_attention_heads // ranks + self.kv_heads_per_rank(ranks)
        layer = 2 * heads * self.head_dim * self.hidden_size
        layer += self.mlp_params_per_layer // ranks + self.vector_params_per_layer
        vocabularies = 1 if self.tie_word_embeddings else 2
        vocabulary = vocabularies * -(-self.vocab_size // ranks) * self.hidden_size
        params = self.num_layers * layer + vocabulary + self.vector_params_outside_layers
        return params * self.dtype_bytes

    def check_tensor_parallel(self, tensor_parallel_size: int) -> None:
        """Raise ScenarioError when the model cannot be split over so many ranks.

        vLLM's rule: ranks divide the attention heads and the MLP, and divide the KV heads or
        are a multiple of them.
        """
        problem = self._tensor_parallel_problem(tensor_parallel_size)
        if problem:
            heads = range(1, self.num_attention_heads + 1)
            works = [str(ranks) for ranks in heads if not self._tensor_parallel_problem(ranks)]
            raise ScenarioError(
                f"tensor_parallel_size must {problem} of {self.name}, got {tensor_parallel_size}; "
                f"these work: {', '.join(works)}"
            )

    def _tensor_parallel_problem(self, ranks: int) -> str:
        if ranks < 1 or self.num_attention_heads % ranks:
            return f"divide the {self.num_attention_heads} attention heads"
        kv_heads = self.num_key_value_heads
        if kv_heads % ranks and ranks % kv_heads:
            return f"divide, or be a multiple of, the {kv_heads} KV heads"
        if self.intermediate_size % ranks:
            return f"divide the MLP size {self.intermediate_size}"
        return ""
