"""Stages that decide what follows them: branches, searches, tool calls, passes of other models."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, get_args

import numpy as np

from mist_sim.core.content_ids import OF_BRANCH, content_id, leading
from mist_sim.core.request import Content, Request, Stage
from mist_sim.core.visit import Longer, Served
from mist_sim.stages.llm import Decode, Prefill, Prompted
from mist_sim.stages.processing import ToolCall
from mist_sim.stages.stage_kinds import STAGES
from mist_sim.units import Seconds

__all__ = ["Augment", "BestOfN", "Deliver", "Growing", "ModelPass", "ToolLoop", "TreeSearch"]


_MOST_BRANCHES = 2**20  # stages per request: ten times the limit of growth


@dataclass(frozen=True, slots=True, kw_only=True)
class Growing(Stage, ABC):
    """A stage that decides when served what follows: further stages, and children to wait for.

    An `ApplicationClient` serves it at once; a `SequentialClient` serves it after a service time.

    is_work: whether it processes a text and needs a worker; applications then do not serve it.
    leads_to: kinds of stages that it adds; the scenario needs clients for them.
    names_models: its parameters that name models; the scenario needs clients for these.
    """

    grows: ClassVar[bool] = True
    is_work: ClassVar[bool] = False
    leads_to: ClassVar[tuple[str, ...]] = ()
    names_models: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def follow(self, request: Request, rng: np.random.Generator) -> Served:
        """Return the outcome, with the stages that follow. rng: the client's own generator."""


@STAGES.register("deliver")
@dataclass(frozen=True, slots=True, kw_only=True)
class Deliver(Growing):
    """Deliver an answer that other requests have generated: all its tokens at once.

    num_tokens: length of the answer (>= 1). They are output tokens of the request, with no gaps
        between.
    """

    kind: ClassVar[str] = "deliver"
    num_tokens: int

    def __post_init__(self) -> None:
        require("num_tokens", self.num_tokens)

    @property
    def num_new_tokens(self) -> int:
        """The tokens that it hands to the user."""
        return self.num_tokens

    def longer(self, num_tokens: int) -> Deliver:
        """Return a copy that hands over so many tokens more."""
        return Deliver(num_tokens=self.num_tokens + num_tokens)

    def follow(self, request: Request, rng: np.random.Generator) -> Served:
        """Return an empty outcome."""
        return Served()


def require(name: str, value: int, least: int = 1) -> None:
    """Raise ValueError for a number below its minimum."""
    if value < least:
        raise ValueError(f"{name} must be >= {least}, got {value}")


def branch_content(request: Request, number: int, num_tokens: int) -> Content:
    """Return content that only one branch of a request has. number: of the branch, from 1."""
    return ((content_id(OF_BRANCH, request.request_id * _MOST_BRANCHES + number), num_tokens),)


def first_branch(request: Request) -> int:
    """Return the number of a request's next branch, unique among its branches.

    Each branch is an added child or stage, and both are counted.
    """
    return 1 if request.growth is None else 1 + request.growth.num_added


def prompt_content(request: Request, num_tokens: int) -> Content:
    """Return the content of a request's prompt, so that its branches share its KV entries.

    This is the content of its row, cut to the prompt's length; without it, content unique to the
    request.
    """
    kept = leading(request.content, num_tokens)
    num_left = num_tokens - sum([length for _, length in kept])
    return kept + branch_content(request, 0, num_left) if num_left else kept


def generation(num_prompt_tokens: int, num_output_tokens: int) -> tuple[Stage, Stage]:
    """Return the stages of a model's answer."""
    return (
        Prefill(num_prompt_tokens=num_prompt_tokens),
        Decode(num_tokens=num_output_tokens - 1),
    )


@STAGES.register("augment")
@dataclass(frozen=True, slots=True, kw_only=True)
class Augment(Growing):
    """Put a prompt into a template, which lengthens it (MIST §II-A).

    num_added_tokens: tokens of instructions and examples (>= 1), added to the next prompt.
    num_tokens: length of the input; 0: in a template, the length of the row's prompt.
    task: name of the task, for clients with times per task.
    """

    kind: ClassVar[str] = "augment"
    is_work: ClassVar[bool] = True
    takes_lengths: ClassVar[bool] = True
    num_added_tokens: int
    num_tokens: int = 0
    task: str = "augment"

    def __post_init__(self) -> None:
        require("num_added_tokens", self.num_added_tokens)
        require("num_tokens", self.num_tokens, 0)

    def with_lengths(self, num_prompt_tokens: int, num_output_tokens: int) -> Augment:
        """Return a copy that adds as many tokens as the row's prompt has, if none are given."""
        return self if self.num_tokens else replace(self, num_tokens=num_prompt_tokens)

    def follow(self, request: Request, rng: np.random.Generator) -> Served:
        """Return an outcome that lengthens the next prompt."""
        return Served(changes=(Longer(Prompted, self.num_added_tokens),))


