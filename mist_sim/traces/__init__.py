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
from mist_sim.traces.lengths import (
    FixedLength,
    GeometricLength,
    LengthDistribution,
    LogNormalLength,
    MeanMedianP95Length,
    Mix,
    NormalLength,
    PrefixRepetition,
    Profile,
    RequestClass,
    Synthetic,
    UniformLength,
)
from mist_sim.traces.pipeline_templates import PipelineTemplate, completion_pipeline, template
from mist_sim.traces.predictions import Predictions
from mist_sim.traces.retries import Retries
from mist_sim.traces.time_limits import TimeLimits
from mist_sim.traces.workload import Rows, Workload

if TYPE_CHECKING:
    from mist_sim.traces.readers.conversations import ShareGptReader
    from mist_sim.traces.readers.parquet_reader import ChatParquetReader, MistReader
    from mist_sim.traces.readers.servegen import ServeGenReader
    from mist_sim.traces.readers.serving_sim import LlmServingSimReader
    from mist_sim.traces.readers.sessions import (
        AgenticMooncakeReader,
        AgenticReader,
        DynamoReader,
        OtelReader,
        RagPulseReader,
    )
    from mist_sim.traces.readers.tabular_reader import (
        AzureReader,
        BurstGptReader,
        CsvReader,
        LengthsCsvReader,
        MooncakeReader,
        SplitwiseReader,
        TimedTraceReader,
        VidurReader,
    )

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
    "Predictions",
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
        "CsvReader": "readers.tabular_reader",
        "ChatParquetReader": "readers.parquet_reader",
        "MistReader": "readers.parquet_reader",
        "ServeGenReader": "readers.servegen",
        "LlmServingSimReader": "readers.serving_sim",
        "ShareGptReader": "readers.conversations",
        "AzureReader": "readers.tabular_reader",
        "LengthsCsvReader": "readers.tabular_reader",
        "MooncakeReader": "readers.tabular_reader",
        "TimedTraceReader": "readers.tabular_reader",
        "BurstGptReader": "readers.tabular_reader",
        "SplitwiseReader": "readers.tabular_reader",
        "VidurReader": "readers.tabular_reader",
        "AgenticReader": "readers.sessions",
        "AgenticMooncakeReader": "readers.sessions",
        "DynamoReader": "readers.sessions",
        "RagPulseReader": "readers.sessions",
        "OtelReader": "readers.sessions",
    },
)
