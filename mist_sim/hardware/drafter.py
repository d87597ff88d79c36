"""Drafter: the model that drafts tokens for another one, on the same GPUs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mist_sim.errors import ScenarioError
from mist_sim.hardware.cluster import Cluster
from mist_sim.models.kv_groups import KvGroups, kv_groups
from mist_sim.models.layers import keeps_entries, num_with_experts
from mist_sim.models.model_loading import load_generating
from mist_sim.models.spec import ModelSpec
from mist_sim.models.speculative import SpeculativeConfig


@dataclass(frozen=True, slots=True)
class Drafter:
    """A model that drafts, and the ranks that compute it.

    In a pipeline these are the target's last ranks, and each holds the whole drafter: it continues
    from the tokens that are sampled there (vLLM's `gpu_model_runner.py`).

    is_target_layer: it is one more layer of the target, with the target's embedding and output
        head. A matrix of twice the hidden size first joins the target's last hidden state with
        the token's embedding; every rank has it whole, in 16 bits (`eh_proj` in vLLM's
        `deepseek_mtp.py`, `fc` in `llama_eagle.py`).
        Such a layer has full attention, whatever the target's have.
    copies_embedding: whether it has a copy of the target's embedding, which lies on the first
        rank of a pipeline (vLLM shares it only without one).
    """

    model: ModelSpec
    cluster: Cluster
    is_target_layer: bool = False
    copies_embedding: bool = False

    @property
    def weight_bytes_per_rank(self) -> int:
        """Bytes of its weights on a rank, beside the target's."""
        model, weights = self.model, self._weight_bytes(self.model)
        if not self.is_target_layer:
            return weights
        twice = replace(model, num_layers=2 * model.num_layers, layers=2 * model.layers)
        layer = self._weight_bytes(twice) - weights
        num_rows = 2 * model.hidden_size
        if self.copies_embedding:
            num_rows += -(-model.vocab_size // self.cluster.tensor_parallel_size)
        return layer + num_rows * model.hidden_size * model.dtype_bytes

    def _weight_bytes(self, model: ModelSpec) -> int:
        cluster = self.cluster
        return model.weight_bytes_per_rank(
            cluster.tensor_parallel_size, cluster.expert_parallel_size
        )

    @property
    def num_layers_in_groups(self) -> int:
        """Layers that share pages with the target's, since they keep equal bytes of a token.

        Where the target's layers differ, its pages are so much larger instead.
        """
        return 1 if self.is_target_layer and not self.model.layers else 0

    @property
    def kv_bytes_per_token_per_rank(self) -> int:
        """Bytes that its cache takes for a token; it shares the target's block table."""
        return self.model.kv_bytes_per_token_per_rank(self.cluster.tensor_parallel_size)


def shared_groups(target: ModelSpec, drafter: Drafter | None) -> KvGroups:
    """Return how the layers of a model, and a layer that drafts for it, share pages."""
    if target.layers:
        return target.kv_groups
    num_layers = target.num_layers + (drafter.num_layers_in_groups if drafter else 0)
    return kv_groups(num_layers, len(target.window_layers), target.sliding_window)


def drafter(config: SpeculativeConfig, target: ModelSpec, cluster: Cluster) -> Drafter | None:
    """Return the drafting model for a model on a cluster; None without one.

    Raises ScenarioError for incompatible models.
    """
    if config.method == "ngram":
        return None
    if config.method == "draft_model":
        return _draft_model(config, target, cluster)
    if config.method in ("eagle", "eagle3") and target.moe:
        raise ScenarioError(
            f"speculative_config must have another method than {config.method} for {target.name}, "
            "which has experts; mtp is a layer with experts"
        )
    if config.method == "mtp" and not target.num_nextn_predict_layers:
        raise ScenarioError(
            f"speculative_config must have another method than mtp for {target.name}, which has no "
            "layers for it (num_nextn_predict_layers); eagle, draft_model and ngram need none"
        )
    if target.layers:
        return _last_layers(config, target, cluster)
    moe = replace(target.moe, dense_layers=frozenset()) if target.moe else None
    layer = replace(
        target,
        name=f"{config.method} of {target.name}",
        num_layers=1,
        moe=moe,
        sliding_window=None,
        window_layers=frozenset(),
    )
    last_rank = replace(cluster, pipeline_parallel_size=1)
    in_pipeline = cluster.pipeline_parallel_size > 1
    return Drafter(layer, last_rank, is_target_layer=True, copies_embedding=in_pipeline)


def _last_layers(config: SpeculativeConfig, target: ModelSpec, cluster: Cluster) -> Drafter:
    """Return the drafting layer of a model with layers of different kinds.

    Its last one with attention, and the next one where that has no MLP and no experts of its own
    (`mtp_layers_block_type` of Nemotron-3: attention, then experts).
    """
    at = max(n for n, layer in enumerate(target.layers) if keeps_entries(layer.mixer))
    layers = target.layers[at : at + 1]
    if layers[0].num_sums == 1:
        layers += target.layers[at + 1 : at + 2]
    layer = replace(
        target,
        name=f"{config.method} of {target.name}",
        num_layers=len(layers),
        layers=layers,
        moe=target.moe if num_with_experts(layers) else None,
    )
    in_pipeline = cluster.pipeline_parallel_size > 1
    last_rank = replace(cluster, pipeline_parallel_size=1)
    return Drafter(layer, last_rank, is_target_layer=True, copies_embedding=in_pipeline)


def _draft_model(config: SpeculativeConfig, target: ModelSpec, cluster: Cluster) -> Drafter:
    model = load_generating(config.model or "")
    if target.sliding_window or target.layers:
        raise ScenarioError(
            f"speculative_config must have another method than draft_model for {target.name}, "
            "whose layers share pages of one size because they differ; mtp and eagle "
            "add a layer of that size, ngram none"
        )
    if model.vocab_size != target.vocab_size:
        raise ScenarioError(
            f"speculative_config must name a model with the vocabulary of {target.name} "
            f"({target.vocab_size:,} tokens), got {model.name} ({model.vocab_size:,})"
        )
    if model.sliding_window or model.layers:
        raise ScenarioError(
            f"speculative_config must name a model whose layers are alike, got {model.name}"
        )
    num_ranks = cluster.tensor_parallel_size
    ranks = config.draft_tensor_parallel_size or num_ranks
    if ranks not in (1, num_ranks):
        raise ScenarioError(
            "speculative_config must have draft_tensor_parallel_size 1 or tensor_parallel_size "
            f"({num_ranks}), got {ranks}"
        )
    draft_cluster = Cluster(cluster.gpu, ranks)
    draft_cluster.check_split(model)
    return Drafter(model, draft_cluster)
