"""ModelSizes: the sizes of a transformer, and totals over the whole model."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from mist_sim.bounds import HEADS, LAYERS
from mist_sim.models import layers as layered
from mist_sim.models.cache_layout import CacheLayout, cache_layout
from mist_sim.models.kv_groups import KvGroups, kv_groups
from mist_sim.models.layers import Layers
from mist_sim.models.mla import MlaSpec
from mist_sim.models.moe import MoeSpec
from mist_sim.models.quantization import KV_CACHE_BYTES, Part, Quantization, check_name
from mist_sim.models.vision import VisionTower

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
class ModelSizes:
    """The sizes of one transformer, under the names of Hugging Face configs.

    It is a decoder, which generates with a KV cache, or an encoder (BERT), which reads a text in
    one pass without a causal mask, caches nothing and generates nothing.

    num_layers: decoder layers (`num_hidden_layers`).
    intermediate_size: inner size of the MLP of a dense layer.
    head_dim: size of one query head; heads times head_dim need not be the hidden size.
    max_position_embeddings: longest context in tokens that the model accepts.
    tie_word_embeddings: one vocabulary matrix serves as input embedding and output head.
    gated_mlp: an MLP or expert has three matrices (SwiGLU) rather than two.
    dtype_bytes: bytes of an activation, and of every parameter and KV entry without another format
        below (2 for bf16 and fp16).
    vector_params_per_layer, vector_params_outside_layers: parameters of norms and biases.
    moe: the experts, None in a dense model.
    mla: latent attention, None if each KV head is cached.
    sliding_window: keys that a query of a window layer attends to, its own included; None: all.
    window_layers: layers, counted from 0, that have the window.
    num_nextn_predict_layers: additional layers, not counted in `num_layers`, trained to predict
        further tokens (multi-token prediction).
    quantization: format of the layers' matrices, None for 16 bits.
    more_quantizations: further formats, for parts not covered by `quantization`.
    kv_cache_dtype: format of KV entries, by vLLM's names; "auto": that of activations.
    layers: every layer, where they differ in more than windows and experts; its mixers then take
        the place of the heads, windows and latents above, which tell of the first attention only.
    vision: the tower that makes tokens of images, which no total below counts; None: none that is
        known.
    tower_parameters: parameters of other towers, of images or sound, which engines load with it; no
        total below counts them. unsized_towers: keys of towers whose sizes the config leaves out.
    approximated: blocks of the config that are read as the nearest known ones.
    has_embedding, has_head: whether the vocabulary's matrices belong to it; not to the parts of
        a model in the middle of a pipeline. An encoder has no head.
    is_encoder: whether it is an encoder.
    architecture: the `model_type` of its config, which engines know by version; empty: not known.
    source: origin of the figures.
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
    moe: MoeSpec | None = None
    mla: MlaSpec | None = None
    sliding_window: int | None = None
    window_layers: frozenset[int] = frozenset()
    num_nextn_predict_layers: int = 0
    quantization: Quantization | None = None
    more_quantizations: tuple[Quantization, ...] = ()
    kv_cache_dtype: str = "auto"
    layers: Layers = ()
    vision: VisionTower | None = None
    tower_parameters: int = 0
    unsized_towers: tuple[str, ...] = ()
    approximated: tuple[str, ...] = ()
    has_embedding: bool = True
    has_head: bool = True
    is_encoder: bool = False
    architecture: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        for field in _SIZES:
            if getattr(self, field) <= 0:
                raise ValueError(f"{field} must be > 0, got {getattr(self, field)}")
        for field, most in (("num_layers", LAYERS), ("num_attention_heads", HEADS)):
            if getattr(self, field) > most:
                raise ValueError(f"{field} must be <= {most}, got {getattr(self, field)}")
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_key_value_heads must divide the {self.num_attention_heads} attention "
                f"heads, got {self.num_key_value_heads}"
            )
        if self.moe and not self.moe.dense_layers < set(range(self.num_layers)):
            raise ValueError(
                f"dense_layers must leave one of the {self.num_layers} layers to the experts, "
                f"got {sorted(self.moe.dense_layers)}"
            )
        if self.layers and len(self.layers) != self.num_layers:
            raise ValueError(f"layers must be {self.num_layers}, got {len(self.layers)}")
        self._check_window()
        if self.num_nextn_predict_layers < 0:
            raise ValueError(
                f"num_nextn_predict_layers must be >= 0, got {self.num_nextn_predict_layers}"
            )
        check_name("kv_cache_dtype", self.kv_cache_dtype, ("auto", *KV_CACHE_BYTES))
        self._check_encoder()

    def _check_encoder(self) -> None:
        if not self.is_encoder:
            return
        for field in ("has_head", "moe", "mla", "sliding_window", "num_nextn_predict_layers"):
            if getattr(self, field):
                raise ValueError(f"{field} is not simulated with is_encoder")

    def _check_window(self) -> None:
        if bool(self.window_layers) != (self.sliding_window is not None):
            raise ValueError("sliding_window and window_layers must be given together")
        if self.sliding_window is not None and self.sliding_window < 1:
            raise ValueError(f"sliding_window must be >= 1 token, got {self.sliding_window}")
        if not self.window_layers <= set(range(self.num_layers)):
            raise ValueError(
                f"window_layers must be among the {self.num_layers} layers, "
                f"got {sorted(self.window_layers)}"
            )
        if self.mla and self.sliding_window:
            raise ValueError("sliding_window is not simulated with multi-head latent attention")

    # --- parameters ---------------------------------------------------------------------------

    @property
    def num_moe_layers(self) -> int:
        """Layers with a mixture of experts."""
        if self.layers:
            return layered.num_with_experts(self.layers) if self.moe else 0
        return self.num_layers - len(self.moe.dense_layers) if self.moe else 0

    @property
    def num_dense_layers(self) -> int:
        """Layers with an ordinary MLP."""
        if self.layers:
            return sum(layered.mlp_sizes(self.layers).values())
        return self.num_layers - self.num_moe_layers

    @property
    def num_sums(self) -> int:
        """All-reduces of hidden states in a step: behind attention and MLP of every layer."""
        if self.layers:
            return sum(layer.num_sums for layer in self.layers)
        return 2 * self.num_layers

    @property
    def attention_params_per_layer(self) -> int:
        """Parameters of the matrices of attention in one layer."""
        if self.mla:
            down = self.mla.down_params(self.hidden_size)
            inputs = down + self.mla.head_params(self.hidden_size, self.num_attention_heads)
        else:
            heads = self.num_attention_heads + 2 * self.num_key_value_heads
            inputs = self.hidden_size * self.head_dim * heads
        return inputs + self.attention_output_params(self.num_attention_heads)

    def attention_output_params(self, num_heads: int) -> int:
        """Parameters of the output matrix of so many heads in one layer."""
        return num_heads * (self.mla.v_head_dim if self.mla else self.head_dim) * self.hidden_size

    @property
    def mlp_params_per_layer(self) -> int:
        """Parameters of the MLP matrices of one dense layer."""
        return self.mlp_params(self.intermediate_size)

    def mlp_params(self, intermediate_size: int) -> int:
        """Parameters of the matrices of an MLP of that inner size."""
        return (3 if self.gated_mlp else 2) * self.hidden_size * intermediate_size

    @property
    def layer_params(self) -> int:
        """Parameters of all layers: matrices, norms and biases, without the vocabulary."""
        return self._layer_params(self.moe.num_experts if self.moe else 0)

    @property
    def embedding_params(self) -> int:
        """Parameters of the input embedding and the output head; tied ones count once."""
        return (self.has_own_embedding + self.has_head) * self.vocab_size * self.hidden_size

    @property
    def has_own_embedding(self) -> bool:
        """Whether the input embedding is a matrix of its own, beside the head."""
        return self.has_embedding and not (self.tie_word_embeddings and self.has_head)

    @property
    def num_parameters(self) -> int:
        """All parameters of the model."""
        return self.layer_params + self.embedding_params + self.vector_params_outside_layers

    @property
    def num_active_parameters(self) -> int:
        """Parameters that one token meets: all but the routed experts it is not sent to."""
        layers = self._layer_params(self.moe.num_experts_per_token if self.moe else 0)
        return layers + self.embedding_params + self.vector_params_outside_layers

    def _layer_params(self, experts_counted: int) -> int:
        if self.layers:
            matrices, params = layered.mixer_params(self.layers, self.hidden_size, 1)
            params += sum(matrices.values()) + layered.vector_params(self.layers)
        else:
            per_layer = self.attention_params_per_layer + self.vector_params_per_layer
            params = self.num_layers * per_layer
        params += self._mlp_params_in_all
        if self.moe:
            each = self.expert_params(self.moe) + self.moe.expert_vector_params
            common = self.shared_params(self.moe) + self._router_params(self.moe)
            params += self.num_moe_layers * (experts_counted * each + common)
        return params

    @property
    def _mlp_params_in_all(self) -> int:
        if self.layers:
            sizes = layered.mlp_sizes(self.layers)
            return sum(number * self.mlp_params(size) for size, number in sizes.items())
        return self.num_dense_layers * self.mlp_params_per_layer

    def expert_params(self, moe: MoeSpec) -> int:
        """Parameters of the matrices of one routed expert."""
        width = moe.hidden_size or self.hidden_size
        return (3 if self.gated_mlp else 2) * width * moe.intermediate_size

    def shared_params(self, moe: MoeSpec) -> int:
        """Parameters of the matrices beside the routed experts that every token meets."""
        latent = 2 * self.hidden_size * moe.hidden_size if moe.hidden_size else 0
        return self.mlp_params(moe.shared_intermediate_size) + latent

    def _router_params(self, moe: MoeSpec) -> int:
        return self.hidden_size * moe.num_experts + moe.router_vector_params

    # --- bytes --------------------------------------------------------------------------------

    def quantization_of(self, part: Part) -> Quantization | None:
        """The format of a part's matrices; None: 16 bits."""
        if self.quantization and part in self.quantization.parts:
            return self.quantization
        return next((each for each in self.more_quantizations if part in each.parts), None)

    def bytes_per_param(self, part: Part) -> float:
        """Bytes of one parameter of the matrices of a part."""
        quantization = self.quantization_of(part)
        return quantization.bytes_per_param if quantization else self.dtype_bytes

    @property
    def kv_entry_bytes(self) -> int:
        """Bytes of one cached value."""
        return KV_CACHE_BYTES.get(self.kv_cache_dtype, self.dtype_bytes)

    @property
    def kv_entries(self) -> str:
        """How cached values are stored, in words, such as "in 8 bits (fp8)"."""
        if self.layers and all(
            mixer.token_bytes(1, 1) == mixer.token_bytes(1, 2)
            for mixer in layered.mixers_of(self.layers)
        ):
            return "in the model's own format"
        name = "" if self.kv_cache_dtype == "auto" else f" ({self.kv_cache_dtype})"
        return f"in {8 * self.kv_entry_bytes} bits{name}"

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes that one token takes in the cache of all layers of one whole model.

        Layers with a sliding window give theirs back when the window has left the token. Encoders
        have no cache.
        """
        if self.is_encoder:
            return 0
        if self.layers:
            return ceil(layered.token_bytes(self.layers, 1, self.kv_entry_bytes))
        if self.mla:
            return self.num_layers * self.mla.latent_size * self.kv_entry_bytes
        entries = 2 * self.num_layers * self.num_key_value_heads * self.head_dim
        return entries * self.kv_entry_bytes

    @property
    def state_bytes_per_sequence(self) -> int:
        """Bytes of the states of one sequence in one whole model, however long it is."""
        return layered.state_bytes(self.layers, 1, self.kv_entry_bytes) if self.layers else 0

    @property
    def kv_groups(self) -> KvGroups:
        """The groups in which layers share the pages of the KV cache."""
        if self.layers:
            return self.cache_layout(1).groups
        return kv_groups(self.num_layers, len(self.window_layers), self.sliding_window)

    def cache_layout(self, ranks: int) -> CacheLayout:
        """Return how layers of different kinds share pages, on a rank."""
        return cache_layout(self.layers, ranks, self.kv_entry_bytes)
