"""One step taken apart, operator by operator: from a batch by hand, or from a moment of a run."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import isclose
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mist_sim.checks import NotNegative, check_fields
from mist_sim.core.batch import StepBatch, StepGrowth, grown
from mist_sim.core.recorder import Recorder
from mist_sim.core.result_warnings import (
    DISTANCE,
    EXTRAPOLATED,
    FRONT_END,
    LEFT_OUT,
    NO_PREFIXES,
    START_UP,
    ResultWarning,
)
from mist_sim.errors import ScenarioError, brief
from mist_sim.hardware.devices import GpuSpec
from mist_sim.hardware.predictors.base import traits_of
from mist_sim.hardware.predictors.explained import OperatorTime, explained, merged
from mist_sim.hardware.work import peak
from mist_sim.metrics.expected_errors import expected_errors
from mist_sim.metrics.run_warnings import distance_warnings
from mist_sim.metrics.tables import Findings
from mist_sim.output import json_text, write_text
from mist_sim.report.presenters import STEP
from mist_sim.scenario import Scenario
from mist_sim.scenario.schema import Engines
from mist_sim.simulation import Simulation
from mist_sim.studies.built import Built

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Engines", "HandBatch", "StepExplained", "explain_batch", "explain_moment"]


@dataclass(frozen=True, slots=True)
class HandBatch:
    """The work of a step of an engine; all engines of a client (data_parallel_size) do as much.

    prompts: (new tokens, tokens of context before them) of each prompt. decodes: answers that
    get a token. context: tokens that each of these has in the cache.
    Raises ScenarioError for an empty batch, and for numbers that cannot be.
    """

    prompts: tuple[tuple[int, int], ...] = ()
    decodes: NotNegative[int] = 0
    context: int = 0

    def __post_init__(self) -> None:
        check_fields(self, ScenarioError)
        if not (self.prompts or self.decodes):
            raise ScenarioError("a step needs a prompt or a decode; give --prompts or --decodes")
        for new, context in self.prompts:
            if new < 1 or context < 0:
                raise ScenarioError(
                    f"prompts must have >= 1 new tokens after a context >= 0, got {new}@{context}"
                )
        if self.decodes and self.context < 1:
            raise ScenarioError(f"context must be >= 1 token with decodes, got {self.context}")
        if self.context and not self.decodes:
            raise ScenarioError(
                "context must be left out without decodes; that of a prompt stands behind its @"
            )

    @classmethod
    def read(cls, prompts: str | None, decodes: int, context: int) -> HandBatch:
        """Return it with prompts from text such as "512,2048@1024". Raises ScenarioError."""
        return cls(_prompts(prompts) if prompts is not None else (), decodes, context)

    def for_engine(self, client: Any) -> StepBatch:
        """Return the batch as a step of a client of type llm.

        Raises ScenarioError where no scheduler of that client would make such a step.
        """
        scheduler, longest = client.config.scheduler, client.config.max_model_len
        num_drafts = 0
        if (drafts := client.config.speculative_config) is not None:
            num_drafts = drafts.num_speculative_tokens
        per_decode = 1 + num_drafts
        tokens = sum(new for new, _ in self.prompts) + self.decodes * per_decode
        lengths = [new + context for new, context in self.prompts]
        lengths += [self.context + per_decode] if self.decodes else []
        sizes = [new + context for new, context in self.prompts]
        blocks_of = client.memory.pool().blocks_of  # windows and states have blocks of their own
        held = sum(map(blocks_of, sizes))
        held += self.decodes * (blocks_of(self.context + per_decode) if self.decodes else 0)
        blocks = client.num_gpu_blocks // client.data_parallel_size
        chunk = getattr(scheduler, "max_num_batched_tokens", None)
        num_seqs = len(self.prompts) + self.decodes
        rules: list[tuple[str, int, int | None, str]] = [
            ("sequences", num_seqs, scheduler.max_num_seqs, "raise scheduler.max_num_seqs"),
            ("tokens", tokens, chunk, "raise scheduler.max_num_batched_tokens"),
            ("tokens of its longest sequence", max(lengths), longest, "raise max_model_len"),
            ("blocks of the KV cache", held, blocks, "take fewer or shorter sequences"),
        ]
        for what, asked, most, instead in rules:
            if most is not None and asked > most:
                raise ScenarioError(
                    f"{client.name}: a step must have at most {most:,} {what}, got {asked:,}; "
                    f"{instead}"
                )
        return StepBatch(
            self.prompts,
            self.decodes,
            self.decodes * self.context,
            longest_context=self.context if self.decodes else None,
            num_drafts=num_drafts,
        )


def _prompts(text: str) -> tuple[tuple[int, int], ...]:
    found = []
    for word in text.split(","):
        new, _, context = word.strip().partition("@")
        if not new.isdecimal() or not (context or "0").isdecimal() or len(word) > 20:
            raise ScenarioError(
                "--prompts must be numbers of new tokens, each with the context before it behind "
                f"an @, such as 512,2048@1024; got {brief(word)}"
            )
        found.append((int(new), int(context or 0)))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Moment:
    """A step of a run.

    start, end: seconds. num_waiting: requests waiting for a seat meanwhile. is_exact: whether the
        batch is that of this step; otherwise, with sliding windows or drafts, it is that of the
        first step of its run, with the same sequences.
    """

    batch: StepBatch
    start: float
    end: float
    num_waiting: int
    is_exact: bool


class _FoundError(Exception):
    """Ends a run: its step is known."""


class _Watch(Recorder):
    """Records a run until a client has computed the step of a moment."""

    def __init__(self, client_id: int, time: float) -> None:
        super().__init__()
        self._client_id, self._time = client_id, time
        self.found: Moment | None = None

    def record_steps(
        self,
        track: int,
        start: float,
        ends: list[float] | float,
        num_steps: int,
        batch: StepBatch,
        *others: Any,
    ) -> None:
        """Stop where the steps include the moment."""
        if self.track_clients[track] == self._client_id:
            every = [ends] if isinstance(ends, float) else ends[:num_steps]
            if start <= self._time <= every[-1]:
                self.found = self._moment(start, every, batch, num_waiting=others[1])
                raise _FoundError
        super().record_steps(track, start, ends, num_steps, batch, *others)

    def _moment(
        self, start: float, ends: list[float], batch: StepBatch, num_waiting: int
    ) -> Moment:
        number = min(bisect_left(ends, self._time), len(ends) - 1)
        is_exact = not number or (batch.window_sum is None and not batch.num_drafts)
        if not is_exact:
            number = 0
        growth = StepGrowth(batch.num_decodes, 0, 1 if batch.num_decodes else 0)
        begin = ends[number - 1] if number else start
        return Moment(grown(batch, growth, number), begin, ends[number], num_waiting, is_exact)


def step_at(simulation: Simulation, client: int, time: float) -> Moment:
    """Return the step that a client computes at a time, in seconds, of a run not begun yet.

    client: its position.
    Raises ScenarioError if it computes no step at that time.
    """
    watch = _Watch(client, time)
    with suppress(_FoundError):
        simulation.run(recorder=watch)
    if watch.found is None:
        raise ScenarioError(
            f"{simulation.clients[client].name} computes no step at {time:g} s; mist timeline and "
            "steps.parquet of mist run --out show when it does"
        )
    return watch.found


@dataclass(frozen=True, repr=False)
class StepExplained(Findings):
    """A step of a client, operator by operator.

    operators: in the order of a layer; their seconds add up to the step's. gpu: one of the client's
    GPUs, whose data sheet has the peaks; None: the client names none.
    num_engines: of the client, each of which computes such a step (data_parallel_size).
    kv_entries: how the client stores keys and values, such as "in 8 bits (fp8)".
    moment: (seconds when the step begins, requests that wait meanwhile); None for a batch by hand.
    expected_error: of TTFT (with prompts) or TPOT in runs of such a client, as `expected_errors` of
        a run's summary has it; None: nothing comparable was measured.
    notes: for the reader. warnings: of the scenario's clients.
    """

    presenter = STEP

    client: str
    title: str
    batch: StepBatch
    operators: tuple[OperatorTime, ...]
    estimate: str
    gpu: GpuSpec | None
    num_engines: int = 1
    kv_entries: str = ""
    expected_error: Mapping[str, Any] | None = None
    moment: tuple[float, int] | None = None
    notes: tuple[str, ...] = ()
    warnings: tuple[ResultWarning, ...] = ()

    @property
    def seconds(self) -> float:
        """Duration of the step."""
        return sum([each.seconds for each in self.operators])

    @property
    def shares(self) -> dict[str, float]:
        """Shares of the step by bottleneck, the largest first."""
        found: dict[str, float] = {}
        for each in self.operators:
            found[each.bound] = found.get(each.bound, 0.0) + each.seconds / self.seconds
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    @property
    def table(self) -> pd.DataFrame:
        """A row per operator: seconds, share, limit, FLOPs and bytes of a GPU in all layers."""
        import pandas as pd

        return pd.DataFrame([self._row(each) for each in self.operators])

    def _row(self, operator: OperatorTime) -> dict[str, Any]:
        sources = {} if self.gpu is None else self.gpu.sources
        return {
            "operator": operator.name,
            "layers": operator.layers,
            "seconds": operator.seconds,
            "share": operator.seconds / self.seconds,
            "bound": operator.bound,
            "dtype": self._dtype(operator),
            "of_peak": self._of_peak(operator),
            "flops": operator.flops,
            "bytes": operator.num_bytes,
            "flops_per_byte": operator.flops / operator.num_bytes if operator.num_bytes else 0.0,
            "kernel": operator.kernel,
            "source": sources.get(f"kernels.{operator.kernel}", ""),
        }

    def _dtype(self, operator: OperatorTime) -> str:
        """Return the type that the GPU computes an operator in: 16 bits where it lacks its own."""
        has_own = self.gpu is None or operator.dtype in self.gpu.flops
        return operator.dtype if has_own else "bf16"

    def _of_peak(self, operator: OperatorTime) -> float | None:
        """Return the share of the data sheet's rate, or bandwidth, at which an operator runs.

        That is of what binds it; None where neither does. The rate is that of the type in which it
        is computed.
        """
        if self.gpu is None or not operator.seconds:
            return None
        if operator.bound == "compute":
            return operator.flops / operator.seconds / peak(self.gpu, operator.dtype)
        if operator.bound == "memory":
            return operator.num_bytes / operator.seconds / self.gpu.memory_bandwidth
        return None

    @property
    def of_peak(self) -> dict[str, float] | None:
        """Shares of the data sheet's FLOP/s and bandwidth that the whole step reaches.

        FLOPs count at the rate of the type that they are computed in. None without a GPU, or for
        a step that is not taken apart.
        """
        gpu, flops = self.gpu, sum(each.flops for each in self.operators)
        if gpu is None or not flops or not self.seconds:
            return None
        compute = sum(each.flops / peak(gpu, each.dtype) for each in self.operators)
        memory = sum(each.num_bytes for each in self.operators) / gpu.memory_bandwidth
        return {"flops": compute / self.seconds, "bandwidth": memory / self.seconds}

    @property
    def peak_flops(self) -> dict[str, float] | None:
        """The data sheet's FLOP/s of the types in which the step computes; None without a GPU."""
        if self.gpu is None:
            return None
        used = {self._dtype(each) for each in self.operators if each.flops}
        return {dtype: rate for dtype, rate in self.gpu.flops.items() if dtype in used}

    @property
    def data(self) -> dict[str, Any]:
        """Everything but the warnings as plain data."""
        batch = self.batch
        return {
            "client": self.client,
            "step_ms": self.seconds * 1e3,
            "prompts": [list(chunk) for chunk in batch.chunks],
            "num_prefill_tokens": batch.num_prefill_tokens,
            "num_decodes": batch.num_decodes,
            "context_sum": batch.context_sum,
            "num_drafts": batch.num_drafts,
            "num_engines": self.num_engines,
            "kv_entries": self.kv_entries,
            "starts_at_s": self.moment[0] if self.moment else None,
            "num_waiting": self.moment[1] if self.moment else None,
            "estimate": self.estimate,
            "expected_error": self.expected_error,
            "of_peak": self.of_peak,
            "peak_flops": self.peak_flops,
            "memory_bandwidth": None if self.gpu is None else self.gpu.memory_bandwidth,
            "shares": self.shares,
            "operators": [self._row(each) for each in self.operators],
            "notes": list(self.notes),
        }

    def __repr__(self) -> str:
        return f"<StepExplained: {1e3 * self.seconds:.3g} ms, {len(self.operators)} operators>"

    def write_files(self, folder: Path) -> None:
        """Write step.json and step.csv, and roofline.png where Matplotlib is installed."""
        from mist_sim.report.pictures.findings import roofline_picture
        from mist_sim.report.pictures.picture import write_png

        write_text(folder / "step.json", json_text(self.summary))
        text = self.table.to_csv(index=False, lineterminator="\n")
        write_text(folder / "step.csv", text)
        if self.peak_flops:
            write_png(
                lambda: roofline_picture(self.summary),
                folder / "roofline.png",
                self.warnings,
                self.title,
            )


