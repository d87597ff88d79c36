"""Answers that flow between clients (TaiChi): the rule as the core applies it, and their pace."""

from __future__ import annotations

from math import inf

from mist_sim.clients.engine.core.flow import Flow
from mist_sim.clients.sequence_state import SequenceState
from mist_sim.core.flowing import Backflow, FlowRule
from mist_sim.core.visit import Pace, Visit
from mist_sim.stages import Decode


def flow_in_core(rule: FlowRule) -> Flow:
    """Return a rule as the core applies it."""
    if isinstance(rule, Backflow):
        most_times = inf if rule.most_times is None else rule.most_times
        return Flow(rule.most_seconds, most_times, inf, False)
    return Flow(inf, 0, rule.watermark, rule.counts_seats)


def pace_of(sequence: SequenceState) -> Pace:
    """Return from which token on the time per token of a decode counts."""
    visit = sequence.visit
    kv = visit.kv
    if kv is None or not kv.num_output_tokens:
        return Pace(visit.first_token_at, 1)
    return kv.pace or Pace(kv.last_token_at, kv.num_output_tokens)


def next_pace(rule: FlowRule, sequence: SequenceState, now: float) -> Pace:
    """Return the token from which a leaving answer's time per token counts at the next client.

    One that was too slow counts as new from now on, and has flowed back once more.
    """
    pace = pace_of(sequence)
    if isinstance(rule, Backflow):
        return Pace(now, sequence.num_output_tokens, pace.num_backflows + 1)
    return pace


def num_asked(visit: Visit) -> int:
    """Return the tokens of the answer that a visit was asked for, the first token included."""
    kv = visit.kv
    stages = visit.stages
    # the first token may be one that its own decode emits
    is_first = stages[0].continues and kv is not None and not kv.num_output_tokens
    return is_first + sum([s.num_tokens if isinstance(s, Decode) else 1 for s in stages])
