"""A batch by hand: prompts, decodes and their context, checked against the engine's limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mist_sim.core.batch import StepBatch
from mist_sim.errors import ScenarioError, brief


@dataclass(frozen=True, slots=True)
class HandBatch:
    """The work of a step of an engine; all engines of a client (data_parallel_size) do as much.

    prompts: (new tokens, tokens of context before them) of each prompt. decodes: answers that
    get a token. context: tokens that each of these has in the cache.
    Raises ScenarioError for an empty batch, and for numbers that cannot be.
    """

    prompts: tuple[tuple[int, int], ...] = ()
    decodes: int = 0
    context: int = 0

    def __post_init__(self) -> None:
        if self.decodes < 0:
            raise ScenarioError(f"decodes must be >= 0, got {self.decodes}")
        if not (self.prompts or self.decodes):
            raise ScenarioError("a step needs a prompt or a decode; give --prompts or --decodes")
        for new, context in self.prompts:
            if new < 1 or context < 0:
                raise ScenarioError(
                    f"prompts must have >= 1 new tokens after a context >= 0, got {new}@{context}"
                )
        if self.decodes and self.context < 1:
            raise ScenarioError(f"context must be >= 1 token with decodes, got {self.context}")
        if self.context and not self.decodes:
            raise ScenarioError(
                "context must be left out without decodes; that of a prompt stands behind its @"
            )

    @classmethod
    def read(cls, prompts: str | None, decodes: int, context: int) -> HandBatch:
        """Return it with prompts from text such as "512,2048@1024". Raises ScenarioError."""
        return cls(_prompts(prompts) if prompts is not None else (), decodes, context)

    def for_engine(self, client: Any) -> StepBatch:
        """Return the batch as a step of a client of type llm.

        Raises ScenarioError where no scheduler of that client would make such a step.
        """
        scheduler, longest = client.config.scheduler, client.config.max_model_len
        num_drafts = 0
        if (drafts := client.config.speculative_config) is not None:
            num_drafts = drafts.num_speculative_tokens
        per_decode = 1 + num_drafts
        tokens = sum(new for new, _ in self.prompts) + self.decodes * per_decode
        lengths = [new + context for new, context in self.prompts]
        lengths += [self.context + per_decode] if self.decodes else []
        blocks = (
            client.config.kv_cache.block_size * client.num_gpu_blocks // client.data_parallel_size
        )
        sizes = [new + context for new, context in self.prompts]
        held = sum(sizes) + self.decodes * (self.context + per_decode)
        chunk = getattr(scheduler, "max_num_batched_tokens", None)
        num_seqs = len(self.prompts) + self.decodes
        rules: list[tuple[str, int, int | None, str]] = [
            ("sequences", num_seqs, scheduler.max_num_seqs, "raise scheduler.max_num_seqs"),
            ("tokens", tokens, chunk, "raise scheduler.max_num_batched_tokens"),
            ("tokens of its longest sequence", max(lengths), longest, "raise max_model_len"),
            ("tokens in the KV cache", held, blocks, "take fewer or shorter sequences"),
        ]
        for what, asked, most, instead in rules:
            if most is not None and asked > most:
                raise ScenarioError(
                    f"{client.name}: a step must have at most {most:,} {what}, got {asked:,}; "
                    f"{instead}"
                )
        return StepBatch(
            self.prompts,
            self.decodes,
            self.decodes * self.context,
            longest_context=self.context if self.decodes else None,
            num_drafts=num_drafts,
        )


def _prompts(text: str) -> tuple[tuple[int, int], ...]:
    found = []
    for word in text.split(","):
        new, _, context = word.strip().partition("@")
        if not new.isdecimal() or not (context or "0").isdecimal() or len(word) > 20:
            raise ScenarioError(
                "--prompts must be numbers of new tokens, each with the context before it behind "
                f"an @, such as 512,2048@1024; got {brief(word)}"
            )
        found.append((int(new), int(context or 0)))
    return tuple(found)
