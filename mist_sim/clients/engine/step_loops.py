"""The loops that an engine may take."""

from __future__ import annotations

from typing import Literal, get_args

StepLoop = Literal["auto", "step", "general"]
STEP_LOOPS: tuple[str, ...] = get_args(StepLoop)
