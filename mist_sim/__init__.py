"""Discrete-event simulation of multi-stage LLM serving.

    from mist_sim import Scenario, simulate
    result = simulate(Scenario.load("demo"))

Everything that a scenario file can say, Python can say with objects: clients, a `Workload` and a
router make a `Simulation`. A name is imported when it is first used, so that `import mist_sim`
and `mist --help` are instant.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mist_sim.clients import (
        CLIENTS,
        AfdClient,
        Client,
        EngineConfig,
        LlmClient,
        SequentialClient,
    )
    from mist_sim.clients.kv_cache import KvCacheConfig
    from mist_sim.clients.overload import AdmissionControl
    from mist_sim.clients.scheduling import (
        SCHEDULERS,
        ChunkedScheduler,
        ContinuousScheduler,
        MixedScheduler,
        Scheduler,
        StaticScheduler,
        StepPlan,
    )
    from mist_sim.core.batch import StepBatch, StepGrowth
    from mist_sim.core.candidates import Candidates
    from mist_sim.core.request import Request
    from mist_sim.core.views import ClientView
    from mist_sim.core.visit import HeldKv, Moved, Served
    from mist_sim.durations import (
        DURATIONS,
        ConstantDuration,
        EmpiricalDuration,
        ExponentialDuration,
        GammaDuration,
        LogNormalDuration,
        UniformDuration,
    )
    from mist_sim.errors import (
        InvariantError,
        MistError,
        ScenarioError,
        TraceError,
        UnknownPluginError,
    )
    from mist_sim.hardware import Cluster, GpuSpec, load_gpu
    from mist_sim.hardware.predictors import (
        PREDICTORS,
        BestServePredictor,
        EngineOverhead,
        ExecutionPredictor,
        LinearPredictor,
        PipelinePredictor,
        Predictor,
        PredictorTraits,
        RegressionPredictor,
        RooflinePredictor,
        TablePredictor,
    )
    from mist_sim.lifecycle import (
        AUTOSCALERS,
        Autoscaling,
        Drain,
        Failures,
        GroupView,
        Lifecycle,
        OnFailure,
        QueueLength,
        Schedule,
        SloAttainment,
        StartUp,
        Utilisation,
    )
    from mist_sim.metrics import (
        ApiPrices,
        CostOptions,
        Estimate,
        InterferenceLaw,
        PowerOptions,
        Replications,
        Result,
        Slo,
    )
    from mist_sim.models import ModelSpec, SpeculativeConfig, load_model
    from mist_sim.network import Fabric, Link, Topology, load_topology
    from mist_sim.routers import (
        ROUTERS,
        HeavyLightRouter,
        LeastOutstandingRouter,
        LoadRouter,
        PlacementAwareRouter,
        PolledRouter,
        PowerOfTwoRouter,
        PrefixAffinityRouter,
        RandomRouter,
        RoundRobinRouter,
        Router,
        SessionAffinityRouter,
    )
    from mist_sim.scenario import Scenario, llm_client, replicate, simulate
    from mist_sim.simulation import Simulation
    from mist_sim.stages import (
        STAGES,
        Decode,
        KvRetrieval,
        Postprocess,
        Prefill,
        Preprocess,
        Rag,
        Reasoning,
        Stage,
        ToolCall,
    )
    from mist_sim.traces import (
        ARRIVALS,
        LENGTHS,
        SAMPLERS,
        TRACE_READERS,
        AllAtOnce,
        AzureReader,
        BurstyArrivals,
        ClosedLoop,
        ConstantArrivals,
        FixedLength,
        GammaArrivals,
        GeometricLength,
        LengthsCsvReader,
        LogNormalLength,
        MooncakeReader,
        NormalArrivals,
        NormalLength,
        PoissonArrivals,
        PrefixRepetition,
        Profile,
        Retries,
        Rows,
        ShareGptReader,
        Synthetic,
        TimeLimits,
        TraceArrivals,
        TraceRow,
        UniformArrivals,
        UniformLength,
        Workload,
        template,
    )

_HOMES = {
    "mist_sim.clients": "CLIENTS AfdClient Client EngineConfig LlmClient SequentialClient",
    "mist_sim.clients.overload": "AdmissionControl",
    "mist_sim.clients.kv_cache": "KvCacheConfig",
    "mist_sim.clients.scheduling": (
        "SCHEDULERS ChunkedScheduler ContinuousScheduler MixedScheduler Scheduler "
        "StaticScheduler StepPlan"
    ),
    "mist_sim.core.batch": "StepBatch StepGrowth",
    "mist_sim.core.request": "Request",
    "mist_sim.core.candidates": "Candidates",
    "mist_sim.core.views": "ClientView",
    "mist_sim.core.visit": "HeldKv Moved Served",
    "mist_sim.durations": (
        "DURATIONS ConstantDuration EmpiricalDuration ExponentialDuration GammaDuration "
        "LogNormalDuration UniformDuration"
    ),
    "mist_sim.errors": "InvariantError MistError ScenarioError TraceError UnknownPluginError",
    "mist_sim.hardware": "Cluster GpuSpec load_gpu",
    "mist_sim.hardware.predictors": (
        "PREDICTORS BestServePredictor EngineOverhead ExecutionPredictor LinearPredictor "
        "PipelinePredictor Predictor PredictorTraits RegressionPredictor RooflinePredictor "
        "TablePredictor"
    ),
    "mist_sim.lifecycle": (
        "AUTOSCALERS Autoscaling Drain Failures GroupView Lifecycle OnFailure QueueLength Schedule "
        "SloAttainment StartUp Utilisation"
    ),
    "mist_sim.metrics": (
        "ApiPrices CostOptions Estimate InterferenceLaw PowerOptions Replications Result Slo"
    ),
    "mist_sim.models": "ModelSpec SpeculativeConfig load_model",
    "mist_sim.network": "Fabric Link Topology load_topology",
    "mist_sim.routers": (
        "ROUTERS HeavyLightRouter LeastOutstandingRouter LoadRouter PlacementAwareRouter "
        "PolledRouter PowerOfTwoRouter PrefixAffinityRouter RandomRouter RoundRobinRouter Router "
        "SessionAffinityRouter"
    ),
    "mist_sim.scenario": "Scenario llm_client replicate simulate",
    "mist_sim.simulation": "Simulation",
    "mist_sim.stages": (
        "STAGES Decode KvRetrieval Postprocess Prefill Preprocess Rag Reasoning Stage ToolCall"
    ),
    "mist_sim.traces": (
        "ARRIVALS LENGTHS SAMPLERS TRACE_READERS AllAtOnce AzureReader BurstyArrivals ClosedLoop "
        "ConstantArrivals FixedLength GammaArrivals GeometricLength LengthsCsvReader "
        "LogNormalLength MooncakeReader NormalArrivals NormalLength PoissonArrivals "
        "PrefixRepetition Profile Retries Rows ShareGptReader Synthetic TimeLimits TraceArrivals "
        "TraceRow UniformArrivals UniformLength Workload template"
    ),
}
_MODULES = {name: module for module, names in _HOMES.items() for name in names.split()}

__all__ = [
    "ARRIVALS",
    "AUTOSCALERS",
    "CLIENTS",
    "DURATIONS",
    "LENGTHS",
    "PREDICTORS",
    "ROUTERS",
    "SAMPLERS",
    "SCHEDULERS",
    "STAGES",
    "TRACE_READERS",
    "AdmissionControl",
    "AfdClient",
    "AllAtOnce",
    "ApiPrices",
    "Autoscaling",
    "AzureReader",
    "BestServePredictor",
    "BurstyArrivals",
    "Candidates",
    "ChunkedScheduler",
    "Client",
    "ClientView",
    "ClosedLoop",
    "Cluster",
    "ConstantArrivals",
    "ConstantDuration",
    "ContinuousScheduler",
    "CostOptions",
    "Decode",
    "Drain",
    "EmpiricalDuration",
    "EngineConfig",
    "EngineOverhead",
    "Estimate",
    "ExecutionPredictor",
    "ExponentialDuration",
    "Fabric",
    "Failures",
    "FixedLength",
    "GammaArrivals",
    "GammaDuration",
    "GeometricLength",
    "GpuSpec",
    "GroupView",
    "HeavyLightRouter",
    "HeldKv",
    "InterferenceLaw",
    "InvariantError",
    "KvCacheConfig",
    "KvRetrieval",
    "LeastOutstandingRouter",
    "LengthsCsvReader",
    "Lifecycle",
    "LinearPredictor",
    "Link",
    "LlmClient",
    "LoadRouter",
    "LogNormalDuration",
    "LogNormalLength",
    "MistError",
    "MixedScheduler",
    "ModelSpec",
    "MooncakeReader",
    "Moved",
    "NormalArrivals",
    "NormalLength",
    "OnFailure",
    "PipelinePredictor",
    "PlacementAwareRouter",
    "PoissonArrivals",
    "PolledRouter",
    "Postprocess",
    "PowerOfTwoRouter",
    "PowerOptions",
    "Predictor",
    "PredictorTraits",
    "Prefill",
    "PrefixAffinityRouter",
    "PrefixRepetition",
    "Preprocess",
    "Profile",
    "QueueLength",
    "Rag",
    "RandomRouter",
    "Reasoning",
    "RegressionPredictor",
    "Replications",
    "Request",
    "Result",
    "Retries",
    "RooflinePredictor",
    "RoundRobinRouter",
    "Router",
    "Rows",
    "Scenario",
    "ScenarioError",
    "Schedule",
    "Scheduler",
    "SequentialClient",
    "Served",
    "SessionAffinityRouter",
    "ShareGptReader",
    "Simulation",
    "Slo",
    "SloAttainment",
    "SpeculativeConfig",
    "Stage",
    "StartUp",
    "StaticScheduler",
    "StepBatch",
    "StepGrowth",
    "StepPlan",
    "Synthetic",
    "TablePredictor",
    "TimeLimits",
    "ToolCall",
    "Topology",
    "TraceArrivals",
    "TraceError",
    "TraceRow",
    "UniformArrivals",
    "UniformDuration",
    "UniformLength",
    "UnknownPluginError",
    "Utilisation",
    "Workload",
    "__version__",
    "llm_client",
    "load_gpu",
    "load_model",
    "load_topology",
    "replicate",
    "simulate",
    "template",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("mist-sim")
    elif name in _MODULES:
        value = getattr(import_module(_MODULES[name]), name)
    else:
        raise AttributeError(f"module 'mist_sim' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
