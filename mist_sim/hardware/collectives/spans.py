"""Groups of ranks on the nodes of a cluster: resolved hops, without the graph itself."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """A group of ranks spread over several nodes.

    ranks: number of its ranks on each node, in the order of the nodes.
    bandwidth: bytes/s from the ranks of one node to those of the next, together, on otherwise idle
        links. latency: seconds of the route between two of them.
    """

    ranks: tuple[int, ...]
    bandwidth: float
    latency: float

    @property
    def nodes(self) -> int:
        """Nodes that have a part of the group (>= 2)."""
        return len(self.ranks)

    @property
    def fewest(self) -> int:
        """Ranks of the node that has the fewest."""
        return min(self.ranks)

    @property
    def most(self) -> int:
        """Ranks of the node that has the most."""
        return max(self.ranks)

    @property
    def text(self) -> str:
        """The span in words: "16 ranks on 2 nodes (8 + 8), 400 GB/s between them"."""
        shares = " + ".join(map(str, self.ranks))
        rate = f"{self.bandwidth / 1e9:.4g} GB/s between them"
        return f"{sum(self.ranks)} ranks on {self.nodes} nodes ({shares}), {rate}"


@dataclass(frozen=True, slots=True)
class Spans:
    """The groups of a client that lie on several nodes; None: all groups of that kind are on one.

    tensor: ranks that share layers. replicas: ranks with the same slice in every replica, which
        exchange tokens for experts. stages: successive ranks of a pipeline.
    """

    tensor: Span | None = None
    replicas: Span | None = None
    stages: Span | None = None

    def __bool__(self) -> bool:
        return any((self.tensor, self.replicas, self.stages))


ONE_NODE = Spans()
"""Every group is in one node."""
