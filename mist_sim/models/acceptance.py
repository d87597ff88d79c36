"""Published acceptance rates of drafts, by method and kind of text, for runs that say none.

Sources give the tokens of a step by the number of drafts, or the acceptance by position. Both
become the chance that the first draft is accepted, and that a later one is if all before it were.
With n-grams the first one includes steps that find nothing to draft.
"""

from __future__ import annotations

from collections.abc import Mapping
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


# DeepSeek-V3: 0.85 to 0.90 over topics; the card: 3.20 tokens with seven drafts; 41044: 0.70, 0.29
# survive on random prompts, 0.77, 0.38 in other runs; 48892, GSM8K: 1.83 tokens with one draft, and
# 0.76, 0.62, 0.51, 0.42, 0.36, 0.31, 0.27, 0.24 survive with eight.
_MTP = Published(
    Chances(0.85, 0.63),
    Chances(0.70, 0.41),
    Chances(0.90, 0.83),
    "DeepSeek-V3 report §5.4.3; card of nebius/MTP-DeepSeek-V3-0324; vLLM pull requests 41044, "
    "48892",
)

# Chat: 0.73, 0.52, 0.35; 0.65, 0.40, 0.20; 0.72, 0.51, 0.33 survive with EAGLE-3 on MT-Bench;
# EAGLE-1 has 1.89 tokens with two drafts, 2.08 with four (16035); 0.81, 0.63, 0.48 survive (24536).
# Code: 1.79 and 1.81 tokens with one draft, 2.71 and 2.80 with three. Summary: 1.67 and 1.69, 2.25
# and 2.35. Rewrite: 0.77, 0.45, 0.24 survive.
_EAGLE = {
    "chat": Published(
        Chances(0.70, 0.65),
        Chances(0.61, 0.46),
        Chances(0.81, 0.77),
        "vLLM's test_acceptance_length.py on MT-Bench; vLLM pull request 16035; llama.cpp pull "
        "request 24536",
    ),
    "code": Published(
        Chances(0.80, 0.72),
        Chances(0.77, 0.56),
        Chances(0.81, 0.73),
        "vllm-project/speculators issue 563; vLLM pull request 24344",
    ),
    "summary": Published(
        Chances(0.68, 0.58),
        Chances(0.67, 0.56),
        Chances(0.69, 0.60),
        "vllm-project/speculators issue 563",
    ),
    "rewrite": Published(
        Chances(0.77, 0.56),
        Chances(0.77, 0.53),
        Chances(0.77, 0.58),
        "vLLM pull request 24344, edits of code",
    ),
}

# N-grams, chat: 1.37 and 1.66 tokens a step with three drafts in first and second turns, 1.40 and
# 1.77 with five. Rewrite: of 1,814 steps 821 had no draft; of the others 0.81, 0.74, 0.70, 0.68,
# 0.66 survive (24344); translations have 3.62 tokens with seven drafts. Draft models: three sizes
# of drafts, greedy and at temperature 1.
PUBLISHED: Mapping[str, Mapping[str, Published]] = {
    "ngram": {
        "chat": Published(
            Chances(0.28, 0.52),
            Chances(0.22, 0.45),
            Chances(0.34, 0.59),
            "TensorRT-LLM blog 7, first and second turns",
        ),
        "rewrite": Published(
            Chances(0.44, 0.94),
            Chances(0.44, 0.80),
            Chances(0.67, 0.94),
            "vLLM pull request 24344, edits of code; TensorRT-LLM blog 7, translations",
        ),
    },
    "eagle": _EAGLE,
    "eagle3": _EAGLE,
    "mtp": {"chat": _MTP, "code": _MTP, "summary": _MTP},
    "draft_model": {
        "chat": Published(
            Chances(0.71, 0.71),
            Chances(0.57, 0.57),
            Chances(0.75, 0.75),
            "Leviathan et al., arXiv 2211.17192, table 3, dialogues",
        ),
        "summary": Published(
            Chances(0.65, 0.65),
            Chances(0.53, 0.53),
            Chances(0.74, 0.74),
            "Leviathan et al., arXiv 2211.17192, table 3, CNN/DM",
        ),
    },
}
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
