"""Tables of measured steps: which steps to measure, and the file that holds them."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from itertools import product
from pathlib import Path
from typing import Protocol

from mist_sim.checks import Checked, Positive
from mist_sim.core.batch import StepBatch
from mist_sim.hardware.predictors.measured.sampled import SamplePoints, StepSource, powers
from mist_sim.hardware.predictors.measured.timing_store import TimingStore
from mist_sim.hardware.tables.steps import COLUMNS
from mist_sim.models.spec import ModelSpec
from mist_sim.output import write_whole


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRange(Checked):
    """The largest steps that are measured, under vLLM's names.

    max_num_batched_tokens: new tokens of a prompt. max_num_seqs: decodes. max_context: tokens
    that the cache holds, for a prompt and for each decode. All >= 1.
    """

    max_num_batched_tokens: Positive[int] = 2048
    max_num_seqs: Positive[int] = 64
    max_context: Positive[int] = 4096

    @property
    def points(self) -> SamplePoints:
        """Where prompts alone and decodes alone are measured: four points a decade or so."""
        contexts = [0, *powers(min(256, self.max_context), self.max_context, 4)]
        return SamplePoints(
            new_tokens=powers(1, self.max_num_batched_tokens, 4),
            prompt_contexts=contexts,
            decodes=powers(1, self.max_num_seqs),
            decode_contexts=contexts,
        )

    @property
    def batches(self) -> list[StepBatch]:
        """All steps of a profile: prompts alone, decodes alone, and both together."""
        points = self.points
        prompts = list(product(points.new_tokens, points.prompt_contexts))
        decodes = list(product(points.decodes, points.decode_contexts))
        alone = [StepBatch(((new, context),)) for new, context in prompts]
        alone += [StepBatch((), n, n * each) for n, each in decodes]
        return [*alone, *_mixed(points)]


def _mixed(points: SamplePoints) -> Iterator[StepBatch]:
    """Yield steps of a prompt and decodes: a coarse grid up to the largest of each."""
    news, decodes = _ends(points.new_tokens), _ends(points.decodes)
    contexts = _ends(points.prompt_contexts)
    for new, context, n, each in product(news, contexts, decodes, contexts):
        yield StepBatch(((new, context),), n, n * each)


def _ends(values: Sequence[int]) -> list[int]:
    return sorted({values[0], values[len(values) // 2], values[-1]})


def measure(
    source: StepSource,
    batches: Iterable[StepBatch],
    store: TimingStore,
    progress: Callable[[int], None] = lambda num_measured: None,
) -> list[tuple[StepBatch, float]]:
    """Return every step with its seconds; steps in the store are not measured again.

    progress: called with the number of steps measured so far.
    """
    works = {_name(batch): batch for batch in batches}
    num_measured = 0

    def seconds_of(missing: Sequence[StepBatch]) -> Sequence[float]:
        nonlocal num_measured
        found = source.seconds(missing)
        num_measured += len(missing)
        progress(num_measured)
        return found

    seconds = store.timed(source.identity, works, seconds_of, at_once=1)
    return list(zip(works.values(), seconds, strict=True))


class Profiler(StepSource, Protocol):
    """A source that runs layers of a model on this machine; `mist_sim.profilers` offers it.

    Made with model, cluster, device, num_timed_layers, timing and seed. notes: what a table says of
    its measurements.
    """

    model: ModelSpec

    @property
    def device_name(self) -> str:
        """The device's own name."""

    @property
    def notes(self) -> Mapping[str, object]:
        """Description of the measurements in their table."""

    def dispatch_times(self) -> dict[str, float]:
        """Return seconds of host time to launch each module of a layer."""


def _name(batch: StepBatch) -> str:
    return f"step {batch.chunks} {batch.num_decodes} {batch.context_sum}"


def write_table(
    path: Path, steps: Iterable[tuple[StepBatch, float]], notes: Mapping[str, object]
) -> None:
    """Write steps into a file. Raises ScenarioError when it cannot be written."""
    write_whole(path, table_text(steps, notes))


def table_text(steps: Iterable[tuple[StepBatch, float]], notes: Mapping[str, object]) -> str:
    """Return steps in the form of our own: CSV, with notes as "# key: value" at the head."""
    file = StringIO(newline="")
    file.writelines(f"# {key}: {value}\n" for key, value in notes.items())
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    for batch, seconds in steps:
        new, context = batch.chunks[0] if batch.chunks else (0, 0)
        writer.writerow((new, context, batch.num_decodes, batch.context_sum, seconds))
    return file.getvalue()
