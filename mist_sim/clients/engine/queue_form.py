"""How a version of vLLM runs a pipeline: how many batches, and when it plans the next one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mist_sim.clients.engine_rules import EngineRules
    from mist_sim.clients.kv_cache import EngineMemory


@dataclass(frozen=True, slots=True)
class QueueForm:
    """The queue of batches of a pipeline.

    size: batches in it at most. stagger: if steps are planned ahead, the number of plans from one
    plan of a decode to its next; 0: a decode is planned when its last token has come. fills:
    whether plans that compute nothing fill the queue, and the oldest stays in it before the next
    plan. drains: whether a preempted request waits for all batches that compute it; otherwise it
    waits for those that give it a token, or with stagger for none (`early.py`).

    With stagger 1 the first rank waits for the tokens of the batch before, so batches never
    overlap; otherwise for those of the batch `stagger` plans before, unless all its answers ended.
    With three batches or more it also plans steps behind the end of an answer: it goes on until all
    tokens but one have come.

    Source: `max_concurrent_batches` and `EngineCore.step_with_batch_queue` in
    `vllm/v1/engine/core.py`; `AsyncScheduler` in `vllm/v1/core/sched/async_scheduler.py`.
    """

    size: int
    stagger: int = 0
    fills: bool = False
    drains: bool = False

    @property
    def readmits(self) -> bool:
        """Whether a preempted request may be admitted while its tokens are on their way."""
        return self.stagger > 0 and not self.drains


def queue_form(
    rules: EngineRules, memory: EngineMemory, num_ranks: int, obstacle: str, *, ahead: bool
) -> QueueForm | None:
    """Return how the engines of a client queue batches; None if they have virtual engines.

    num_ranks: of each. obstacle: the option that requires virtual engines (see
    `EngineConfig.no_batch_queue`).
    ahead: whether steps are planned ahead.
    """
    if num_ranks == 1 or not rules.batch_queue or obstacle or memory.cache_tiers:
        return None
    staggers = ahead and rules.staggers_decodes and rules.fills_queue
    stagger = (num_ranks if staggers else 1) if ahead else 0
    return QueueForm(
        num_ranks + staggers, stagger, fills=rules.fills_queue, drains=rules.drains_preempted
    )
