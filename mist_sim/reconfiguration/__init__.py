"""TaiChi's sliders while a run goes on: at given times, or when the workload has changed."""

from mist_sim.reconfiguration.reconfiguration_options import Change, OnChange, Reconfigure
from mist_sim.reconfiguration.reconfigurer import Reconfigurer, Search
from mist_sim.reconfiguration.slider_rules import check_reconfigure
from mist_sim.reconfiguration.traffic import Traffic, TrafficWatch

__all__ = [
    "Change",
    "OnChange",
    "Reconfigure",
    "Reconfigurer",
    "Search",
    "Traffic",
    "TrafficWatch",
    "check_reconfigure",
]
