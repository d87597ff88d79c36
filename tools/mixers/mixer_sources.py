"""Tables of aisimulate to which each kind of kernels is fitted, and those that score it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from mist_sim.bounds import NUMBER
from mist_sim.errors import ScenarioError
from mist_sim.hardware import GpuSpec, load_gpu
from mist_sim.inputs import of_a_form, read_parquet
from tools.mixers.mixer_rows import MixerRows, joined
from tools.mixers.modules import read_modules
from tools.mixers.recurrences import StateKind, read_states

if TYPE_CHECKING:
    import pandas as pd

ARCHITECTURES: Mapping[str, Mapping[str, str]] = {
    "hopper": {"h100_sxm": "h100-sxm", "h200_sxm": "h200"},
    "blackwell": {"b200_sxm": "b200"},
    "blackwell-ultra": {"b300_sxm": "b300"},
}
"""Their folders of each architecture's systems, with our entries of the GPUs."""

Wanted: TypeAlias = "Callable[[pd.DataFrame], pd.DataFrame]"
_PHASES = {True: "context", False: "generation"}
_PLAIN = "bfloat16"
_GDN = "linear_attention/vllm/0.25.0"
_KDA = ("kda/vllm/0.1.dev19262", "kda/vllm/0.31.0")  # Kimi-K3's, GLM-5.3-Flash's
_DSA = "sparse_attention/vllm/0.24.0"
_V4 = ("sparse_attention/vllm/0.24.0", "sparse_attention/vllm/0.25.0")
_MSA = ("msa/vllm/0.24.0", "msa/vllm/0.25.0")


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables of an architecture. data: `aisimulate_core/systems/data`."""

    data: Path
    architecture: str

    def gdn(self, prefill: bool) -> MixerRows:
        """Return Gated DeltaNet in nine models of Qwen."""
        return self._states("gdn", [f"{_GDN}/gdn_perf"], prefill)

    def kda(self, prefill: bool, *, newest: bool = False) -> MixerRows:
        """Return KDA of all versions, or of the newest that the architecture has."""
        files = [f"{folder}/kda_perf" for folder in _KDA]
        if newest:
            files = [name for name in files if any(True for _ in self._paths(name))][-1:]
        return self._states("kda", files, prefill)

    def dsa(self, prefill: bool, *, has_indexer: bool, kv_cache: str = _PLAIN) -> MixerRows:
        """Return modules with DSA whose projections have 16 bits, of all models."""

        def wanted(table: pd.DataFrame) -> pd.DataFrame:
            skips = table["op_name"].str.contains("skip")
            formats = table["gemm_type"].eq(_PLAIN) & table["kv_cache_dtype"].eq(kv_cache)
            return table[formats & (~skips if has_indexer else skips)]

        return self._modules([f"{_DSA}/dsa_{_PHASES[prefill]}_module_perf"], wanted, prefill)

    def compressed(self, kind: str, prefill: bool) -> MixerRows:
        """Return modules of DeepSeek-V4 with blockwise FP8. kind: "csa" or "hca"."""
        files = [f"{folder}/dsv4_{kind}_{_PHASES[prefill]}_module_perf" for folder in _V4]
        return self._modules(
            files, lambda table: table[table["gemm_type"].eq("fp8_block")], prefill
        )

    def blocks(self, prefill: bool) -> MixerRows:
        """Return modules of MiniMax-M3 whose projections have 16 bits."""
        files = [f"{folder}/msa_{_PHASES[prefill]}_module_perf" for folder in _MSA]
        return self._modules(files, lambda table: table[table["gemm_type"].eq(_PLAIN)], prefill)

    def _states(self, kind: StateKind, files: list[str], prefill: bool) -> MixerRows:
        return self._read(files, lambda table, gpu: read_states(table, gpu, kind, prefill))

    def _modules(self, files: list[str], wanted: Wanted, prefill: bool) -> MixerRows:
        return self._read(files, lambda table, gpu: read_modules(wanted(table), gpu, prefill))

    def _paths(self, name: str) -> Iterator[tuple[str, Path]]:
        for folder, gpu in ARCHITECTURES[self.architecture].items():
            path = self.data / folder / f"{name}.parquet"
            if path.is_file():
                yield gpu, path

    def _read(
        self, files: list[str], read: Callable[[pd.DataFrame, GpuSpec], MixerRows]
    ) -> MixerRows:
        found = []
        for name in files:
            for gpu, path in self._paths(name):
                with of_a_form(path, "vLLM's kernels"):
                    table, _ = read_parquet(path)
                    table = table[table["latency"].between(*NUMBER)]
                    found.append(read(table, load_gpu(gpu)))
        if not found:
            names = ", ".join(f"{name}.parquet" for name in files) or "kda/vllm/*/kda_perf.parquet"
            raise ScenarioError(f"{self.data}: no such tables: {names}")
        return joined(found)
