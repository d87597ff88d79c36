"""Options of an engine that are not simulated together, and why: checks, and a page, read them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from mist_sim.clients.options.engine_options import EngineOptions
from mist_sim.clients.scheduling import ChunkedScheduler, ContinuousScheduler
from mist_sim.clients.traits import FLOWING_ROLES
from mist_sim.errors import ScenarioError

Condition = Callable[[EngineOptions], bool]


class Rule(NamedTuple):
    """An option that must be as `rule` says, such as "be 1"; `is_broken` tells whether it is."""

    option: str
    rule: str
    is_broken: Condition


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Rules for the other options of engines with one option.

    option: as a page writes it. is_set: whether an engine has it. rules: in the order of checks.
    ending: of the error, behind the first broken rule; a format with `config`. why: for the page.
    """

    option: str
    is_set: Condition
    rules: tuple[Rule, ...]
    ending: str
    why: str

    def against(self, config: EngineOptions) -> str:
        """Return which option must change, and how; empty: none."""
        broken = (each for each in self.rules if each.is_broken(config))
        return next((f"{each.option} must {each.rule}" for each in broken), "")

    def check(self, config: EngineOptions) -> None:
        """Raise ScenarioError where a rule is broken."""
        if self.is_set(config) and (problem := self.against(config)):
            raise ScenarioError(f"{problem} {self.ending.format(config=config)}")


def _of_scheduler(name: str, default: Any) -> Callable[[EngineOptions], Any]:
    """Return what reads an option of the scheduler. default: where it has none."""
    return lambda config: getattr(config.scheduler, name, default)


def _is_no(*kinds: type) -> Condition:
    return lambda config: not isinstance(config.scheduler, (*kinds, type(None)))


_order, _swaps = _of_scheduler("order", "fcfs"), _of_scheduler("swaps", False)
_by_piece = _of_scheduler("by_piece", True)
_partial = _of_scheduler("max_num_partial_prefills", None)

_NO_ROLE = Rule("role", "be left out", lambda config: config.role is not None)
_NO_PIPELINE = Rule("pipeline_parallel_size", "be 1", lambda c: c.pipeline_parallel_size > 1)
_NO_EXPERTS = Rule("enable_expert_parallel", "be false", lambda c: c.enable_expert_parallel)
_NO_DRAFTS = Rule("speculative_config", "be left out", lambda c: c.speculative_config is not None)
_NO_RESHARDING = Rule("resharding", "be left out", lambda config: config.resharding is not None)
_NO_TIERS = Rule("kv_cache.tiers", "be empty", lambda config: bool(config.kv_cache.tiers))
_NO_SWAPS = Rule("scheduler.preemption", "be recompute", _swaps)
_CHUNKED = Rule("scheduler", "be chunked", lambda config: not _by_piece(config))

LOADS_IN_STEP = Refusal(
    option="kv_cache.tiers: loads_in_step",
    is_set=lambda config: any(tier.loads_in_step for tier in config.kv_cache.tiers),
    rules=(
        _NO_ROLE,
        _NO_DRAFTS,
        _CHUNKED,
        Rule(
            "scheduler.prefill_schedule_interval",
            "be 1",
            lambda config: config.prefill_interval > 1,
        ),
        Rule(
            "scheduler.max_num_partial_prefills",
            "be left out",
            lambda config: _partial(config) is not None,
        ),
    ),
    ending="with loads_in_step of kv_cache.tiers; such loads are not simulated otherwise",
    why="a step waits for loads with pieces of prompts and single tokens alone",
)