def explain_batch(scenario: Scenario, batch: HandBatch, client: str | None = None) -> StepExplained:
    """Return the step that a client of a scenario computes for a batch by hand.

    scenario: `Engines.load` reads one without a workload, too.
    client: its name; by default the first with an engine. A step counts as planned ahead where the
        engine plans ahead.
    Raises ScenarioError for a client that has no engine, or would never compute such a step.
    """
    built = Built(scenario)
    found = _engine(built, client)
    return _explained(built, found, batch.for_engine(found))


def explain_moment(scenario: Scenario, time: float, client: str | None = None) -> StepExplained:
    """Return the step that a client computes at a time, in seconds, of a scenario's run.

    client: as in `explain_batch`.
    Raises ScenarioError if it computes no step then.
    """
    built = Built(scenario)
    found = _engine(built, client)
    clients = built.simulation.clients
    moment = step_at(built.simulation, clients.index(found), time)
    notes = [] if moment.is_exact else [_FIRST_OF_RUN]
    planned, on_the_spot = (
        sum(e.seconds for e in _operators(found, moment.batch, is_on_the_spot=spot))
        for spot in (False, True)
    )
    took = moment.end - moment.start
    is_on_the_spot = not isclose(took, planned, rel_tol=1e-9) and isclose(
        took, on_the_spot, rel_tol=1e-9
    )
    if is_on_the_spot:
        notes.append(_ON_THE_SPOT)
    return _explained(
        built,
        found,
        moment.batch,
        is_on_the_spot=is_on_the_spot,
        moment=(moment.start, moment.num_waiting),
        notes=tuple(notes),
    )


