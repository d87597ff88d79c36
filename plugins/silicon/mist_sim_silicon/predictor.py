"""Step times from kernels that NVIDIA measured on real systems (aiconfigurator-core)."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, TypeVar

from mist_sim.core.batch import StepBatch
from mist_sim.errors import ScenarioError, listed
from mist_sim.hardware.cluster import Cluster
from mist_sim.hardware.predictors.base import PREDICTORS, PredictorTraits
from mist_sim.hardware.predictors.external import installed_version
from mist_sim.hardware.predictors.measured.sampled import (
    SampledSteps,
    SamplePoints,
    check_whole_model,
    powers,
)
from mist_sim.hardware.predictors.measured.timing_store import TimingStore
from mist_sim.models.quantization import LAYER_PARTS
from mist_sim.models.spec import ModelSpec
from mist_sim_silicon.experts import (
    NO_TABLE,
    OwnExperts,
    Row,
    split_rows,
)
from mist_sim_silicon.names import (
    Package,
    dtypes,
    files_of,
    split,
    system,
)

_SDK: Mapping[Package, str] = {
    "aiconfigurator-core": "aiconfigurator_core.sdk",
    "aisimulate": "aisimulate_core.sdk.engine",
}

_INSTALL: Mapping[Package, str] = {
    "aiconfigurator-core": "pip install aiconfigurator-core, which is for Linux on x86-64 alone",
    "aisimulate": "pip install --pre aisimulate",
}

# Products were measured at these numbers of tokens and at one more than each. One more may cost
# half as much again (FP8: a whole further tile), and less again up to the next of these, so a
# grid with both would rise and fall. Engines mostly run aligned steps: full chunk budgets, and
# decodes padded to CUDA graph sizes.
_ALIGNED = (1, 2, 4, 8, 16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, *range(256, 4353, 256))

# What a row of the packages says of its origin where it was computed from peaks, not measured.
# Norms and activations ("empirical"), which no table has, are left out.
_NOT_MEASURED = {"estimated", "sol"}

# A long prompt and a filled step of decodes, of which results say how much was not measured.
_TOLD = {
    "a prompt of 2,048 tokens": StepBatch(((2048, 0),)),
    "32 decodes after 4,096": StepBatch((), 32, 32 * 4096),
}

# Seconds a step and for each sequence. Source: fitted on TPOT of half of the closed loops of
# Qwen3-32B, vLLM 0.12 on H100 (`python -m benchmarks.closed_loop --fit`); assumed for others.
_BEYOND_KERNELS = (1.6e-3, 45e-6)


@PREDICTORS.register("silicon")
@dataclass
class SiliconPredictor(SampledSteps):
    """Sums of kernels that were measured on the GPU at the sizes of the model.

    Products, attention, experts and collectives were timed one by one on real systems; sizes
    between are interpolated, norms and activations estimated.

    model, cluster: what is timed; raises ScenarioError if there are no measurements for it.
    engine: the serving engine whose kernels were measured.
    package: what has the tables; aisimulate, where it is installed, has newer ones.
    """

    model: ModelSpec
    cluster: Cluster
    engine: Literal["vllm", "sglang", "trtllm"] = "vllm"
    package: Package = "aiconfigurator-core"

    def __post_init__(self) -> None:
        longest = max(self.model.max_position_embeddings, 1024)
        points = SamplePoints(
            new_tokens=[*_ALIGNED, *powers(8192, max(longest, 16384))],
            prompt_contexts=[0, *powers(512, longest)],
            decodes=[*(tokens for tokens in _ALIGNED if tokens <= 1024), 2048],
            decode_contexts=[0, *powers(128, longest)],
        )
        source, store = (
            Silicon(self.model, self.cluster, self.engine, self.package),
            TimingStore.default(),
        )
        own = own_experts(source, store)
        super().__init__(source, points, store, own.seconds if own else None)
        self._has_own_experts = own is not None
        self._assumed = not_measured(source, store, own)
        self._source = source
        self._towers: dict[tuple[int, int, int, int], float] = {}

    @property
    def traits(self) -> PredictorTraits:
        """Traits of its times."""
        return replace(
            super().traits,
            estimate="measured",
            compared_as="" if self._has_own_experts else "measured kernels",
            kernels_only=True,
            beyond_kernels=_BEYOND_KERNELS,
            assumed=self._assumed,
            tower_attention=self._tower if self.package == "aisimulate" else None,
        )

    def _tower(self, heads: int, head_dim: int, images: int, patches: int) -> float:
        """Return the seconds of a vision tower's attention in one layer, as measured."""
        sizes = heads, head_dim, images, patches
        if sizes not in self._towers:
            self._towers[sizes] = self._source.tower_attention(*sizes)
        return self._towers[sizes]


