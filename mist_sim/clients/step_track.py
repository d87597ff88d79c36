"""The track of the steps of a client without lanes."""

from __future__ import annotations

from mist_sim.clients.kv_cache.moves import KvMove
from mist_sim.core.batch import StepBatch
from mist_sim.core.recorder import Recorder


class StepTrack:
    """Writes steps of one clock in order of time, from which energy and GPU time are computed.

    It opens a track of the client.
    """

    def __init__(self, recorder: Recorder, client_id: int) -> None:
        self._recorder = recorder
        self._number = recorder.add_track(client_id)

    def step(
        self,
        start: float,
        end: float,
        batch: StepBatch,
        *,
        num_waiting: int = 0,
        num_used_blocks: int = 0,
    ) -> None:
        """Write a step that has ended. start, end: seconds; not before the end of the last one."""
        self._recorder.record_steps(
            self._number, start, end, 1, batch, end - start, num_waiting, num_used_blocks, 0, 0
        )

    def move(self, move: KvMove, num_bytes: float, start: float, end: float) -> None:
        """Write which tokens' entries came for a visit, and when (seconds)."""
        write_move(self._recorder, self._number, move, num_bytes, start, end)


def write_move(
    recorder: Recorder,
    track: int,
    move: KvMove,
    num_bytes: float,
    start: float,
    end: float,
    *,
    again: bool = False,
) -> None:
    """Write on a track which tokens' entries were moved for a sequence, and when (seconds).

    again: whether the request had been preempted before, though it does not count it yet.
    """
    visit, places = move.sequence.visit, (move.kind, move.source, move.destination)
    again = again or visit.num_preemptions > 0
    recorder.moves.add(
        (visit.request.request_id, track, *places, move.num_tokens, num_bytes, start, end, again)
    )