REFUSALS = (
    Refusal(
        option="role: p_heavy or d_heavy",
        is_set=lambda config: config.role in FLOWING_ROLES,
        rules=(
            _NO_PIPELINE,
            _NO_DRAFTS,
            _CHUNKED,
            Rule(
                "scheduler.order",
                "be fcfs, which lets those first who come with their KV entries",
                lambda config: _order(config) != "fcfs",
            ),
            _NO_SWAPS,
        ),
        ending="with role {config.role}; answers that flow are not simulated otherwise",
        why="TaiChi's engines are chunked, on one rank; what comes with entries goes first",
    ),
    Refusal(
        option="lora",
        is_set=lambda config: config.lora is not None,
        rules=(
            _NO_ROLE,
            _NO_PIPELINE,
            _NO_EXPERTS,
            _NO_DRAFTS,
            _NO_RESHARDING,
            _NO_TIERS,
            Rule("scheduler", "be chunked", _is_no(ChunkedScheduler)),
            Rule("scheduler.order", "be fcfs", lambda config: _order(config) != "fcfs"),
            _NO_SWAPS,
        ),
        ending="with lora; adapters are not simulated otherwise",
        why="slots go by order of arrival; the work of adapters is assumed of plain steps",
    ),
    LOADS_IN_STEP,
    Refusal(
        option="images",
        is_set=lambda config: config.images is not None,
        rules=(
            Rule(
                "role",
                "be prefill or left out",
                lambda config: config.role in ("decode", *FLOWING_ROLES),
            ),
            Rule("language_model_only", "be false", lambda config: config.language_model_only),
            _NO_PIPELINE,
            _NO_RESHARDING,
        ),
        ending="with images; they are not simulated otherwise",
        why="the tower stands on the GPUs that compute prompts, in one layout",
    ),
    Refusal(
        option="decode_context_parallel_size > 1",
        is_set=lambda config: config.decode_context_parallel_size > 1,
        rules=(_NO_ROLE, _NO_DRAFTS, _NO_RESHARDING, _NO_TIERS, _NO_SWAPS),
        ending="with decode_context_parallel_size {config.decode_context_parallel_size}; that "
        "combination is not simulated",
        why="hand-overs, tiers, swaps and drafts do not know contexts in parts",
    ),
    Refusal(
        option="prefill_context_parallel_size > 1",
        is_set=lambda config: config.prefill_context_parallel_size > 1,
        rules=(
            Rule(
                "decode_context_parallel_size",
                "be 1",
                lambda config: config.decode_context_parallel_size > 1,
            ),
            _NO_PIPELINE,
            _NO_ROLE,
            _NO_DRAFTS,
            _NO_RESHARDING,
            Rule("lora", "be left out", lambda config: config.lora is not None),
            Rule("images", "be left out", lambda config: config.images is not None),
            _NO_TIERS,
        ),
        ending="with prefill_context_parallel_size {config.prefill_context_parallel_size}; that "
        "combination is not simulated",
        why="the work of a group is known for prompts and decodes of one model alone",
    ),
    Refusal(
        option="resharding",
        is_set=lambda config: config.resharding is not None,
        rules=(
            _NO_ROLE,
            _NO_EXPERTS,
            _NO_DRAFTS,
            Rule("async_scheduling", "be false", lambda config: bool(config.async_scheduling)),
            Rule(
                "kv_cache.enable_prefix_caching",
                "be false",
                lambda config: config.kv_cache.enable_prefix_caching,
            ),
            _NO_TIERS,
            Rule(
                "admission.early_rejection",
                "be false",
                lambda config: config.admission.early_rejection,
            ),
            Rule(
                "scheduler",
                "be continuous, which computes prompts and answers in steps of their own",
                _is_no(ContinuousScheduler),
            ),
            Rule(
                "scheduler.preemption",
                "be recompute; the buffer on the host takes preempted answers as well",
                _swaps,
            ),
            Rule(
                "predictor",
                "be what makes one for a layout, such as RooflinePredictor",
                lambda config: config.predictor is not None and not callable(config.predictor),
            ),
        ),
        ending="with resharding",
        why="Seesaw changes the layout between stages: prompts and answers share no step, and "
        "entries go through its buffer",
    ),
)