Text = Literal["prompt", "answer", "both"]


@STAGES.register("model_pass")
@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPass(Growing):
    """One prefill pass of another model: intent, safety, or the score of an answer.

    The pass is a request of its own to a client of that model; this request waits for it.

    model: its name, as clients serve it, such as qwen2.5-math-prm-7b or shieldgemma-2b.
    num_tokens: tokens to read (> 0); None: those of `text` in the workload row.
    text: text to read in a template's row: prompt, answer or both.
    Source: MIST §IV-A4 (classification by a model of about 2B parameters; PRMs and ORMs as a
    single prefill pass).
    """

    kind: ClassVar[str] = "model_pass"
    takes_lengths: ClassVar[bool] = True
    leads_to: ClassVar[tuple[str, ...]] = (Prefill.kind,)
    names_models: ClassVar[tuple[str, ...]] = ("model",)
    model: str
    num_tokens: int | None = None
    text: Text = "both"

    def __post_init__(self) -> None:
        if self.num_tokens is not None:
            require("num_tokens", self.num_tokens)
        if self.text not in get_args(Text):
            raise ValueError(f"text must be one of {', '.join(get_args(Text))}, got {self.text!r}")

    def with_lengths(self, num_prompt_tokens: int, num_output_tokens: int) -> Stage:
        """Return a copy that takes a missing length from the row's prompt, answer or both."""
        if self.num_tokens is not None:
            return self
        lengths = {"prompt": num_prompt_tokens, "answer": num_output_tokens}
        num_tokens = lengths.get(self.text, num_prompt_tokens + num_output_tokens)
        return replace(self, num_tokens=num_tokens)

    def follow(self, request: Request, rng: np.random.Generator) -> Served:
        """Return the pass as a child."""
        if self.num_tokens is None:
            raise ValueError("num_tokens of a model_pass must be given outside of a template")
        content = () if self.text == "answer" else request.content
        return Served(children=(one_pass(self.model, self.num_tokens, content),))


def one_pass(model: str, num_tokens: int, content: Content = ()) -> Request:
    """Return a request for one prefill pass of a model."""
    stages = (Prefill(num_prompt_tokens=num_tokens),)
    return Request(0, None, stages, content=content, model=model)


@STAGES.register("best_of_n")
@dataclass(frozen=True, slots=True, kw_only=True)
class BestOfN(Growing, Prompted):
    """Generate several answers in parallel, score each, and deliver the best (MIST §II-E).

    Each answer is a child of the request with the same prompt; with prefix caching they share its
    KV entries. The user gets the best answer once all are scored.

    num_branches: answers (>= 1).
    reward_model: name of the model that scores prompt and answer in one prefill pass, as clients
        serve it; None: no scoring (majority vote).
    model: model that generates; None: the request's.
    num_prompt_tokens, num_output_tokens: of each answer (>= 1); None: those of the row.
    """

    kind: ClassVar[str] = "best_of_n"
    takes_lengths: ClassVar[bool] = True
    leads_to: ClassVar[tuple[str, ...]] = (Prefill.kind, Decode.kind, Deliver.kind)
    names_models: ClassVar[tuple[str, ...]] = ("model", "reward_model")
    num_branches: int
    reward_model: str | None = None
    model: str | None = None
    num_output_tokens: int | None = None

    def __post_init__(self) -> None:
        require("num_branches", self.num_branches)
        for name in ("num_prompt_tokens", "num_output_tokens"):
            if getattr(self, name) is not None:
                require(name, getattr(self, name))

    @property
    def num_input_tokens(self) -> int:
        """Tokens of the prompt; the branches share it, so it counts once."""
        return self.num_prompt_tokens or 0

    def with_lengths(self, num_prompt_tokens: int, num_output_tokens: int) -> Stage:
        """Return a copy that takes missing lengths from a workload row."""
        return replace(
            self,
            num_prompt_tokens=self.num_prompt_tokens or num_prompt_tokens,
            num_output_tokens=self.num_output_tokens or num_output_tokens,
        )

    def follow(self, request: Request, rng: np.random.Generator) -> Served:
        """Return the branches as children, and the delivery of the best one's answer."""
        num_prompt, num_output = self.num_prompt_tokens, self.num_output_tokens
        if num_prompt is None or num_output is None:
            raise ValueError("the lengths of best_of_n must be given outside of a template")
        stages: tuple[Stage, ...] = generation(num_prompt, num_output)
        if self.reward_model is not None:
            stages += (ModelPass(model=self.reward_model, num_tokens=num_prompt + num_output),)
        prompt, first = prompt_content(request, num_prompt), first_branch(request)
        branches = [
            Request(
                0,
                None,
                stages,
                content=prompt + branch_content(request, first + number, num_output),
                model=self.model,
            )
            for number in range(self.num_branches)
        ]
        return Served(then=(Deliver(num_tokens=num_output),), children=tuple(branches))


