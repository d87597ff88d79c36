"""The registry of stages (entry-point group `mist_sim.stages`)."""

from mist_sim.registry import Registry

STAGES = Registry("stages")
