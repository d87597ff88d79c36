"""The kind of load of a run, as far as its expected errors differ by it.

The bounds lie in gaps of what was measured (docs/background/error_bars.md): closed loops have
prompts of 1,024 and 4,096 tokens, and 8, 16, 32 and more requests at a time, as ML.ENERGY's runs
have; their answers have up to half as many tokens as their prompts, or as many and more.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mist_sim.metrics.records.recorder import ColumnRecorder
from mist_sim.metrics.requests.rates import Mask

LONG_PROMPTS, LOW_LOAD = "long prompts", "low load"
DECODE_HEAVY, OTHER_LOAD = "decode-heavy", "other load"
LOADS = (LONG_PROMPTS, LOW_LOAD, DECODE_HEAVY, OTHER_LOAD)
"""The kinds of load; a run has the first one whose rule it keeps."""

LONG_PROMPT = 2048  # tokens: half way between 1,024 and 4,096, as a ratio
LOW_BATCH = 16  # requests: of 8, 16, 32, ... the largest that errs like the least


def load_of(prompt_tokens: float, output_tokens: float, batch: float) -> str:
    """Return the kind of load, one of `LOADS`.

    prompt_tokens, output_tokens: means of a request. batch: how many requests an engine decodes at
    a time, in the mean while it decodes; NaN where nothing is decoded.
    """
    if prompt_tokens >= LONG_PROMPT:
        return LONG_PROMPTS
    if batch <= LOW_BATCH:
        return LOW_LOAD
    return DECODE_HEAVY if output_tokens >= prompt_tokens else OTHER_LOAD


def load_of_run(
    recorder: ColumnRecorder, c: dict[str, Any], done: Mask, warmup: float
) -> str | None:
    """Return the kind of load that a run had; None where no request finished.

    c: the columns of its requests. done: those that count. warmup: seconds whose steps do not.
    """
    if not done.any():
        return None
    prompt_tokens = float(c["num_prompt_tokens"][done].mean())
    output_tokens = float(c["num_output_tokens"][done].mean())
    return load_of(prompt_tokens, output_tokens, mean_batch(recorder, warmup))


def mean_batch(recorder: ColumnRecorder, after: float = 0.0) -> float:
    """Return how many requests a step decodes, in the mean of all that decode any; NaN for none.

    after: steps in runs of steps that begin before this time do not count (seconds).
    """
    num_tokens = num_steps = 0
    for table in recorder.steps:
        rows: dict[str, Any] = table.columns()
        counted = (rows["start"] >= after) & (rows["num_decodes"] > 0)
        steps = rows["num_steps"][counted].astype(np.int64)
        num_steps += int(steps.sum())
        num_tokens += int((steps * rows["num_decodes"][counted]).sum())
    return num_tokens / num_steps if num_steps else float("nan")
