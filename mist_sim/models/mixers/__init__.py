"""Mixers: the parts of a layer that connect tokens, attention or a state."""

from mist_sim.models.mixers.base import Held, Mixer
from mist_sim.models.mixers.compressed import CompressedMixer
from mist_sim.models.mixers.heads import BlockIndexer, HeadsMixer
from mist_sim.models.mixers.latent import Indexer, LatentMixer
from mist_sim.models.mixers.linear_state import LinearMixer

__all__ = [
    "BlockIndexer",
    "CompressedMixer",
    "HeadsMixer",
    "Held",
    "Indexer",
    "LatentMixer",
    "LinearMixer",
    "Mixer",
]
