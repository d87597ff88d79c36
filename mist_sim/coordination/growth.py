"""Growing pipelines: the stages and tokens that an outcome adds to a request."""

from __future__ import annotations

from collections.abc import Iterator

from mist_sim.bounds import GROWN
from mist_sim.clients.base import Client
from mist_sim.clients.reservation import Reservation
from mist_sim.core.content_ids import leading
from mist_sim.core.request import Content, Declared, Growth, Request, Stage, token_totals
from mist_sim.core.visit import SERVED, Failure, Longer, Served, Visit
from mist_sim.errors import ScenarioError
from mist_sim.stages import STAGES, Prompted


def grow(
    request: Request,
    outcome: Served,
    client: Client,
    visit: Visit,
    later: tuple[Stage, ...],
    ahead: Reservation | None,
) -> None:
    """Apply the outcome of a client's visit to a request's stages, counts and content.

    later: the stages left. ahead: the place where the first of them have begun, if any.
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
    """Count the stages that an outcome adds; return a failure if the request grows without end."""
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
    """Apply the changes; on TypeError or ValueError the request is unchanged."""
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
    """Yield stages with a change applied to one of them, or to all of its class."""
    num_changed = 0
    for stage in stages:
        if isinstance(stage, change.stage) and (change.every or not num_changed):
            num_changed += 1
            yield stage.longer(change.num_tokens)
        else:
            yield stage
    if not num_changed:
        ahead = " -> ".join(stage.kind for stage in stages) or "nothing"
        known = STAGES.loaded().items()
        kinds = sorted(kind for kind, cls in known if issubclass(cls, change.stage))
        which = " or ".join(map(repr, kinds or [change.stage.kind]))
        raise ValueError(f"no stage {which} is ahead, but {ahead}; put one behind it")


def _cut(content: Content, before: tuple[Stage, ...], after: tuple[Stage, ...]) -> Content:
    """Return content up to the first token of a prompt that changed."""
    lengths = [[_prompted(stage) for stage in stages] for stages in (before, after)]
    same = [min(old, new) for old, new in zip(*lengths, strict=True) if old != new]
    return leading(content, min(same)) if same else content


def _prompted(stage: Stage) -> int:
    """Return the prompt tokens of a stage; a tool_loop counts them turn by turn."""
    return (stage.num_prompt_tokens or 0) if isinstance(stage, Prompted) else stage.num_input_tokens
