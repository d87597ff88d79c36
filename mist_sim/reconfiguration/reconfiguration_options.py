"""Options of TaiChi's sliders that move during a run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf

from mist_sim.durations.base import not_reached
from mist_sim.units import Seconds, require_quantities


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A position that the sliders get at a time.

    at: seconds of the run (>= 0). num_p: clients that are P-heavy from then on (>= 1).
    s_p, s_d: tokens of a step of P-heavy and of D-heavy clients; s_d is in [1, s_p]. Answers flow
        at s_d = s_p, too, since roles stay.
    Raises ValueError for values out of range.
    """

    at: Seconds
    num_p: int
    s_p: int
    s_d: int

    def __post_init__(self) -> None:
        require_quantities(self)
        if not 0 <= self.at < inf:
            raise ValueError(f"at must be finite and >= 0 s, got {self.at}")
        if self.num_p < 1:
            raise ValueError(f"num_p must be >= 1, got {self.num_p}")
        if self.s_p < 1:
            raise ValueError(f"s_p must be >= 1, got {self.s_p}")
        if not 1 <= self.s_d <= self.s_p:
            raise ValueError(f"s_d must be in [1, s_p] ([1, {self.s_p}]), got {self.s_d}")


@dataclass(frozen=True, slots=True, kw_only=True)
class OnChange:
    """Search new sliders when the workload has changed.

    window: time between two looks of the gateway at the requests since its last look (> 0); much
        longer than an answer takes, since only finished answers have a known length.
    change: relative change of the rate, mean prompt or mean answer, compared with those of the last
        search, that triggers a search (> 0); before the first search, compared with the first
        window.
    delay: time from the look to the change, for the search and the change itself (>= 0). There are
        no looks meanwhile.
    chunks: chunk sizes to try, at least two, in tokens per step.
    Raises ValueError for values out of range.

    Source: TaiChi (arXiv:2508.01989) §3.1 searches upon a significant change, in minutes; how much
    is significant, and how long a window is, are ours.
    """

    window: Seconds = 120.0
    change: float = 0.5
    delay: Seconds = 120.0
    chunks: tuple[int, ...] = (256, 512, 1024, 2048)

    def __post_init__(self) -> None:
        require_quantities(self)
        if not 0 < self.window < inf:
            raise ValueError(f"window must be finite and > 0 s, got {self.window}")
        if not 0 < self.change < inf:
            raise ValueError(f"change must be finite and > 0, got {self.change}")
        if not 0 <= self.delay < inf:
            raise ValueError(f"delay must be finite and >= 0 s, got {self.delay}")
        if len(set(self.chunks)) < 2 or min(self.chunks) < 1:
            raise ValueError(
                f"chunks must be two sizes of >= 1 token or more, got {list(self.chunks)}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconfigure:
    """How clients with roles p_heavy and d_heavy change role and chunk during a run.

    They change between two steps, keep their requests, and are never out of service.

    schedule: positions of the sliders at given times.
    on_change: searches positions when the workload has changed; None: no search.
    Raises ValueError unless exactly one of the two is set, and for two changes at one time.
    """

    schedule: tuple[Change, ...] = ()
    on_change: OnChange | None = None

    def __post_init__(self) -> None:
        if bool(self.schedule) == (self.on_change is not None):
            got = "both" if self.schedule else "neither"
            raise ValueError(f"schedule or on_change must be given, and not both, got {got}")
        times = [change.at for change in self.schedule]
        if sorted(set(times)) != times:
            raise ValueError(f"schedule must have times that increase, got {times}")

    def not_by(self, end: float) -> Iterator[tuple[str, str]]:
        """Yield (place in the file, when) of what never came in a run that ended after `end` s."""
        for position, change in enumerate(self.schedule):
            yield from not_reached(f"reconfigure.schedule.{position}", [change.at], end)
        if self.on_change is not None and end < self.on_change.window:
            yield "reconfigure.on_change", f"at its first look, at {self.on_change.window:g} s"