_FIRST_OF_RUN = (
    "The operators are those of the first of several steps with the same sequences; a later one "
    "differs by the tokens that these have gained."
)
_OUTSIDE = "The step lies outside what was measured: its time is extrapolated."
_ON_THE_SPOT = (
    "The engine planned this step as it began, since nothing was in flight: the host's work shows "
    "in full."
)


_PASS = (
    "The time is that of a pass through all {ranks} ranks of the pipeline. Up to {ranks} batches "
    "are on their way at once, one a rank, so a rank is busy about 1/{ranks} of it."
)

_OF_RUNS = (DISTANCE, FRONT_END, NO_PREFIXES, START_UP, LEFT_OUT)
"""Warnings about what is outside a step, and how far runs are from measured ones."""


def _expected(client: Any, batch: StepBatch) -> dict[str, Any] | None:
    """Return the expected error of the latency that steps such as a batch make up."""
    times = client.traits.times
    bars = expected_errors({client.name: times.settings})[client.name] if times else {}
    metric = "ttft" if batch.chunks else "tpot"
    found = bars.get(metric)
    return found and {"metric": metric, **found}


def _engine(built: Built, name: str | None) -> Any:
    """Return a client with an engine. Raises ScenarioError if none has that name."""
    engines = {
        client.name: client
        for client in built.simulation.clients
        if getattr(client, "predictor", None) is not None
    }
    if name is None and engines:
        return next(iter(engines.values()))
    if name not in engines:
        known = ", ".join(engines) or "none in this scenario"
        raise ScenarioError(f"client must be one with an engine ({known}), got {name!r}")
    return engines[name]


