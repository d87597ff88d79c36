"""Keys that several decodes of a step read, and find in the GPU's cache.

Decodes that share a prefix have the same pages of it, and a layer's attention reads these once for
each. The latest pages are still in the chip's cache (L2), so a page comes from memory only if more
than the cache holds was read since its last reader. Attention kernels go through a batch sequence
by sequence (FlashAttention's grids, FlashInfer's plans), and an engine keeps its batch in the order
of arrival, which does not depend on prefixes. So the readers of a page are points at random places
of what is read in all. Of n points on a line of length 1 a gap between neighbours is longer than f
with probability (1 - f)^n, so

    reads from memory = 1 + (n - 1) (1 - f)^n,   f = bytes that the cache holds / bytes read

With very many readers that would fall again; it counts as constant from its largest value on, so
that one more decode never makes a step shorter. The bytes of all keys take at least as long as the
cache's own bandwidth allows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import log

from mist_sim.hardware.cluster import Cluster
from mist_sim.hardware.predictors.analytic.attention_time import DecodeAttention
from mist_sim.models import operators
from mist_sim.models.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class SharedReads:
    """The keys of shared prefixes that come from the cache.

    held: keys of a layer that the cache holds. least: seconds of a key in all layers that neither
        the cache's bandwidth nor arithmetic falls below. per_key: of a key from memory.
    """

    held: float
    least: float
    per_key: float

    def __call__(self, shared: Mapping[int, int], num_decodes: int, num_keys: int) -> int:
        """Return the keys, of `num_keys` that a step's decodes read, that come from the cache.

        shared: tokens that several decodes have, by the number of these.
        """
        if not num_keys:
            return 0
        beyond = 1 - self.held / num_keys  # what it does not hold, as a share
        saved, most = 0.0, 1 - 1 / log(beyond) if beyond > 0 else 1.0
        for readers, tokens in shared.items():
            again = readers if readers < most else most  # noqa: FURB136
            saved += tokens * (readers - 1 - (again - 1) * beyond**again)
        allowed = (1 - self.least / self.per_key) * num_keys
        return int(saved if saved < allowed else allowed) if allowed > 0 else 0  # noqa: FURB136


def shared_reads(
    model: ModelSpec, cluster: Cluster, layers: int, decodes: DecodeAttention
) -> SharedReads | None:
    """Return which keys of decodes come from the cache; None for a GPU whose cache is not known.

    decodes: the attention of so many layers, which see all keys.
    """
    gpu, parts = cluster.gpu, cluster.decode_context_parallel_size
    if gpu.l2_cache is None or gpu.l2_bandwidth is None or not layers:
        return None
    t = cluster.tensor_parallel_size // parts
    num_bytes = operators.attention(model, 0, 1 / parts, 0, t, prefill=False).bytes
    least = max(layers * num_bytes / gpu.l2_bandwidth, decodes.per_pair)
    return SharedReads(float(gpu.l2_cache / num_bytes), float(least), decodes.per_key)
