"""How a client re-shards its model between prompts and answers (Seesaw): the options."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from mist_sim.checks import Positive, Share, check_fields
from mist_sim.errors import ScenarioError
from mist_sim.units import Bytes, BytesPerSecond, Seconds

Policy = Literal[
    "transition_minimising",
    "prefill_prioritised",
    "decode_prioritised",
    "threshold",
    "ttft_bound",
]
Running = Literal["drain", "pause", "out"]

HOST_MEMORY = 80 * 2.0**30  # bytes a GPU (Seesaw 6.1)
SHARE_IN_USE = 0.5  # assumed: Seesaw 4.2 mentions thresholds without values
TO_PREFILL, TO_DECODE = 0.5, 0.1  # of a limit on TTFT; ours: docs/background/seesaw.md


@dataclass(frozen=True, kw_only=True)
class Resharding:
    """Re-sharding: the client changes between a layout for prompts and the engine's own.

    The engine's own sizes are those for decoding (Seesaw's c_d); these are for prompts (c_p). Both
    have the same number of copies and of GPUs.

    tensor_parallel_size: GPUs that share every layer while prompts are computed.
    pipeline_parallel_size: ranks that each hold some of the layers meanwhile.
    policy: when the client changes layout. transition_minimising computes prompts until the host's
        buffer is full of their KV entries, or no prompt waits, and answers until it is empty
        (Seesaw 4.2). ttft_bound has the buffer too; it changes to prompts when the next one has
        waited for long, and answers have had a step, or no answer is left, and to answers
        otherwise. The other policies have no buffer: prefill_prioritised computes a prompt as soon
        as it fits on the GPUs, decode_prioritised when all answers are complete, and threshold when
        they use less than a share of the KV blocks.
    threshold: that share, in (0, 1]; by default a half.
    ttft_limit: with ttft_bound, the limit on TTFT; the next two are shares of it (required).
    to_prefill: share of it that the next prompt has waited when the client goes to the prompts;
        without it a half. to_decode: share of it that the next prompt may have waited when the
        client changes to the answers it has; without it a tenth. Between the two the client stays
        in its layout, so that it does not go to and fro.
    running: what happens to incomplete answers when the buffer is empty and prompts wait: out moves
        their entries into the buffer, as soon as that leaves half of it for prompts, and they come
        back first; drain completes them before; pause leaves them on the GPUs while prompts are
        computed. By default, out.
    prefetch: whether entries come back from the buffer while prompts are computed, too, into blocks
        that the next prompts do not need (Seesaw 5.2). Without it, they do.
    host_memory: for KV entries, per GPU; by default 80 GiB, as in the paper.
    host_bandwidth: of each GPU's link to the host, in one direction; by default the GPU's own.
    host_copy_bandwidth: at which the host copies entries of each GPU from pinned to shared memory
        (Seesaw 5.2), behind the link; without it, that takes no time.
    kv_layout_efficiency: share of the link's bandwidth that copies of KV entries reach, in (0, 1]:
        1 for entries by head (HND), less by token (NHD), which has not been measured (Seesaw 5.2).
    Raises ScenarioError for options out of range or without effect.
    """

    tensor_parallel_size: Positive[int] = 1
    pipeline_parallel_size: Positive[int] = 1
    policy: Policy = "transition_minimising"
    threshold: Share | None = None
    ttft_limit: Seconds | None = None
    to_prefill: float | None = None
    to_decode: float | None = None
    running: Running | None = None
    prefetch: bool | None = None
    host_memory: Positive[Bytes] | None = None
    host_bandwidth: Positive[BytesPerSecond] | None = None
    host_copy_bandwidth: Positive[BytesPerSecond] | None = None
    kv_layout_efficiency: Share = 1.0

    def __post_init__(self) -> None:
        check_fields(self, ScenarioError)
        self._check_effect()
        if self.policy == "ttft_bound":
            self._check_bound()

    def _check_effect(self) -> None:
        for name, policy in (
            ("threshold", "threshold"),
            ("ttft_limit", "ttft_bound"),
            ("to_prefill", "ttft_bound"),
            ("to_decode", "ttft_bound"),
        ):
            if getattr(self, name) is not None and self.policy != policy:
                raise ScenarioError(f"{name} has no effect with policy: {self.policy}")
        if self.buffers:
            return
        for name in ("running", "prefetch", "host_memory", "host_copy_bandwidth"):
            if getattr(self, name) is not None:
                raise ScenarioError(
                    f"{name} has no effect with policy: {self.policy}, which has no buffer on the "
                    "host; transition_minimising has one"
                )

    def _check_bound(self) -> None:
        """Raise ScenarioError for a limit without effect, and shares in the wrong order."""
        if self.ttft_limit is None or not 0 < self.ttft_limit < math.inf:
            raise ScenarioError(
                "ttft_limit must be a time > 0 with policy: ttft_bound, such as 2 s, "
                f"got {self.ttft_limit}"
            )
        low, high = self.shares
        if not 0 <= low < high < math.inf:
            raise ScenarioError(
                f"to_decode must be >= 0 and below to_prefill, got {low:g} and {high:g}"
            )
        if self.running not in (None, "out"):
            raise ScenarioError(
                f"running must be out with policy: ttft_bound, got {self.running}: prompts that "
                "are due do not wait for answers"
            )

    @property
    def shares(self) -> tuple[float, float]:
        """Shares of the limit on TTFT: to the answers, to the prompts."""
        low = TO_DECODE if self.to_decode is None else self.to_decode
        return low, TO_PREFILL if self.to_prefill is None else self.to_prefill

    @property
    def buffers(self) -> bool:
        """Whether KV entries of prompts go to host memory."""
        return self.policy in ("transition_minimising", "ttft_bound")

    @property
    def assumed(self) -> tuple[str, ...]:
        """Unset options with assumed values."""
        found = []
        if self.buffers and self.host_memory is None:
            found.append("resharding.host_memory")
        if self.policy == "threshold" and self.threshold is None:
            found.append("resharding.threshold")
        if self.policy == "ttft_bound":
            shares = ("to_prefill", "to_decode")
            found += [f"resharding.{name}" for name in shares if getattr(self, name) is None]
        return tuple(found)
