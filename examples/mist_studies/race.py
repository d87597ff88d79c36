"""Which design gives the most tokens for a dollar: each is asked whether it beats the best so far.

A design is run at the rate at which it would give 2 % more than the best. If it does not keep the
limits there, it keeps them at no higher rate: it is no clear winner, and one run has shown it. If
it does, the highest rate that it keeps is searched, and it is the best. So all designs are tried,
and none that is left out is ahead by more than 2 %.

Most fail clearly, and a short run tells. Since short runs flatter a design, whose queues have not
grown yet, only long ones tell that limits are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from designs import Design
from measuring import Measured, Question, measure

LENGTHS = (400, 1_500, 6_000)
"""Requests of runs at one rate. The last decides; before it, only clear misses end the matter."""

AHEAD = 1.02
"""How many times the tokens for a dollar a design must give to take the lead."""

_CLEAR = 2.0  # times a limit, in a run that is too short to decide
_UP = 1.16  # from a rate that is kept to the next: four steps of 1.04, which halving finds
_HALVINGS = 6  # from the rate of an overload, until a design keeps no rate
_WAVE = 16  # designs at most that have the same best to beat, whatever the number of processes

Try = Callable[[tuple[Design, float]], Measured | None]
"""Runs a design at a rate, 1/s; None where it does not keep the limits there."""


def attempt(
    question: Question, lengths: tuple[int, ...], pair: tuple[Design, float]
) -> Measured | None:
    """Run a design at a rate, 1/s, ever longer until it clearly misses a limit.

    Returns the longest run if it is stable and keeps the limits, else None.
    """
    design, rate = pair
    for number in lengths:
        changes = {"arrivals.rate": f"{rate!r} /s", "lengths.num_requests": number}
        found = measure(question, design, **changes)
        if found.over(question) > _CLEAR or found.refused or found.stability == "unstable":
            return None
    return found if found.keeps(question) and found.stability == "stable" else None


@dataclass(frozen=True)
class Race:
    """A race of designs.

    tokens: of a mean answer. starts: rates (1/s) at which designs are overloaded, or nearly.
    bounds: rates that are proved to be beyond them. run: of a design at a rate.
    run_all: a `map`, over processes perhaps. tell: of each design that takes the lead.
    """

    tokens: float
    dollars: Mapping[Design, float]
    starts: Mapping[Design, float]
    bounds: Mapping[Design, float]
    run: Try
    run_all: Callable[[Try, Iterable[tuple[Design, float]]], Iterable[Measured | None]] = map
    tell: Callable[[Measured], None] | None = None

    def best(self, designs: Iterable[Design], best: Measured | None = None) -> Measured | None:
        """Return the design with most tokens for a dollar; None where none keeps any rate.

        designs: those that promise most first, which saves time and changes nothing else.
        best: what they have to beat.
        """
        left = list(designs)
        while best is None and left:
            best = self.goodput(left.pop(0))
        begin = 0
        while best is not None and begin < len(left):
            wave = left[begin : begin + min(begin + 2, _WAVE)]
            begin += len(wave)
            asked = [(design, self._beating(best, design)) for design in wave]
            possible = [pair for pair in asked if pair[1] <= self.bounds[pair[0]]]
            for each in self.run_all(self.run, possible):
                best = self._overtaken(best, each) if each else best
        return best

    def goodput(self, design: Design) -> Measured | None:
        """Return a design at the highest rate that it keeps; None where it keeps none."""
        rate = min(self.starts[design], self.bounds[design])
        high = None
        for _ in range(_HALVINGS):
            found = self.run((design, rate))
            if found is not None:
                return self._highest(found, high)
            rate, high = rate / 2, rate
        return None

    def _overtaken(self, best: Measured, each: Measured) -> Measured:
        """Return the better of two; `each` kept a rate that beat an earlier best."""
        rate = self._beating(best, each.design)
        found = each if each.rate >= rate else self.run((each.design, rate))
        if found is None:
            return best
        won = self._highest(found)
        if self.tell is not None:
            self.tell(won)
        return won

    def _beating(self, best: Measured, design: Design) -> float:
        """Return the rate at which a design would be ahead of the best."""
        return AHEAD * best.tokens_per_dollar * self.dollars[design] / (3600 * self.tokens)

    def _highest(self, found: Measured, high: float | None = None) -> Measured:
        """Return a design that keeps a rate at the highest, to 2 %, of those below `high`."""
        while high is None or high / found.rate > AHEAD:
            rate = found.rate * _UP if high is None else (found.rate * high) ** 0.5
            more = self.run((found.design, rate))
            if more is None:
                high = rate
            else:
                found = more
        return replace(found, throughput=found.rate * self.tokens)
