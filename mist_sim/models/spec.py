"""ModelSpec: the sizes of a transformer, its totals, and its split over the ranks that share it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated

from mist_sim.bounds import HEADS, LAYERS
from mist_sim.checks import NotNegative, Positive, Range, check_fields, check_name
from mist_sim.errors import ScenarioError
from mist_sim.models import layers as layered
from mist_sim.models.cache_layout import CacheLayout, cache_layout
from mist_sim.models.huggingface.config import read_config
from mist_sim.models.huggingface.config_text import language_config
from mist_sim.models.kv_groups import KvGroups, kv_groups
from mist_sim.models.layers import Layers, num_with_experts
from mist_sim.models.mixers import MlaSpec
from mist_sim.models.moe import MoeSpec
from mist_sim.models.quantization import (
    KV_CACHE_BYTES,
    LINEAR_PARTS,
    QUANTIZATIONS,
    UNQUANTIZED,
    Part,
    Quantization,
)
from mist_sim.models.vision import VisionTower

_WORDS = 64  # vLLM: DEFAULT_VOCAB_PADDING_SIZE (`vocab_parallel_embedding.py`)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
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
    num_layers: Annotated[int, Range(f"[1, {LAYERS}]")]
    hidden_size: Positive[int]
    intermediate_size: Positive[int]
    num_attention_heads: Annotated[int, Range(f"[1, {HEADS}]")]
    num_key_value_heads: Positive[int]
    head_dim: Positive[int]
    vocab_size: Positive[int]
    max_position_embeddings: Positive[int]
    tie_word_embeddings: bool = False
    gated_mlp: bool = True
    dtype_bytes: Positive[int] = 2
    vector_params_per_layer: int = 0
    vector_params_outside_layers: int = 0
    moe: MoeSpec | None = None
    mla: MlaSpec | None = None
    sliding_window: Positive[int] | None = None
    window_layers: frozenset[int] = frozenset()
    num_nextn_predict_layers: NotNegative[int] = 0
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
        check_fields(self)
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
        if not self.window_layers <= set(range(self.num_layers)):
            raise ValueError(
                f"window_layers must be among the {self.num_layers} layers, "
                f"got {sorted(self.window_layers)}"
            )
        if self.mla and self.sliding_window:
            raise ValueError("sliding_window is not simulated with multi-head latent attention")

    @classmethod
    def from_config(
        cls, config: Mapping[str, object], *, name: str, source: str, is_nearest: bool = False
    ) -> ModelSpec:
        """Read a parsed Hugging Face `config.json`.

        is_nearest: read unknown parts as the nearest known ones, and list them in `approximated`.

        Raises ScenarioError, starting with `source`, when a key is missing or wrong, or when
        the model needs a feature that is not simulated (see `mist_sim.models.huggingface.config`).
        """
        try:
            read = read_config(config, source, is_nearest=is_nearest)
            return cls(name=name, source=source, architecture=_architecture(config), **read)
        except ScenarioError:
            raise
        except ValueError as error:
            raise ScenarioError(f"{source}: {error}") from None

    def with_dtypes(
        self, *, weights: str | Quantization | None = None, kv_cache: str | None = None
    ) -> ModelSpec:
        """Return the same model with its matrices or its KV cache stored in another way.

        weights: "bf16" (as stored), "fp8", "fp8_block" (blocks of 128 x 128), "int8", "nvfp4"
            (multiplied in that type), "int4" (groups of 128, multiplied in 16 bits), or a
            Quantization; None keeps them.
        kv_cache: a value of vLLM's `--kv-cache-dtype`; None keeps it.

        Raises ValueError with the known names.
        """
        quantization = self.quantization
        if isinstance(weights, Quantization):
            quantization = weights
        elif weights is not None:
            check_name("weights", weights, (*UNQUANTIZED, *QUANTIZATIONS))
            quantization = QUANTIZATIONS.get(weights)
        kv_cache_dtype = self.kv_cache_dtype if kv_cache is None else kv_cache
        more = self.more_quantizations if weights is None else ()
        if self.layers and weights is not None and quantization is not None:
            quantization = replace(quantization, parts=quantization.parts | LINEAR_PARTS)
        return replace(
            self,
            quantization=quantization,
            more_quantizations=more,
            kv_cache_dtype=kv_cache_dtype,
        )

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
        outputs = self.attention_output_params(self.num_attention_heads)
        return self._attention_params_per_rank(1) + outputs

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
        matrices, plain = self._mixer_params_held(1)
        ffn, more = self._ffn_params_held(1, experts_counted)
        return sum(matrices.values()) + plain + sum(ffn.values()) + more

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
        return self.kv_bytes_per_token_per_rank(1)

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

    # --- on one rank --------------------------------------------------------------------------

    def kv_heads_per_rank(self, tensor_parallel_size: int) -> int:
        """KV heads on one rank, at least 1: heads replicate when there are more ranks.

        Plain arithmetic: `check_tensor_parallel` says whether the split is possible.
        """
        return max(1, self.num_key_value_heads // tensor_parallel_size)

    def kv_bytes_per_token_per_rank(self, tensor_parallel_size: int) -> int:
        """Bytes that one token keeps in the cache of all layers on one rank.

        A latent belongs to all heads, so every rank keeps all of it (vLLM caches MLA as one
        KV head, which `kv_heads_per_rank` replicates).
        """
        self.check_tensor_parallel(tensor_parallel_size)
        if self.is_encoder:
            return 0
        if self.layers:
            bytes_ = layered.token_bytes(self.layers, tensor_parallel_size, self.kv_entry_bytes)
            return math.ceil(bytes_)
        if self.mla:
            return self.num_layers * self.mla.latent_size * self.kv_entry_bytes
        heads = self.kv_heads_per_rank(tensor_parallel_size)
        return 2 * self.num_layers * heads * self.head_dim * self.kv_entry_bytes

    def weight_bytes_per_rank(
        self, tensor_parallel_size: int, expert_parallel_size: int = 1
    ) -> int:
        """Bytes of weights on one rank.

        expert_parallel_size: ranks over which whole experts are spread; 1 slices every expert
            over the tensor-parallel ones.

        Matrices are split over the ranks, the vocabulary rounded up to whole rows and KV heads
        replicated as in `kv_heads_per_rank`; norms, biases, routers and the down-projections
        of latent attention lie whole on every rank. Of a quantized `kv_b_proj` vLLM keeps a
        16-bit copy beside it for decodes (`W_UK_T`, `W_UV` in its MLA backend).
        """
        self.check_tensor_parallel(tensor_parallel_size, expert_parallel_size)
        matrices, plain = self._attention_params_held(tensor_parallel_size)
        ffn, more = self._ffn_params_of(tensor_parallel_size, expert_parallel_size)
        return self._bytes_of(matrices | ffn, plain + more)

    def attention_weight_bytes_per_rank(self, tensor_parallel_size: int) -> int:
        """Bytes of all weights on one rank except the FFN's; the vocabulary's matrices count."""
        return self._bytes_of(*self._attention_params_held(tensor_parallel_size))

    def ffn_weight_bytes_per_rank(
        self, tensor_parallel_size: int, expert_parallel_size: int = 1
    ) -> int:
        """Bytes of the weights of MLPs, experts and routers on one rank; parts are rounded down."""
        return self._bytes_of(*self._ffn_params_of(tensor_parallel_size, expert_parallel_size))

    def _ffn_params_of(self, ranks: int, expert_ranks: int) -> tuple[dict[Part, int], int]:
        held = -(-self.moe.num_experts // expert_ranks) if self.moe else 0
        return self._ffn_params_held(ranks, held, ranks if expert_ranks == 1 else 1)

    def _bytes_of(self, matrices: dict[Part, int], plain: int) -> int:
        """Return the bytes of parameters: of matrices, by part, and others, which have 16 bits."""
        size = sum(count * self.bytes_per_param(part) for part, count in matrices.items())
        return math.ceil(size + plain * self.dtype_bytes)

    def _ffn_params_held(
        self, ranks: int, num_experts: int, slices: int = 1
    ) -> tuple[dict[Part, int], int]:
        """Return a rank's parameters of MLPs and experts: their matrices by part, and others.

        num_experts: of a layer that the rank holds, each in so many `slices`.
        """
        matrices: dict[Part, int] = {"mlp": self._mlp_params_in_all // ranks}
        if self.moe is None:
            return matrices, 0
        moe, layers = self.moe, self.num_moe_layers
        shared = self.mlp_params(moe.shared_intermediate_size) // ranks
        latent = self.shared_params(moe) - self.mlp_params(moe.shared_intermediate_size)
        matrices["shared_experts"] = layers * (shared + latent)
        matrices["routed_experts"] = layers * num_experts * self.expert_params(moe) // slices
        vectors = layers * num_experts * moe.expert_vector_params // slices
        return matrices, layers * self._router_params(moe) + vectors

    def _attention_params_held(self, ranks: int) -> tuple[dict[Part, int], int]:
        """Return a rank's other parameters: matrices by part, and the rest."""
        matrices, plain = self._mixer_params_held(ranks)
        plain += self._absorbed_params(ranks) + self.vector_params_outside_layers
        vocabulary = -(-self.vocab_size // ranks) * self.hidden_size
        plain += vocabulary if self.has_own_embedding else 0
        if self.has_head:
            matrices["lm_head"] = vocabulary
        return matrices, plain

    def _mixer_params_held(self, ranks: int) -> tuple[dict[Part, int], int]:
        """Return a rank's parameters of mixers (attention or states) and of norms."""
        if self.layers:
            matrices, plain = layered.mixer_params(self.layers, self.hidden_size, ranks)
            return matrices, plain + layered.vector_params(self.layers)
        heads = self.num_attention_heads // ranks
        matrices = {
            "attention": self.num_layers * self._attention_params_per_rank(ranks),
            "attention_output": self.num_layers * self.attention_output_params(heads),
        }
        return matrices, self.num_layers * self.vector_params_per_layer

    def _absorbed_params(self, ranks: int) -> int:
        if self.quantization_of("attention") is None:
            return 0
        if self.layers:
            return layered.absorbed_params(self.layers, ranks)
        heads = self.num_attention_heads // ranks
        return self.num_layers * self.mla.kv_up_params(heads) if self.mla else 0

    def _attention_params_per_rank(self, ranks: int) -> int:
        heads = self.num_attention_heads // ranks
        if self.mla:
            down = self.mla.down_params(self.hidden_size)
            return down + self.mla.head_params(self.hidden_size, heads)
        return (heads + 2 * self.kv_heads_per_rank(ranks)) * self.head_dim * self.hidden_size

    # --- splitting ----------------------------------------------------------------------------

    def check_tensor_parallel(
        self, tensor_parallel_size: int, expert_parallel_size: int = 1
    ) -> None:
        """Raise ScenarioError if the model cannot be split over that many ranks.

        vLLM's rule: the number of ranks divides the attention heads, the inner sizes of MLP and
        experts (unless whole experts are spread) and the vocabulary, rounded up to whole 64 words
        (`VocabParallelEmbedding`), and divides the KV heads or is a multiple of them.
        """
        whole = expert_parallel_size > 1
        problem = self._tensor_parallel_problem(tensor_parallel_size, whole)
        if problem:
            most = max([self.num_attention_heads, *layered.heads_of(self.layers)])
            heads = range(1, most + 1)
            works = [str(n) for n in heads if not self._tensor_parallel_problem(n, whole)]
            raise ScenarioError(
                f"tensor_parallel_size must {problem} of {self.name}, got {tensor_parallel_size}; "
                f"these work: {', '.join(works)}"
            )

    def _tensor_parallel_problem(self, ranks: int, whole_experts: bool) -> str:
        if problem := self._mixer_problem(ranks):
            return problem
        if self.moe and self.moe.intermediate_size % ranks and not whole_experts:
            return f"divide the expert size {self.moe.intermediate_size}"
        if self.moe and self.moe.shared_intermediate_size % ranks:
            return f"divide the shared experts' size {self.moe.shared_intermediate_size}"
        if -(-self.vocab_size // _WORDS) * _WORDS % ranks:
            return f"divide the vocabulary of {self.vocab_size:,} words"
        return ""

    def _mixer_problem(self, ranks: int) -> str:
        if ranks < 1 or (not self.layers and self.num_attention_heads % ranks):
            return f"divide the {self.num_attention_heads} attention heads"
        if self.layers:
            return layered.problem_of(self.layers, ranks)
        kv_heads = self.num_key_value_heads
        if not self.mla and kv_heads % ranks and ranks % kv_heads:
            return f"divide, or be a multiple of, the {kv_heads} KV heads"
        if self.num_dense_layers and self.intermediate_size % ranks:
            return f"divide the MLP size {self.intermediate_size}"
        return ""


def _architecture(config: Mapping[str, object]) -> str:
    """Return the `model_type` of a config, of its text model where that has one; or nothing."""
    inner = language_config(config).get("model_type")
    return str(inner or config.get("model_type") or "")


def layers_per_rank(num_layers: int, pipeline_parallel_size: int) -> list[int]:
    """Return the number of layers of each rank: equal, except for a remainder.

    One layer more goes to each of the ranks before the last, from there backwards, since the
    first and the last have the vocabulary as well.
    Source: vLLM's `get_pp_indices` (`vllm/distributed/utils.py`).

    Raises ScenarioError if a rank would have no layer.
    """
    if not 1 <= pipeline_parallel_size <= num_layers:
        raise ScenarioError(
            f"pipeline_parallel_size must be from 1 to the {num_layers} layers, "
            f"got {pipeline_parallel_size}"
        )
    share, remainder = divmod(num_layers, pipeline_parallel_size)
    layers = [share] * pipeline_parallel_size
    for rank in range(remainder):
        layers[-2 - rank] += 1
    return layers


def rank_part(model: ModelSpec, rank: int, pipeline_parallel_size: int) -> ModelSpec:
    """Return one rank's part of a model as a model.

    The first rank embeds tokens; the last has the final norm and the output head, of a tied
    vocabulary matrix a copy. Raises ScenarioError when a rank would be without a layer.
    """
    layers = layers_per_rank(model.num_layers, pipeline_parallel_size)
    first = sum(layers[:rank])
    here = range(first, first + layers[rank])
    is_first, is_last = rank == 0, rank == pipeline_parallel_size - 1
    window_layers = frozenset(layer - first for layer in here if layer in model.window_layers)
    moe = model.moe
    if moe:
        dense = frozenset(layer - first for layer in here if layer in moe.dense_layers)
        moe = replace(moe, dense_layers=dense) if len(dense) < len(here) else None
    own_layers = model.layers[first : here.stop]
    if own_layers and not num_with_experts(own_layers):
        moe = None
    return replace(
        model,
        num_layers=len(here),
        layers=own_layers,
        moe=moe,
        window_layers=window_layers,
        sliding_window=model.sliding_window if window_layers else None,
        vector_params_outside_layers=model.vector_params_outside_layers if is_last else 0,
        has_embedding=model.has_embedding and is_first,
        has_head=model.has_head and is_last,
    )
