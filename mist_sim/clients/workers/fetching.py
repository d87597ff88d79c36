"""Bytes that workers bring over the links of a topology, such as KV entries of a known context."""

from __future__ import annotations

from dataclasses import dataclass

from mist_sim.checks import Positive, check_fields
from mist_sim.core.request import Stage
from mist_sim.errors import ScenarioError
from mist_sim.network import Network
from mist_sim.units import Bytes


@dataclass(frozen=True, kw_only=True)
class Fetch:
    """Bytes per token of a stage that move from one place of a topology to another.

    source: a place such as remote/storage. destination: another one, such as node0/host, or several
        that get the same at once, over each link once. They share links with all else that travels.
    bytes_per_token: finite, > 0; the KV entries of Llama-3.1-8B take 128 KiB.
    Raises ValueError for values out of range.
    """

    source: str
    destination: str | tuple[str, ...]
    bytes_per_token: Positive[Bytes]

    def __post_init__(self) -> None:
        check_fields(self)
        if self.source in self.destinations:
            raise ValueError(f"destination must not be the source, got {self.source!r} for both")
        if not self.destinations or len(set(self.destinations)) < len(self.destinations):
            raise ValueError(
                f"destination must be one place, or several that differ, got {self.destination!r}"
            )

    @property
    def destinations(self) -> tuple[str, ...]:
        """All places to which fetched data come."""
        return (self.destination,) if isinstance(self.destination, str) else self.destination

    def num_bytes(self, stage: Stage) -> float:
        """Return the bytes that come for a stage; 0 for a stage without `num_tokens`."""
        return self.bytes_per_token * int(getattr(stage, "num_tokens", 0))


def check_fetch(name: str, fetch: Fetch, network: Network | None) -> None:
    """Raise ScenarioError where a client's bytes have no way. name: of the client."""
    for destination in fetch.destinations:
        check_way(name, "fetch", (fetch.source, destination), network)


def check_way(name: str, key: str, ends: tuple[str, str], network: Network | None) -> None:
    """Raise ScenarioError if a topology has no route between two places.

    name: name of the client. key: the option in the file.
    """
    ways = network.ways if network is not None else None
    if ways is None:
        raise ScenarioError(
            f"{name}: {key} must be left out, since the network has no topology; set "
            "network.topology, such as hgx-h100"
        )
    try:
        ways.check_route(*ends)
    except ScenarioError as error:
        raise ScenarioError(f"{name}: {key}: {error}") from None
