"""A client that prefills in one layout of its model and decodes in another (Seesaw).

Su et al., "Seesaw: High-throughput LLM Inference via Model Re-sharding" (2025):
`docs/background/seesaw.md`.
"""

from mist_sim.clients.resharding.client import ReshardingClient

__all__ = ["ReshardingClient"]
