"""A pipeline that is known as it is walked: what an outcome adds to it, and what it changes."""

from __future__ import annotations

from collections.abc import Iterator

from mist_sim.bounds import GROWN
from mist_sim.clients.base import Client
from mist_sim.clients.reservation import Reservation
from mist_sim.core.request import Content, Declared, Growth, Request, Stage, token_totals
from mist_sim.core.visit import SERVED, Failure, Longer, Served, Visit
from mist_sim.errors import ScenarioError


def grow(
    request: Request,
    outcome: Served,
    client: Client,
    visit: Visit,
    later: tuple[Stage, ...],
    ahead: Reservation | None,
) -> None:
    """Let a request walk on after the outcome of a client's visit; its counts and content follow.

    later: the stages that it had left. ahead: where the first of them have begun, if they have.
    Raises ScenarioError for a change of a stage that is not ahead, has begun, has no length or
    would become too short.
    """
    try:
        if ahead is not None and outcome != SERVED:
            raise ValueError(
                f"the stage {ahead.stages[0].kind!r} has begun at {ahead.client.name}, so nothing "
                "can come before it or change; with hand_over.transfer: pull it begins later"
            )
        _grow(request, outcome, later)
    except (TypeError, ValueError) as error:
        raise ScenarioError(
            f"{client.name}: the outcome of request {request.request_id} after the stage "
            f"{visit.stages[-1]} at {visit.finished_at} s: {error}"
        ) from error


def beyond_limit(request: Request, outcome: Served, stage: Stage, now: float) -> Failure | None:
    """Count what an outcome adds to a request; return how it fails if that never ends, or None."""
    num_added = len(outcome.then) + len(outcome.children)
    if not num_added:
        return None
    growth = request.growth = request.growth or Growth()
    growth.num_added += num_added
    if growth.num_added <= GROWN:
        return None
    text = (
        f"outcomes have added more than {GROWN:,} stages and children (bounds.GROWN), the last "
        f"ones after {stage.kind!r}; a stage must stop to add others"
    )
    return Failure("rejected", now, text)


def _grow(request: Request, outcome: Served, later: tuple[Stage, ...]) -> None:
    """Do so, or leave the request as it is and raise TypeError or ValueError."""
    changed = later
    for change in outcome.changes:
        changed = tuple(_changed(change, changed))
    if outcome.then or changed != later or outcome.content is not None:
        before = Declared(request.num_prompt_tokens, request.num_output_tokens, request.content)
        request.declared = request.declared or before
        (num_prompted, num_emitted), had = token_totals(changed), token_totals(later)
        request.num_prompt_tokens += num_prompted - had[0]
        request.num_output_tokens += num_emitted - had[1]
        num_prompted, num_emitted = token_totals(outcome.then)
        request.num_appended_input_tokens += num_prompted
        request.num_appended_output_tokens += num_emitted
        content = outcome.content
        request.content = _cut(before.content, later, changed) if content is None else content
    request.to_serve = (*outcome.then, *changed)
    request.num_stages += len(outcome.then)


def _changed(change: Longer, stages: tuple[Stage, ...]) -> Iterator[Stage]:
    """Yield stages after a change of one of them, or of all of its class."""
    num_changed = 0
    for stage in stages:
        if isinstance(stage, change.stage) and (change.every or not num_changed):
            num_changed += 1
            yield stage.longer(change.num_tokens)
        else:
            yield stage
    if not num_changed:
        ahead = " -> ".join(stage.kind for stage in stages) or "nothing"
        raise ValueError(f"no stage {change.stage.kind!r} is ahead, but {ahead}")


def _cut(content: Content, before: tuple[Stage, ...], after: tuple[Stage, ...]) -> Content:
    """Return content up to the first token of a prompt that is not what it was."""
    lengths = [[stage.num_input_tokens for stage in stages] for stages in (before, after)]
    same = [min(old, new) for old, new in zip(*lengths, strict=True) if old != new]
    if not content or not same:
        return content
    num_left, kept = min(same), []
    for content_id, num_tokens in content:
        if num_left <= 0:
            break
        kept.append((content_id, min(num_tokens, num_left)))
        num_left -= num_tokens
    return tuple(kept)