@STAGES.register("tool_loop")
@dataclass(frozen=True, slots=True, kw_only=True)
class ToolLoop(Growing, Prompted):
    """Turns of an agent: prompt, answer, tool call, and a prompt with the whole conversation.

    The prompt of a turn is the conversation so far plus the tool's result. While the tool runs, the
    KV entries stay in the engine's prefix cache until their blocks are needed, move to its tiers,
    or are computed again, depending on the engine's options.

    num_turns: largest number of answers (>= 1). num_result_tokens: tokens of each tool result (>=
        0).
    duration: seconds that a tool takes (>= 0). more: probability of another turn after each, up to
        num_turns.
    num_prompt_tokens, num_output_tokens: lengths of the first prompt and of each answer (>= 1);
        None: those of the row.
    """

    kind: ClassVar[str] = "tool_loop"
    takes_lengths: ClassVar[bool] = True
    leads_to: ClassVar[tuple[str, ...]] = (ToolCall.kind, Prefill.kind, Decode.kind)
    num_turns: int
    duration: Seconds
    num_result_tokens: int = 0
    more: float = 1.0
    num_output_tokens: int | None = None

    def __post_init__(self) -> None:
        require("num_turns", self.num_turns)
        require("num_result_tokens", self.num_result_tokens, 0)
        if not 0 <= self.duration < math.inf:
            raise ValueError(f"duration must be finite and >= 0 s, got {self.duration}")
        if not 0 <= self.more <= 1:
            raise ValueError(f"more must be in [0, 1], got {self.more}")
        for name in ("num_prompt_tokens", "num_output_tokens"):
            if getattr(self, name) is not None:
                require(name, getattr(self, name))

    def with_lengths(self, num_prompt_tokens: int, num_output_tokens: int) -> Stage:
        """Return a copy that takes missing lengths from a workload row."""
        return replace(
            self,
            num_prompt_tokens=self.num_prompt_tokens or num_prompt_tokens,
            num_output_tokens=self.num_output_tokens or num_output_tokens,
        )

    def follow(self, request: Request, rng: np.random.Generator) -> Served:
        """Return the first turn."""
        num_prompt, num_output = self.num_prompt_tokens, self.num_output_tokens
        if num_prompt is None or num_output is None:
            raise ValueError("the lengths of tool_loop must be given outside of a template")
        num_known = num_prompt + self.num_turns * (num_output + self.num_result_tokens)
        after = _Turn(loop=self, num_known=num_prompt + num_output, num_before=1)
        return Served(
            then=(*generation(num_prompt, num_output), after),
            content=_conversation(request, num_prompt, num_known),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Turn(Growing):
    """The continuation after a turn: a tool and the next turn, or the end.

    num_known: tokens of the conversation so far. num_before: turns done.
    """

    kind: ClassVar[str] = "tool_loop"
    loop: ToolLoop
    num_known: int
    num_before: int

    def follow(self, request: Request, rng: np.random.Generator) -> Served:
        """Return a tool call, its generation and the next turn; nothing after the last turn."""
        loop, num_output = self.loop, self.loop.num_output_tokens or 1
        if self.num_before == loop.num_turns or (loop.more < 1 and rng.random() >= loop.more):
            return Served()
        num_prompt = self.num_known + loop.num_result_tokens
        after = replace(self, num_known=num_prompt + num_output, num_before=self.num_before + 1)
        turn = (ToolCall(duration=loop.duration), *generation(num_prompt, num_output), after)
        return Served(then=turn)


def _conversation(
    request: Request, num_prompt: int, num_tokens: int
) -> tuple[tuple[int, int], ...]:
    """Return the content of all turns: the prompt, and behind it tokens that are the request's."""
    rest = branch_content(request, first_branch(request), num_tokens - num_prompt)
    return prompt_content(request, num_prompt) + rest


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