def check_blocks(model: ModelSpec, cluster: Cluster, package: Package) -> None:
    """Raise ScenarioError for products whose times in a package are those of the host.

    FP8 with scales of blocks takes 60 to 300 us there, whatever the size; aisimulate has times of
    kernels for the cards with NVLink.
    """
    matrices = (model.quantization_of(part) for part in LAYER_PARTS - {"routed_experts"})
    if not any(stored and stored.kernel == "fp8_block" for stored in matrices):
        return
    linked = cluster.gpu.interconnect.kind == "nvlink"
    if package == "aisimulate" and linked:
        return
    other = "package: aisimulate, or " if linked else ""
    raise ScenarioError(
        f"silicon has no times for {model.name} on {cluster.gpu.name}: products in FP8 with scales "
        f"of blocks were timed with the host in {package}; use {other}predictor: {{type: roofline}}"
    )


def not_measured(
    source: Silicon, store: TimingStore, own: OwnExperts | None = None
) -> tuple[str, ...]:
    """Return what a model's steps have that was not measured, with its share; empty: nothing.

    The package computes such operators from the peaks of the GPU: states of Mamba-2, FP8 products
    with one scale for a matrix. Shares are kept; the names are asked for anew.
    own: the experts that the roofline times.
    """
    steps, found = list(_TOLD.values()), list[str]()
    experts = own.seconds(steps) if own else [0.0] * len(steps)
    others = store.timed(source.identity, _TOLD, source.seconds)
    all_of = [sum(each) for each in zip(others, experts, strict=True)]
    computed = store.timed({**source.identity, "of": "not measured"}, _TOLD, source.not_measured)
    if any(computed):
        (_, first), *_ = sorted(zip(computed, steps, strict=True), key=lambda each: -each[0])
        names = dict.fromkeys(name.partition("_")[2] for name in source.names_not_measured(first))
        found.append(f"measured kernels: {', '.join(names)} ({_shares(computed, all_of)})")
    if own:
        shares = _shares(experts, all_of)
        found.append(f"experts: no table has their sizes, so the roofline times them ({shares})")
    return tuple(found)


def own_experts(source: Silicon, store: TimingStore) -> OwnExperts | None:
    """Return the roofline's experts where no table has a model's, and leave them out of a source.

    None where a table has them. The package's times are kept; the roofline's times are not, since
    the catalog's figures may change.
    """
    if not source.may_lack_experts:
        return None
    identity = {**source.identity, "of": "experts without a table"}
    if not any(store.timed(identity, _TOLD, source.experts_without_table)):
        return None
    source.leave_out_experts()
    return OwnExperts(source.model, source.cluster)


def _shares(parts: Sequence[float], all_of: Sequence[float]) -> str:
    return listed(
        [
            f"{seconds / whole:.0%} of {step}"
            for step, seconds, whole in zip(_TOLD, parts, all_of, strict=True)
        ]
    )


_A = TypeVar("_A")
_T = TypeVar("_T")


