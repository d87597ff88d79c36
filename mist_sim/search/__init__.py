"""Searches for the best deployment: goodput, comparisons, ratios of attention to FFN workers."""

from mist_sim.core.sliders import Sliders
from mist_sim.search.afd import (
    BundleChoice,
    BundleRun,
    BundleSpec,
    Candidate,
    Prediction,
    Provisioning,
    SlotLoad,
    SlotLoadEstimate,
    Tail,
    best_bundles,
    check_tail,
    estimate_slot_load,
    expected_maximum,
    geometric_slot_load,
    predict,
    provision,
    provision_interval,
    simulate_bundle,
    tail_of,
)
from mist_sim.search.binding import what_binds
from mist_sim.search.binding_result import Binding
from mist_sim.search.compared_case import Case
from mist_sim.search.comparison import Comparison, compare
from mist_sim.search.designs import Designs, Slidable, designs_of
from mist_sim.search.goodput import GoodputOptions, find_goodput, find_goodputs
from mist_sim.search.goodput_result import Goodput
from mist_sim.search.planning import Plan, PlanOptions, plan
from mist_sim.search.slider_search import SliderSearch, search_sliders
from mist_sim.search.slo_plane import PlaneOptions, SloPlane
from mist_sim.search.spaces import SearchOptions, Space, SpaceSearch, read_space, search_space
from mist_sim.search.sweeps import Sweep, goodput_sweep, sweep

__all__ = [
    "Binding",
    "BundleChoice",
    "BundleRun",
    "BundleSpec",
    "Candidate",
    "Case",
    "Comparison",
    "Designs",
    "Goodput",
    "GoodputOptions",
    "Plan",
    "PlanOptions",
    "PlaneOptions",
    "Prediction",
    "Provisioning",
    "SearchOptions",
    "Slidable",
    "SliderSearch",
    "Sliders",
    "SloPlane",
    "SlotLoad",
    "SlotLoadEstimate",
    "Space",
    "SpaceSearch",
    "Sweep",
    "Tail",
    "best_bundles",
    "check_tail",
    "compare",
    "designs_of",
    "estimate_slot_load",
    "expected_maximum",
    "find_goodput",
    "find_goodputs",
    "geometric_slot_load",
    "goodput_sweep",
    "plan",
    "predict",
    "provision",
    "provision_interval",
    "read_space",
    "search_sliders",
    "search_space",
    "simulate_bundle",
    "sweep",
    "tail_of",
    "what_binds",
]
