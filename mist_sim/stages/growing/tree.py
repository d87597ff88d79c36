"""Tree search: chains of thought that branch step by step, and a reward model that prunes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from mist_sim.core.request import Content, Request, Stage
from mist_sim.core.visit import Served
from mist_sim.stages.growing.base import (
    Deliver,
    Growing,
    branch_content,
    first_branch,
    generation,
    prompt_content,
    require,
)
from mist_sim.stages.growing.passes import ModelPass
from mist_sim.stages.llm import Decode, Prefill, Prompted
from mist_sim.stages.stage_kinds import STAGES


@STAGES.register("tree_search")
@dataclass(frozen=True, slots=True, kw_only=True)
class TreeSearch(Growing, Prompted):
    """Beam search over steps of reasoning, pruned by a process reward model (MIST §II-E).

    Each round extends every kept chain by one step in `num_branches` ways, scores each extension,
    and keeps `beam_width` of them. Without texts the best are unknown, so they are drawn at random.
    The prompt of a step is the problem with the steps before; with prefix caching its KV entries
    are found.

    num_branches: continuations of each chain (>= 1). beam_width: chains kept (>= 1).
    num_rounds: steps of a chain (>= 1). num_step_tokens: tokens of a step (>= 1); None: the row's
        answer divided by the rounds, rounded up.
    reward_model: name of the model that scores a chain in one prefill pass; None: no scoring.
    model: model that generates; None: the request's. num_prompt_tokens: length of the problem (>=
        1); None: the row's prompt.
    """

    kind: ClassVar[str] = "tree_search"
    takes_lengths: ClassVar[bool] = True
    leads_to: ClassVar[tuple[str, ...]] = (Prefill.kind, Decode.kind, Deliver.kind)
    names_models: ClassVar[tuple[str, ...]] = ("model", "reward_model")
    num_branches: int
    num_rounds: int
    beam_width: int = 1
    num_step_tokens: int | None = None
    reward_model: str | None = None
    model: str | None = None

    def __post_init__(self) -> None:
        for name in ("num_branches", "num_rounds", "beam_width"):
            require(name, getattr(self, name))
        for name in ("num_step_tokens", "num_prompt_tokens"):
            if getattr(self, name) is not None:
                require(name, getattr(self, name))

    @property
    def num_input_tokens(self) -> int:
        """Tokens of the prompt; the branches share it, so it counts once."""
        return self.num_prompt_tokens or 0

    def with_lengths(self, num_prompt_tokens: int, num_output_tokens: int) -> Stage:
        """Return a copy that takes missing lengths from a row; the answer is split by rounds."""
        return replace(
            self,
            num_prompt_tokens=self.num_prompt_tokens or num_prompt_tokens,
            num_step_tokens=self.num_step_tokens or -(-num_output_tokens // self.num_rounds),
        )

    def follow(self, request: Request, rng: np.random.Generator) -> Served:
        """Return the first round."""
        if self.num_prompt_tokens is None or self.num_step_tokens is None:
            raise ValueError("the lengths of tree_search must be given outside of a template")
        chains = (prompt_content(request, self.num_prompt_tokens),)
        return _Round(search=self, chains=chains, num_before=0).follow(request, rng)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Round(Growing):
    """The continuation after a round: the next round, or the answer.

    chains: content of the chains that may be kept. num_before: rounds done.
    """

    kind: ClassVar[str] = "tree_search"
    search: TreeSearch
    chains: tuple[Content, ...]
    num_before: int

    def follow(self, request: Request, rng: np.random.Generator) -> Served:
        """Return the next round, with children of the kept chains; after the last, the answer."""
        search = self.search
        num_step, num_prompt = search.num_step_tokens or 0, search.num_prompt_tokens or 0
        if self.num_before == search.num_rounds:
            return Served(then=(Deliver(num_tokens=num_step * search.num_rounds),))
        num_kept = min(search.beam_width, len(self.chains))
        kept = np.sort(rng.choice(len(self.chains), num_kept, replace=False)).tolist()
        num_known = num_prompt + self.num_before * num_step
        stages: tuple[Stage, ...] = generation(num_known, num_step)
        if search.reward_model is not None:
            stages += (ModelPass(model=search.reward_model, num_tokens=num_known + num_step),)
        first = first_branch(request)
        parents = [self.chains[place] for place in kept for _ in range(search.num_branches)]
        chains = [
            chain + branch_content(request, first + number, num_step)
            for number, chain in enumerate(parents)
        ]
        children = [Request(0, None, stages, content=c, model=search.model) for c in chains]
        after = replace(
            self,
            chains=tuple(chains),
            num_before=self.num_before + 1,
        )
        return Served(then=(after,), children=tuple(children))