class Silicon:
    """The package's estimate of one step, as a source.

    may_lack_experts: whether it may have no table of the model's experts, but times all else.
    """

    def __init__(
        self,
        model: ModelSpec,
        cluster: Cluster,
        engine: str,
        package: Package = "aiconfigurator-core",
    ) -> None:
        version = installed_version(package, "silicon", _INSTALL[package])
        check_whole_model(cluster, "silicon")
        if cluster.expert_load_imbalance != 1:
            raise ScenarioError(
                "expert_load_imbalance must be 1 with silicon, whose experts were measured with "
                f"an imbalance of their own, got {cluster.expert_load_imbalance}"
            )
        check_blocks(model, cluster, package)
        self._files = files_of(model, package)
        self._setting: dict[str, Any] = {
            "system": system(cluster),
            "backend": engine,
            **split(model, cluster),
            **dtypes(model, package),
        }
        named = {"source": package, "version": version, "model": self._files}
        self.identity = {**named, **self._setting}
        self.model, self.cluster = model, cluster
        self.may_lack_experts = package == "aisimulate" and model.moe is not None
        self._has_experts = True
        self._words = f"{model.name} on {cluster.gpu.name} with {engine}"
        self._package = package
        self._handle: Any = None

    def seconds(self, batches: Sequence[StepBatch]) -> list[float]:
        """Return the seconds of each batch. Raises ScenarioError where there are no data."""
        return [self._asked(self._ask, batch) / 1e3 for batch in batches]

    def leave_out_experts(self) -> None:
        """Leave the experts out from now on; the package estimates them, so it needs no table."""
        self._has_experts, self._handle = False, None

    def experts_without_table(self, batches: Sequence[StepBatch]) -> list[float]:
        """Return the package's estimate of the experts of each batch; 0 where a table has them.

        If one of them has none, they are left out from now on.
        Raises ScenarioError if data are missing for anything else.
        """
        try:
            for batch in batches if self._has_experts else ():
                self._rows(batch)
        except ScenarioError as error:
            if NO_TABLE not in str(error):
                raise
            self.leave_out_experts()
        left_out = [self._asked(self._split_rows, batch)[1] for batch in batches]
        return [sum([seconds for _, seconds, _ in rows]) for rows in left_out]

    def not_measured(self, batches: Sequence[StepBatch]) -> list[float]:
        """Return the seconds of each batch that the package computes itself.

        As `seconds` otherwise.
        """
        return [
            sum([seconds for _, seconds, origin in self._rows(batch) if origin in _NOT_MEASURED])
            for batch in batches
        ]

    def names_not_measured(self, batch: StepBatch) -> list[str]:
        """Return the operators of a batch that the package computes itself."""
        return [name for name, _, origin in self._rows(batch) if origin in _NOT_MEASURED]

    def tower_attention(self, heads: int, head_dim: int, images: int, patches: int) -> float:
        """Return the seconds of the attention of a vision tower in one layer.

        heads: of a rank. head_dim: values of a head. patches: of each image.
        Raises ScenarioError where there are no measurements.
        """
        return self._asked(self._of_tower, (heads, head_dim, images, patches))

    def _of_tower(self, sizes: tuple[int, int, int, int]) -> float:
        heads, head_dim, images, patches = sizes
        kernels = import_module("aisimulate_core.sdk.operations.attention")
        engine = import_module(_SDK[self._package])
        kernel = kernels.EncoderAttention("tower_attention", 1, heads, head_dim)
        ask, written = self._handle.evaluate_ops_json, engine.build_ops_json([kernel])
        ((_, ms, _, origin),) = ask(written, is_context=True, batch_size=images, s=patches)
        if origin != "silicon":
            raise LookupError(f"attention of {heads} heads of {head_dim} values is estimated")
        return float(ms) / 1e3

    def by_operator(self, batch: StepBatch) -> dict[str, float]:
        """Return the seconds of a chunk alone or of decodes alone by the package's operators.

        Raises ScenarioError where there are no data.
        """
        return {name: seconds for name, seconds, _ in self._rows(batch)}

    def _rows(self, batch: StepBatch) -> list[Row]:
        """Return the operators of a batch: name, seconds, and where they come from."""
        return self._asked(self._split_rows, batch)[0]

    def _split_rows(self, batch: StepBatch) -> tuple[list[Row], list[Row]]:
        """Return the operators of a batch, and those left out."""
        rows = [(name, ms / 1e3, origin) for name, ms, _, origin in self._operators(batch)]
        return (rows, []) if self._has_experts else split_rows(rows)

    def _asked(self, ask: Callable[[_A], _T], about: _A) -> _T:
        """Ask the package. Raises ScenarioError where there are no data."""
        try:
            self._handle = self._handle or self._compile()
            return ask(about)
        except (AssertionError, LookupError, OSError, RuntimeError, ValueError) as error:
            raise self._unknown(error) from error

    def _unknown(self, error: Exception) -> ScenarioError:
        reason = re.split(r" (?:at|\(first:) /", str(error), maxsplit=1)[0]
        return ScenarioError(f"silicon has no times for {self._words}: {reason}")

    def _operators(self, batch: StepBatch) -> Any:
        for new, context in batch.chunks:
            sizes = {"isl": context + new, "prefix": context}
            ask = self._handle.run_static_per_op
            return ask(batch_size=1, osl=1, mode="static_ctx", **sizes)[0]
        each = max(batch.context_sum // batch.num_decodes, 1)
        return self._handle.decode_step_per_op(batch.num_decodes, each, 2)

    def _ask(self, batch: StepBatch) -> float:
        """Return the milliseconds of a chunk alone or of decodes alone."""
        if not self._has_experts:
            return 1e3 * sum([seconds for _, seconds, _ in self._split_rows(batch)[0]])
        for new, context in batch.chunks:
            return float(self._handle.predict_prefill_latency(1, context + new, context))
        each = max(batch.context_sum // batch.num_decodes, 1)
        return float(self._handle.decode_step_latency(batch.num_decodes, each, 2))

    def _compile(self) -> Any:
        name = _SDK[self._package]
        logging.getLogger(name.partition(".")[0]).setLevel(logging.ERROR)
        sdk = import_module(name)
        with TemporaryDirectory() as folder:
            for file, content in self._files.items():
                Path(folder, file).write_text(json.dumps(content), "utf-8")
            # what has no table is estimated then, and stands so in the rows
            mode = {} if self._has_experts else {"database_mode": "HYBRID"}
            return sdk.EngineHandle.compile(folder, **self._setting, **mode)
