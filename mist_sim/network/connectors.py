"""Connectors for KV entries: the cost of a transfer beyond its bytes over the bandwidth.

An engine's connector posts a descriptor for each piece of memory that is contiguous on both sides,
and may have to rearrange what came. A transfer of B bytes with d descriptors over a way of b
bytes/s takes

    latency + start + d · per_descriptor + B / (efficiency · b), and then d · post_processing

of which the last part concerns only the destination: the source's blocks are free before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mist_sim.checks import Checked, NotNegative, Share
from mist_sim.registry import Registry
from mist_sim.units import Seconds

CONNECTORS = Registry("connectors")

Descriptors = Literal["block_and_layer", "block", "layer"]


@CONNECTORS.register("plain")
@dataclass(frozen=True, kw_only=True)
class Connector(Checked):
    """Bytes over the bandwidth, plus the costs that are set.

    start: seconds per transfer (>= 0).
    per_descriptor: seconds to post a descriptor (>= 0), one after the other on each pair of ranks.
    descriptors: which pieces have one each: `block_and_layer`, a block of a layer; `block`, where
        the layers of a block lie together; `layer`, where the blocks of a layer are merged.
    post_processing: seconds per descriptor at the destination, after all bytes have arrived (>= 0).
    efficiency: share of the links' bandwidth that transfers reach (> 0, <= 1).
    Raises ValueError for values outside these ranges.
    """

    start: NotNegative[Seconds] = 0.0
    per_descriptor: NotNegative[Seconds] = 0.0
    descriptors: Descriptors = "block_and_layer"
    post_processing: NotNegative[Seconds] = 0.0
    efficiency: Share = 1.0

    def before(self, num_blocks: int, num_layers: float) -> float:
        """Return the seconds that a transfer takes in addition to its bytes."""
        if not self.per_descriptor:
            return self.start
        return self.start + self.per_descriptor * self.num_descriptors(num_blocks, num_layers)

    def after(self, num_blocks: int, num_layers: float) -> float:
        """Return the seconds from then on until the entries can be used."""
        if not self.post_processing:
            return 0.0
        return self.post_processing * self.num_descriptors(num_blocks, num_layers)

    def num_descriptors(self, num_blocks: int, num_layers: float) -> float:
        """Return how many a rank posts for so many blocks of so many layers."""
        if not num_blocks:
            return 0
        if self.descriptors == "block":
            return num_blocks
        return num_layers if self.descriptors == "layer" else num_blocks * num_layers


PLAIN = Connector()


@CONNECTORS.register("mooncake")
@dataclass(frozen=True, kw_only=True)
class MooncakeConnector(Connector):
    """Mooncake's transfer engine over RDMA, as engines' connectors use it: layer by layer.

    Source: nine transfers each that Mooncake measured between two nodes of eight GPUs, TP 8. By
    vLLM ("vllm-v1-pd-performance.md", Qwen3-8B, H800s): 0.57 ms and 154 GB/s of 200; 36 layers.
    By SGLang (Qwen3-235B, H20s): 1.73 ms and 168 GB/s of 200; 94 layers. Both starts are 17 us a
    layer, within 8 %. The efficiency is vLLM's. Its "MB" and "GB" are powers of two: they are the
    prompt's blocks and one more.
    """

    per_descriptor: NotNegative[Seconds] = 17e-6
    descriptors: Descriptors = "layer"
    efficiency: Share = 0.772


@CONNECTORS.register("nixl")
@dataclass(frozen=True, kw_only=True)
class NixlConnector(Connector):
    """NIXL, as vLLM's `NixlConnector` uses it: descriptors cost most where blocks are small.

    Source: a transfer between two A100s over NVLink that a vLLM log shows, 200 MB with 12,700
    descriptors in 45 ms, of which the bytes at 300 GB/s would take 0.7. 38 of these are its "post
    time", in which descriptors are posted: 3 us each. vllm#34054, on one host too, has 129 ms for
    40,064, 3.2 us each.
    """

    per_descriptor: NotNegative[Seconds] = 3.5e-6
