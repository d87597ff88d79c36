"""Workloads: traces and synthetic requests as iterators, with arrival processes and pipelines."""

from typing import TYPE_CHECKING

from mist_sim.on_demand import on_demand
from mist_sim.traces.arrivals import (
    AllAtOnce,
    ArrivalProcess,
    BurstyArrivals,
    ClosedLoop,
    ConstantArrivals,
    DailyArrivals,
    GammaArrivals,
    NormalArrivals,
    PoissonArrivals,
    ScheduledArrivals,
    TraceArrivals,
    UniformArrivals,
)
from mist_sim.traces.base import (
    ARRIVALS,
    LENGTHS,
    SAMPLERS,
    TRACE_READERS,
    NamesModels,
    RowSampler,
    TraceReader,
    TraceRow,
)
from mist_sim.traces.lengths.distributions import (
    FixedLength,
    GeometricLength,
    LengthDistribution,
    LogNormalLength,
    NormalLength,
    UniformLength,
)
from mist_sim.traces.lengths.mixtures import Mix, RequestClass
from mist_sim.traces.lengths.synthetic import PrefixRepetition, Profile, Synthetic
from mist_sim.traces.lengths.three_figures import MeanMedianP95Length
from mist_sim.traces.pipeline_templates import PipelineTemplate, completion_pipeline, template
from mist_sim.traces.retries import Retries
from mist_sim.traces.time_limits import TimeLimits
from mist_sim.traces.workload import Rows, Workload

if TYPE_CHECKING:
    from mist_sim.traces.readers.own_csv import CsvReader
    from mist_sim.traces.readers.parquet_reader import ChatParquetReader, MistReader
    from mist_sim.traces.readers.servegen import ServeGenReader
    from mist_sim.traces.readers.serving_sim import LlmServingSimReader
    from mist_sim.traces.readers.sharegpt import ShareGptReader
    from mist_sim.traces.readers.tabular_reader import (
        AzureReader,
        LengthsCsvReader,
        MooncakeReader,
        TimedTraceReader,
    )
    from mist_sim.traces.readers.timed_csv import BurstGptReader, SplitwiseReader, VidurReader
    from mist_sim.traces.sessions.agentic import AgenticReader
    from mist_sim.traces.sessions.dependent import AgenticMooncakeReader
    from mist_sim.traces.sessions.dynamo import DynamoReader
    from mist_sim.traces.sessions.ragpulse import RagPulseReader
    from mist_sim.traces.sessions.telemetry import OtelReader

__all__ = [
    "ARRIVALS",
    "LENGTHS",
    "SAMPLERS",
    "TRACE_READERS",
    "AgenticMooncakeReader",
    "AgenticReader",
    "AllAtOnce",
    "ArrivalProcess",
    "AzureReader",
    "BurstGptReader",
    "BurstyArrivals",
    "ChatParquetReader",
    "ClosedLoop",
    "ConstantArrivals",
    "CsvReader",
    "DailyArrivals",
    "DynamoReader",
    "FixedLength",
    "GammaArrivals",
    "GeometricLength",
    "LengthDistribution",
    "LengthsCsvReader",
    "LlmServingSimReader",
    "LogNormalLength",
    "MeanMedianP95Length",
    "MistReader",
    "Mix",
    "MooncakeReader",
    "NamesModels",
    "NormalArrivals",
    "NormalLength",
    "OtelReader",
    "PipelineTemplate",
    "PoissonArrivals",
    "PrefixRepetition",
    "Profile",
    "RagPulseReader",
    "RequestClass",
    "Retries",
    "RowSampler",
    "Rows",
    "ScheduledArrivals",
    "ServeGenReader",
    "ShareGptReader",
    "SplitwiseReader",
    "Synthetic",
    "TimeLimits",
    "TimedTraceReader",
    "TraceArrivals",
    "TraceReader",
    "TraceRow",
    "UniformArrivals",
    "UniformLength",
    "VidurReader",
    "Workload",
    "completion_pipeline",
    "template",
]

__getattr__ = on_demand(
    __name__,
    {
        "CsvReader": "readers.own_csv",
        "ChatParquetReader": "readers.parquet_reader",
        "MistReader": "readers.parquet_reader",
        "ServeGenReader": "readers.servegen",
        "LlmServingSimReader": "readers.serving_sim",
        "ShareGptReader": "readers.sharegpt",
        "AzureReader": "readers.tabular_reader",
        "LengthsCsvReader": "readers.tabular_reader",
        "MooncakeReader": "readers.tabular_reader",
        "TimedTraceReader": "readers.tabular_reader",
        "BurstGptReader": "readers.timed_csv",
        "SplitwiseReader": "readers.timed_csv",
        "VidurReader": "readers.timed_csv",
        "AgenticReader": "sessions.agentic",
        "AgenticMooncakeReader": "sessions.dependent",
        "DynamoReader": "sessions.dynamo",
        "RagPulseReader": "sessions.ragpulse",
        "OtelReader": "sessions.telemetry",
    },
)
