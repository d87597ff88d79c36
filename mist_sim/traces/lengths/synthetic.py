"""Sources that draw request lengths: independent distributions, or the profile of a trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np

from mist_sim.durations import BLOCK
from mist_sim.errors import ScenarioError, brief
from mist_sim.traces.base import SAMPLERS, TraceRow, require_count
from mist_sim.traces.content import prefix_content
from mist_sim.traces.lengths.distributions import LengthDistribution, Tokens
from mist_sim.traces.profiles import load_profile, profile_names


@SAMPLERS.register("synthetic")
@dataclass(frozen=True, slots=True, kw_only=True)
class Synthetic:
    """Requests whose prompt and output lengths are drawn independently (MIST §III-B2).

    num_requests: how many (>= 1). prompt, output: distributions of their lengths in tokens.
    max_total_tokens: of prompt and output together (>= 2); requests with more are drawn again, both
        parts of them. None: any.
    Prompt and output have streams of their own: another `output` leaves the prompts as they are,
    but for those that `max_total_tokens` drops.
    """

    num_requests: int
    prompt: LengthDistribution
    output: LengthDistribution
    max_total_tokens: int | None = None

    def __post_init__(self) -> None:
        require_count("num_requests", self.num_requests)
        _require_total(self.max_total_tokens)

    @property
    def shortest_prompt(self) -> int:
        """Tokens that each prompt has at least."""
        return shortest_of(self.prompt)

    def sample_rows(self, rng: np.random.Generator) -> Iterator[TraceRow]:
        """Yield `num_requests` rows without times.

        Raises ScenarioError for a length below 1, and where hardly any draw is short enough.
        """
        prompt_rng, output_rng = rng.spawn(2)

        def draw() -> tuple[Tokens, Tokens]:
            prompts = self.prompt.sample(prompt_rng, BLOCK)
            outputs = self.output.sample(output_rng, BLOCK)
            return checked_lengths(prompts, self.prompt), checked_lengths(outputs, self.output)

        return _rows(self.num_requests, draw, self.max_total_tokens)


@SAMPLERS.register("profile")
@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Requests with the lengths of a real trace, prompt and output drawn together.

    num_requests: how many (>= 1). name: a shipped profile (see `mist_sim.traces.profiles`).
    A prompt is drawn from its quantiles, then the output from the quantiles of its prompt's bin,
    so both distributions and their dependence are kept. Rows are independent of one another.
    max_total_tokens: of prompt and output together (>= 2); requests with more are drawn again.
        None: any.
    """

    num_requests: int
    name: str = "azure-conv-2023"
    max_total_tokens: int | None = None

    def __post_init__(self) -> None:
        require_count("num_requests", self.num_requests)
        _require_total(self.max_total_tokens)
        if self.name not in profile_names():
            raise ValueError(
                f"name must be one of {', '.join(profile_names())}, got {brief(self.name)}"
            )

    def sample_rows(self, rng: np.random.Generator) -> Iterator[TraceRow]:
        """Yield `num_requests` rows without times.

        Raises ScenarioError where hardly any draw is short enough.
        """
        table = load_profile(self.name)
        return _rows(self.num_requests, lambda: table.sample(rng, BLOCK), self.max_total_tokens)


@SAMPLERS.register("prefix_repetition")
@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixRepetition:
    """Prompts that share beginnings, such as system prompts (vLLM's dataset of that name).

    num_requests: how many (>= 1). num_prefixes: different beginnings (>= 1); each request has
    one of them, all equally likely (vLLM deals them out evenly). prefix_len: their tokens.
    suffix, output: distributions of the tokens after it, which no other request shares, and of
    the answer.
    """

    num_requests: int
    suffix: LengthDistribution
    output: LengthDistribution
    num_prefixes: int = 10
    prefix_len: int = 256

    def __post_init__(self) -> None:
        for name in ("num_requests", "num_prefixes", "prefix_len"):
            require_count(name, getattr(self, name))

    @property
    def shortest_prompt(self) -> int:
        """Tokens that each prompt has at least."""
        return self.prefix_len + shortest_of(self.suffix)

    def sample_rows(self, rng: np.random.Generator) -> Iterator[TraceRow]:
        """Yield `num_requests` rows without times. Raises ScenarioError for a length below 1."""
        prefix_rng, suffix_rng, output_rng = rng.spawn(3)
        for start in range(0, self.num_requests, BLOCK):
            prefixes = prefix_rng.integers(self.num_prefixes, size=BLOCK)
            suffixes = checked_lengths(self.suffix.sample(suffix_rng, BLOCK), self.suffix)
            outputs = checked_lengths(self.output.sample(output_rng, BLOCK), self.output)
            drawn = zip(prefixes.tolist(), suffixes.tolist(), outputs.tolist(), strict=True)
            for prefix, suffix, output in islice(drawn, self.num_requests - start):
                content = prefix_content(prefix, self.prefix_len)
                yield TraceRow(self.prefix_len + suffix, output, None, None, content)


def shortest_of(distribution: LengthDistribution) -> int:
    """Return the tokens that a distribution gives at least; 1 where it does not say."""
    return getattr(distribution, "shortest", 1)


def checked_lengths(lengths: Tokens, distribution: LengthDistribution) -> Tokens:
    """Return lengths that a distribution drew. Raises ScenarioError for one below 1."""
    shortest = int(lengths.min())
    if shortest < 1:
        raise ScenarioError(f"lengths must be >= 1 token, got {shortest} from {distribution}")
    return lengths


def _require_total(most: int | None) -> None:
    if most is not None and most < 2:
        raise ValueError(f"max_total_tokens must be >= 2 or null, got {most}")


def _rows(
    num_rows: int, draw: Callable[[], tuple[Tokens, Tokens]], most: int | None
) -> Iterator[TraceRow]:
    """Yield rows from whole blocks, of at most so many tokens; what is left at the end is dropped.

    Raises ScenarioError where fewer than one draw in a thousand has no more.
    """
    num_left = num_rows
    while num_left:
        prompts, outputs = draw()
        if most is not None:
            fits = prompts + outputs <= most
            if np.count_nonzero(fits) * 1000 < BLOCK:
                raise ScenarioError(
                    f"max_total_tokens must leave one draw in 1,000 or more, got {most:,}; of "
                    f"{BLOCK:,} draws {np.count_nonzero(fits)} had no more, and the shortest had "
                    f"{int((prompts + outputs).min()):,}; raise it, or draw shorter lengths"
                )
            prompts, outputs = prompts[fits], outputs[fits]
        count = min(len(prompts), num_left)
        num_left -= count
        yield from map(TraceRow, prompts[:count].tolist(), outputs[:count].tolist())
