"""Chunked prefill: decodes first, prompt chunks fill the token budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from mist_sim.checks import Positive, Range
from mist_sim.clients.scheduling.base import SCHEDULERS, Scheduler
from mist_sim.clients.scheduling.lane_view import Inside, LaneView
from mist_sim.errors import did_you_mean

_ASKED = ("plan", "begin", "budget", "piece", "admits", "victim")  # of a scheduler of one's own


_INTERVAL = Range("[1, inf)", "1 computes prompts in every step")


@SCHEDULERS.register("chunked")
@dataclass(frozen=True, kw_only=True)
class ChunkedScheduler(Scheduler):
    """Sarathi-Serve and vLLM v1: decodes first, the rest of the budget for prompts.

    A decode takes one token of the budget, plus one for each draft that it verifies. Where the
    prefix cache keeps states, running requests take their tokens in order of admission instead.

    A prompt longer than the remaining budget is cut; the next steps continue it before another is
    admitted. A step that preempted a request admits no prompt (vLLM v1).

    max_num_batched_tokens: token budget of a step, at least max_num_seqs (vLLM's name). Default in
        scenarios: that of vLLM's server, 8,192 on GPUs of 70 GiB and more except A100s, 16,384 from
        160 GiB on under `engine: vllm-0.33`, else 2,048.
    long_prefill_token_threshold: most tokens that one prompt gets in a step, so that others can
        share it (vLLM's name); None: the whole budget. From `engine: vllm-0.33` on, not for a
        request that is alone.
    max_num_partial_prefills: number of prompts that may be in pieces at a time (vLLM v0's name; v1
        refuses it and sets no limit, nor does None); a prompt that fits whole into the remaining
        budget does not count. Needs long_prefill_token_threshold, which v0 derived as 4 % of
        max_model_len: without it at most one prompt is in pieces.
    scheduler_reserve_full_isl: whether a prompt is admitted only if all of it fits into the free
        memory, rather than its first piece (vLLM's name and default from 0.19 on; false before).
        Nothing is reserved either way: blocks are taken piece by piece.
    prefill_schedule_interval: prompts are computed in one of so many steps, and decodes run alone
        in between, unless more prompts wait than a step could admit (vLLM's name, from 0.24 on).
        Engines in lockstep count steps together; others count from the last step with a prompt,
        from `engine: vllm-0.33` on; before, it has no effect there.
    Source: MIST §III-E1, Fig. 3; Sarathi-Serve (OSDI 2024) Algorithm 3.
    """

    by_piece: ClassVar[bool] = True

    max_num_batched_tokens: int = 2048
    long_prefill_token_threshold: Positive[int] | None = None
    max_num_partial_prefills: Positive[int] | None = None
    scheduler_reserve_full_isl: bool = True
    prefill_schedule_interval: Annotated[int, _INTERVAL] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens must be >= max_num_seqs ({self.max_num_seqs}), "
                f"got {self.max_num_batched_tokens}; every running request may need one token"
            )
        self._check_kind()
        if "plan" in self.own_methods:
            self._check_plan()
        if self.max_num_partial_prefills and self.long_prefill_token_threshold is None:
            raise ValueError(
                "max_num_partial_prefills must be left out without long_prefill_token_threshold, "
                f"got {self.max_num_partial_prefills}; it has no effect, since a prompt that does "
                "not fit takes all that is left of a step (vLLM v0 then took a threshold of 4 % of "
                "max_model_len)"
            )

    # --- what a scheduler of one's own may say (the engine core asks; see `lane_view.py`) ------

    def plan(self, lane: LaneView) -> None:
        """Plan the whole step: `lane.run`, `lane.admit` and `lane.preempt` say who takes part.

        One's own alone is asked, at every step, and instead of the methods below. Requests that
        it does not name go on in a later step.
        """
        raise NotImplementedError

    def begin(self, lane: LaneView) -> None:
        """Begin a plan; one's own may let some give way (`lane.preempt`)."""

    def budget(self, lane: LaneView) -> int:
        """Return the tokens of the step: what the decodes leave is for prompts.

        At most `max_num_batched_tokens`.
        """
        return self.max_num_batched_tokens

    def piece(self, lane: LaneView, prompt: Inside, num_tokens: int, most: int) -> int:
        """Return how many of a prompt's `num_tokens` the step computes, at most `most`.

        It may be asked several times while a plan is made.
        """
        return most

    def admits(self, lane: LaneView, prompt: Inside, num_new: int) -> bool:
        """Tell whether the next prompt may come in, with so many tokens; it has room."""
        return True

    def victim(self, lane: LaneView, running: Sequence[Inside]) -> Inside:
        """Return which of those that run gives its blocks up, since these are short."""
        return running[-1]

    def _check_kind(self) -> None:
        """Raise ValueError for a class with options or methods that nothing would read."""
        kind = type(self)
        for owner in kind.__mro__[: kind.__mro__.index(ChunkedScheduler)]:
            options = [
                n
                for n, t in vars(owner).get("__annotations__", {}).items()
                if "ClassVar" not in str(t)
            ]
            if options and "__dataclass_params__" not in vars(owner):
                raise ValueError(
                    f"{owner.__name__} must be decorated with @dataclass(frozen=True, "
                    f"kw_only=True); without it its options are not read: {', '.join(options)}"
                )
            for name, member in vars(owner).items():
                is_new = callable(member) and not hasattr(ChunkedScheduler, name)
                if is_new and not self.own_methods and (hint := did_you_mean(name, _ASKED)):
                    raise ValueError(f"the engine asks no {owner.__name__}.{name}{hint}")

    def _check_plan(self) -> None:
        """Raise ValueError if a plan of one's own goes with what it decides itself."""
        name = type(self).__name__
        if self.swaps_overlap:
            raise ValueError(
                f"preemption must not be async_swap with {name}: its `plan` would have to know "
                "which blocks are on their way to the host; use swap or recompute"
            )
        if others := sorted(self.own_methods - {"plan"}):
            raise ValueError(
                f"{name} must not have {', '.join(others)} beside `plan`, which says all that they "
                "say; leave them or `plan` out"
            )
        for option, is_set in (
            ("max_num_partial_prefills", self.max_num_partial_prefills is not None),
            ("prefill_schedule_interval", self.prefill_schedule_interval != 1),
        ):
            if is_set:
                raise ValueError(
                    f"{option} must be left out with {name}, whose `plan` says which prompts a "
                    f"step computes, got {getattr(self, option)}"
                )

    @property
    def own_methods(self) -> frozenset[str]:
        """Which of these a subclass has of its own."""
        kind = type(self)
        return frozenset(n for n in _ASKED if getattr(kind, n) is not getattr(ChunkedScheduler, n))

    def cannot_verify(self, num_drafts: int) -> str | None:
        """Return the token budget that the drafts of a full step need, where it is too small."""
        needed = self.max_num_seqs * (1 + num_drafts)
        if self.max_num_batched_tokens >= needed:
            return None
        return (
            f"have max_num_batched_tokens >= max_num_seqs x (1 + num_speculative_tokens) = "
            f"{needed}, got {self.max_num_batched_tokens}; every running request verifies its "
            f"drafts in every step"
        )
