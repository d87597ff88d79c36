"""Published acceptance rates of drafts, by method and kind of text, for runs that say none.

Sources give the tokens of a step by the number of drafts, or the acceptance by position. Both
become the chance that the first draft is accepted, and that a later one is if all before it were.
With n-grams the first one includes steps that find nothing to draft.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from importlib.resources import files
from itertools import accumulate
from operator import mul
from typing import Literal, NamedTuple, get_args

Text = Literal["chat", "code", "summary", "rewrite"]
TEXTS: tuple[str, ...] = get_args(Text)


class Chances(NamedTuple):
    """That the first draft is accepted, and a later one if all before it were."""

    first: float
    later: float

    def rates(self, num_drafts: int) -> tuple[float, ...]:
        """Return the acceptance rate of each of so many drafts."""
        return (self.first, *[self.later] * (num_drafts - 1))

    def tokens_a_step(self, num_drafts: int) -> float:
        """Return the mean tokens of a decode step with so many drafts, the model's own included."""
        return 1.0 + float(sum(accumulate(self.rates(num_drafts), mul)))


class Published(NamedTuple):
    """What sources tell: the chances to assume, and the lowest and the highest of each.

    Those of the first draft and of later ones may be of different sources.
    """

    chances: Chances
    low: Chances
    high: Chances
    source: str


def _published() -> dict[str, dict[str, Published]]:
    found: dict[str, dict[str, Published]] = {}
    text = files("mist_sim.models").joinpath("acceptance.toml").read_text("utf-8")
    for row in tomllib.loads(text)["published"]:
        chances, low, high = (Chances(*row[name]) for name in ("chances", "low", "high"))
        published = Published(chances, low, high, row["source"])
        for method in row["methods"]:
            found.setdefault(method, {}).update(dict.fromkeys(row["texts"], published))
    return found


PUBLISHED: Mapping[str, Mapping[str, Published]] = _published()
"""By drafting method, and by kind of text."""


def assumed_acceptance(method: str, text: str, num_drafts: int) -> str:
    """Return what is assumed of drafts, its effect, how far sources differ, and which they are."""
    found = PUBLISHED[method][text]
    tokens = found.chances.tokens_a_step(num_drafts)
    low, high = (each.tokens_a_step(num_drafts) / tokens - 1 for each in (found.low, found.high))
    first, later = found.chances
    rates = f"{first:g}" if first == later or num_drafts == 1 else f"{first:g}, then {later:g}"
    return (
        f"{rates} ({method}, {text}): {tokens:.2f} tokens a decode step, published ones "
        f"{100 * low:+.0f} to {100 * high:+.0f} % ({found.source})"
    )
