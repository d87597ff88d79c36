"""ModelSpec: the sizes of a transformer, and their split over the ranks that share it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from mist_sim.errors import ScenarioError
from mist_sim.models import layers as layered
from mist_sim.models.huggingface.config import read_config
from mist_sim.models.huggingface.config_text import language_config
from mist_sim.models.layers import num_with_experts
from mist_sim.models.quantization import (
    LINEAR_PARTS,
    QUANTIZATIONS,
    UNQUANTIZED,
    Part,
    Quantization,
    check_name,
)
from mist_sim.models.sizes import ModelSizes

_WORDS = 64  # vLLM: DEFAULT_VOCAB_PADDING_SIZE (`vocab_parallel_embedding.py`)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec(ModelSizes):
    """One model: its sizes (defined in `ModelSizes`), read and split."""

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
        if self.layers:
            bytes_ = layered.token_bytes(self.layers, tensor_parallel_size, self.kv_entry_bytes)
            return math.ceil(bytes_)
        if self.mla or self.is_encoder:
            return self.kv_bytes_per_token
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
        ffn, more = self._ffn_params_held(tensor_parallel_size, expert_parallel_size)
        return self._bytes_of(matrices | ffn, plain + more)

    def attention_weight_bytes_per_rank(self, tensor_parallel_size: int) -> int:
        """Bytes of all weights on one rank except the FFN's; the vocabulary's matrices count."""
        return self._bytes_of(*self._attention_params_held(tensor_parallel_size))

    def ffn_weight_bytes_per_rank(
        self, tensor_parallel_size: int, expert_parallel_size: int = 1
    ) -> int:
        """Bytes of the weights of MLPs, experts and routers on one rank; parts are rounded down."""
        return self._bytes_of(*self._ffn_params_held(tensor_parallel_size, expert_parallel_size))

    def _bytes_of(self, matrices: dict[Part, int], plain: int) -> int:
        """Return the bytes of parameters: of matrices, by part, and others, which have 16 bits."""
        size = sum(count * self.bytes_per_param(part) for part, count in matrices.items())
        return math.ceil(size + plain * self.dtype_bytes)

    def _ffn_params_held(self, ranks: int, expert_ranks: int) -> tuple[dict[Part, int], int]:
        """Return a rank's parameters of MLPs and experts: their matrices by part, and others."""
        matrices: dict[Part, int] = {"mlp": self._mlp_params_in_all // ranks}
        plain = 0
        if self.moe:
            moe, layers = self.moe, self.num_moe_layers
            shared = self.mlp_params(moe.shared_intermediate_size) // ranks
            latent = self.shared_params(moe) - self.mlp_params(moe.shared_intermediate_size)
            matrices["shared_experts"] = layers * (shared + latent)
            held = -(-moe.num_experts // expert_ranks)
            slices = ranks if expert_ranks == 1 else 1
            routed = held * self.expert_params(moe)
            matrices["routed_experts"] = layers * routed // slices
            plain += layers * self._router_params(moe)
            plain += layers * held * moe.expert_vector_params // slices
        return matrices, plain

    def _attention_params_held(self, ranks: int) -> tuple[dict[Part, int], int]:
        """Return a rank's other parameters: matrices by part, and the rest."""
        matrices, plain = self._mixer_params_held(ranks)
        plain += self.vector_params_outside_layers
        vocabulary = -(-self.vocab_size // ranks) * self.hidden_size
        plain += vocabulary if self.has_own_embedding else 0
        if self.has_head:
            matrices["lm_head"] = vocabulary
        return matrices, plain

    def _mixer_params_held(self, ranks: int) -> tuple[dict[Part, int], int]:
        """Return a rank's parameters of mixers (attention or states) and of norms."""
        heads, copied = self.num_attention_heads // ranks, self.quantization_of("attention")
        if self.layers:
            matrices, plain = layered.mixer_params(self.layers, self.hidden_size, ranks)
            plain += layered.vector_params(self.layers)
            if copied:
                plain += layered.absorbed_params(self.layers, ranks)
            return matrices, plain
        matrices = {
            "attention": self.num_layers * self._attention_params_per_rank(ranks),
            "attention_output": self.num_layers * self.attention_output_params(heads),
        }
        plain = self.num_layers * self.vector_params_per_layer
        if self.mla and copied:
            plain += self.num_layers * self.mla.kv_up_params(heads)
        return matrices, plain

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
