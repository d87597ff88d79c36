"""CUDA graphs: which steps an engine replays, and the cost of launching the others."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_MODULES = ("rmsnorm", "attention", "rmsnorm", "mlp")

# Seconds a layer. Llama-2-70B (80 layers) on a vLLM of 2023 without graphs took 28 to 30 ms for
# a token on 4 and on 8 H100s alike (splitwise_perf_model.csv), so the host was the limit.
EAGER_LAYER = 0.35e-3

MOST_CAPTURED = 512  # tokens, however many sequences an engine may have; `_set_cudagraph_sizes`


@dataclass(frozen=True, slots=True)
class CudaGraphs:
    """The token counts for which a graph is captured.

    sizes: sorted; a step with more tokens than the last is launched kernel by kernel.
    """

    sizes: tuple[int, ...]

    def padded(self, num_tokens: int) -> int | None:
        """Return the size of the graph that a step replays; None if there is none."""
        place = bisect_left(self.sizes, num_tokens)
        return self.sizes[place] if place < len(self.sizes) else None


def captured(max_capture_size: int, capture_sizes: Sequence[int] | None) -> CudaGraphs:
    """Return the graphs that vLLM captures with these options.

    Without a list: 1, 2, 4, every eighth size below 256 and every sixteenth from there.
    Source: vLLM, `_set_cudagraph_sizes` in `vllm/config/vllm.py`.
    """
    if capture_sizes is not None:
        return CudaGraphs(tuple(sorted(set(capture_sizes))))
    sizes = (1, 2, 4, *range(8, 256, 8), *range(256, max_capture_size + 1, 16))
    return CudaGraphs(tuple(size for size in sizes if size <= max_capture_size))


def launch_time(dispatch: Mapping[str, float], num_layers: int, eager: bool) -> float:
    """Return the host's seconds to launch a step that is not replayed.

    dispatch: seconds by module from the GPU's entry. Without them `EAGER_LAYER` counts with
    `enforce_eager`; compiled steps launch fewer kernels, ahead of the GPU, and take no time of
    their own.
    """
    layer = sum(dispatch.get(module, 0.0) for module in _MODULES)
    if not dispatch and eager:
        layer = EAGER_LAYER
    return num_layers * layer