def _operators(client: Any, batch: StepBatch, *, is_on_the_spot: bool) -> list[OperatorTime]:
    return explained(client.predictor, batch, is_on_the_spot=is_on_the_spot)


def _explained(
    built: Built,
    client: Any,
    batch: StepBatch,
    *,
    is_on_the_spot: bool = False,
    moment: tuple[float, int] | None = None,
    notes: tuple[str, ...] = (),
) -> StepExplained:
    machine, traits = client.traits.machine, traits_of(client.predictor)
    if (ranks := max([group.pipeline for group in client.traits.engines], default=1)) > 1:
        notes += (_PASS.format(ranks=ranks),)
    gpu = machine.groups[0].gpu if machine is not None else None
    bar = _expected(client, batch)
    far = distance_warnings({client.name: {"": bar}}) if client.traits.times else ()
    warnings = [*far, *(each for each in built.warnings if each.kind not in _OF_RUNS)]
    if traits.steps_inside and not traits.steps_inside(batch, StepGrowth(batch.num_decodes)):
        warnings.append(ResultWarning(EXTRAPOLATED, _OUTSIDE))
    return StepExplained(
        client=client.name,
        title=built.scenario.headline,
        batch=batch,
        operators=tuple(merged(_operators(client, batch, is_on_the_spot=is_on_the_spot))),
        estimate=traits.estimate,
        gpu=gpu,
        num_engines=getattr(client, "data_parallel_size", 1),
        kv_entries=client.kv_entries,
        expected_error=bar,
        moment=moment,
        notes=notes,
        warnings=tuple(warnings),
    )
