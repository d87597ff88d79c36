"""A scheduler's decision: the work of the next steps, admissions and preemptions."""

from __future__ import annotations

from dataclasses import dataclass, field

from mist_sim.clients.kv_cache.moves import KvMove
from mist_sim.clients.sequence_state import SequenceState
from mist_sim.core.batch import AdapterWork, StepBatch


@dataclass(slots=True, eq=False)
class StepPlan:
    """The next work of an engine: `num_steps` steps with the same members.

    prefills: sequences in prefill with their prompt tokens per step.
    decodes: whether the running decodes take part.
    admitted, preempted: sequences that left and returned to the waiting queue.
    resumed: sequences that continue, since their KV entries have arrived or come back; they are not
        among the admitted.
    moves: moves of KV entries that start now. The first step waits for swaps; sequences whose
        entries come from elsewhere have reserved memory for them, and wait.
    dropped: sequences that can never run again, because they outgrew the whole cache.
    paused: running decodes that skip the plan's only step.
    padded: admitted prompts whose last token has drafts (`EngineRules.pads_prompts`).
    wait_time: seconds that the first step waits for swaps, loads, adapters and images.
    adapters: adapters of its tokens; None: the engine serves none.
    batch: of its only step, if sequences that have ended take part; None: it follows from the other
        fields.
    num_overruns: number of such sequences.
    is_disturbed: whether any running sequence had to give its memory up, also one that has ended.
    """

    num_steps: int = 1
    prefills: list[tuple[SequenceState, int]] = field(default_factory=list)
    decodes: bool = False
    admitted: list[SequenceState] = field(default_factory=list)
    preempted: tuple[SequenceState, ...] = ()
    resumed: tuple[SequenceState, ...] = ()
    moves: tuple[KvMove, ...] = ()
    dropped: tuple[SequenceState, ...] = ()
    paused: tuple[SequenceState, ...] = ()
    padded: tuple[SequenceState, ...] = ()
    wait_time: float = 0.0
    adapters: AdapterWork | None = None
    batch: StepBatch | None = None
    num_overruns: int = 0
    is_disturbed: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether it computes and changes nothing."""
        return not (self.prefills or self.decodes or self.moves or self.preempted or self.dropped)
