"""How long batches take on the ranks of a pipeline."""

from __future__ import annotations

from mist_sim.core.batch import StepBatch
from mist_sim.hardware.predictors.decode_line import DecodeLine
from mist_sim.hardware.predictors.ranks import PipelinePredictor


class RankTimes:
    """The seconds of batches on every rank of a predictor.

    has_lines: whether the keys of decodes alone tell their time, where a rank has a `DecodeLine`.
    """

    def __init__(self, predictor: PipelinePredictor, *, has_lines: bool) -> None:
        self._ranks, self._has_lines = predictor.ranks, has_lines
        self._lines: dict[int, list[DecodeLine | None]] = {}  # by number of decodes

    def of(self, batch: StepBatch) -> list[float]:
        """Return the seconds of a batch; successive ranks that are equal are asked once."""
        if self._has_lines and not batch.chunks:
            return self._of_decodes(batch)
        seconds: list[float] = []
        before = None
        for rank in self._ranks:
            seconds.append(seconds[-1] if rank is before else rank.step_time(batch))
            before = rank
        return seconds

    def _of_decodes(self, batch: StepBatch) -> list[float]:
        """Return the seconds of a batch of decodes alone."""
        keys = batch.context_sum + batch.num_decodes - batch.num_read_again
        return [
            rank.step_time(batch) if line is None else line.step(keys)
            for rank, line in zip(self._ranks, self.lines(batch.num_decodes), strict=True)
        ]

    def lines(self, num_decodes: int) -> list[DecodeLine | None]:
        """Return the lines of so many decodes; None for ranks without one."""
        if num_decodes not in self._lines:
            of = [getattr(rank, "decode_line", None) for rank in self._ranks]
            self._lines[num_decodes] = [None if each is None else each(num_decodes) for each in of]
        return self._lines[num_decodes]
