"""The kind of load of a run, and how its requests arrive: expected errors differ by both.

The bounds lie in gaps between measured loads (docs/background/error_bars.md): ML.ENERGY's closed
loops have prompts of 1,024 and 4,096 tokens, and 8, 16, 32 and more requests at a time; their
answers are either at most half as long as their prompts, or at least as long.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mist_sim.core.recorder import Recorder
from mist_sim.metrics.requests import Counted
from mist_sim.metrics.together import together

LONG_PROMPTS, LOW_LOAD = "long prompts", "low load"
DECODE_HEAVY, OTHER_LOAD = "decode-heavy", "other load"
LOADS = (LONG_PROMPTS, LOW_LOAD, DECODE_HEAVY, OTHER_LOAD)
"""The kinds of load; a run has the first one whose rule it keeps."""

BURSTS, CLOSED, OPEN = "bursts", "closed loops", "open loops"
ARRIVALS = (BURSTS, CLOSED, OPEN)
"""How requests arrive: half of them or more at once; as others end; or by themselves."""


class Load(NamedTuple):
    """A kind of load, one of `LOADS`, and one of `ARRIVALS`; "" for what is not known."""

    kind: str
    arrivals: str


LONG_PROMPT = 2048  # tokens: half way between 1,024 and 4,096, as a ratio
_TOGETHER = 0.5  # of the requests that come at once: a burst
LOW_BATCH = 16  # requests: of 8, 16, 32, ... the largest that errs like the least


def load_of(prompt_tokens: float, output_tokens: float, batch: float) -> str:
    """Return the kind of load, one of `LOADS`.

    prompt_tokens, output_tokens: means per request. batch: mean number of requests that an engine
        decodes at a time while it decodes; NaN without decodes.
    """
    if prompt_tokens >= LONG_PROMPT:
        return LONG_PROMPTS
    if batch <= LOW_BATCH:
        return LOW_LOAD
    return DECODE_HEAVY if output_tokens >= prompt_tokens else OTHER_LOAD


def load_of_run(run: Counted) -> Load | None:
    """Return the load that a run had; None if no request finished."""
    c, done = run.c, run.done
    if not done.any():
        return None
    prompt_tokens = float(c["num_prompt_tokens"][done].mean())
    output_tokens = float(c["num_output_tokens"][done].mean())
    arrival = c["arrival_time"][done]
    together = len(arrival) > 1 and float((arrival == arrival.min()).mean()) >= _TOGETHER
    return Load(
        load_of(prompt_tokens, output_tokens, mean_batch(run.recorder, run.warmup)),
        BURSTS if together else OPEN if run.open_loop else CLOSED,
    )


def mean_batch(recorder: Recorder, after: float = 0.0) -> float:
    """Return the mean number of decodes per step, over steps that decode; NaN without any.

    after: runs of steps that begin before this time do not count (seconds).
    """
    num_tokens = num_steps = 0
    for tracks in together(recorder):
        rows = tracks.runs
        counted = (rows["start"] >= after) & (rows["num_decodes"] > 0)
        steps = rows["num_steps"][counted].astype(np.int64)
        num_steps += int(steps.sum())
        num_tokens += int((steps * rows["num_decodes"][counted]).sum())
    return num_tokens / num_steps if num_steps else float("nan")
