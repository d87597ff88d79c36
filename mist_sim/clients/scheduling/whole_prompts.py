"""The policies that compute a batch of whole prompts in one step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from mist_sim.checks import Positive
from mist_sim.clients.scheduling.base import SCHEDULERS, Scheduler
from mist_sim.clients.scheduling.memory_needs import MemoryNeeds
from mist_sim.clients.sequence_state import SequenceState

PromptsCome = Literal["beside decodes", "apart", "when idle"]
"""When whole prompts come in: with the decodes, in a step of their own, or when none runs."""


@dataclass(frozen=True, kw_only=True)
class WholePromptScheduler(Scheduler):
    """Prompts are never cut.

    max_num_batched_tokens: prompt tokens of one step; a longer prompt is refused (vLLM v0
        ignores it), and a preempted request that has grown beyond it is computed alone. None:
        as many as memory holds (vLLM v0 defaults to the model's maximum length).
    """

    prompts_come: ClassVar[PromptsCome]

    max_num_batched_tokens: Positive[int] | None = None

    def refusal(self, needs: MemoryNeeds, sequence: SequenceState) -> str | None:
        """Return why a sequence can never be served: for a prompt that no step can take, too."""
        limit = self.max_num_batched_tokens
        num_to_go = 0 if sequence.waits_to_decode else sequence.num_tokens - sequence.num_brought
        if limit is not None and num_to_go > limit:
            return (
                f"a prompt of {num_to_go} tokens exceeds "
                f"max_num_batched_tokens={limit}; raise it or use the chunked scheduler"
            )
        return super().refusal(needs, sequence)


@SCHEDULERS.register("continuous")
@dataclass(frozen=True, kw_only=True)
class ContinuousScheduler(WholePromptScheduler):
    """Orca and vLLM v0: as soon as a prompt fits, the running decodes wait for its prefill.

    A step is either a batch of whole prompts or a decode of all running requests.
    Source: MIST §II-B and §III-E1, Fig. 3(b); vLLM (SOSP 2023) §4.5.
    """

    prompts_come: ClassVar[PromptsCome] = "apart"


@SCHEDULERS.register("mixed")
@dataclass(frozen=True, kw_only=True)
class MixedScheduler(WholePromptScheduler):
    """Whole prompts join the step of the running decodes, which ride along.

    max_num_batched_tokens limits the prompts; the decodes come on top of it. Decodes are not
    stalled, but a step lasts as long as its prompts take. No prompt is admitted in a step that
    preempted one.
    Source: MIST §II-B and §III-E1; Splitwise (ISCA 2024) §IV, mixed batching.
    """

    prompts_come: ClassVar[PromptsCome] = "beside decodes"


@SCHEDULERS.register("static")
@dataclass(frozen=True, kw_only=True)
class StaticScheduler(WholePromptScheduler):
    """FasterTransformer: requests that wait when the engine is idle form a batch.

    Its prompts are computed in one step, then all decode together. A request leaves when it has its
    tokens, and its seat stays empty until all have left. A preempted request is computed again with
    a later batch. max_num_batched_tokens limits the prompts of a batch.
    Source: MIST §II-B and §III-E1, Fig. 3(a).
    """

    prompts_come: ClassVar[PromptsCome] = "when idle"
    takes_over: ClassVar[bool] = False
