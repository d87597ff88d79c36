"""Options that would change nothing are reported before a run, not ignored."""

from __future__ import annotations

from collections.abc import Iterable

from mist_sim.clients.traits import ClientTraits
from mist_sim.errors import listed
from mist_sim.registry import comes_with_package
from mist_sim.scenario.format.parts import Part
from mist_sim.scenario.format.problems import Problem
from mist_sim.scenario.sections.clients import ClientPart
from mist_sim.scenario.sections.workload import WorkloadSpec
from mist_sim.stages import Rag


def useless_options(
    workload: WorkloadSpec,
    clients: Iterable[ClientPart],
    routers: Iterable[Part],
    model: str | None,
    lives: Part | None = None,
    *,
    limits_by_priority: bool = False,
) -> Iterable[Problem]:
    """Yield options of a workload that no client reads, and those that clients lack.

    model: the scenario's. limits_by_priority: whether limits of the slo go by priorities. Plugins
    may read any option, so with them none counts as useless.
    """
    clients = list(clients)
    engines = [client.describe(model) for client in clients]
    are_ours = all(comes_with_package(router.plugin) for router in routers)
    if are_ours and all(client.is_ours for client in clients):
        yield from _useless_deadlines(workload, engines)
        if not limits_by_priority:
            yield from _useless_priorities(workload, engines)
        may_fail = any(failure.link is None for failure in getattr(lives, "failures", ()))
        yield from _useless_retries(workload, engines, may_fail=may_fail)
    yield from _useless_numbers(workload, clients)
    yield from _useless_times(workload, clients, engines)
    yield from _missing_deadlines(workload, engines)
    yield from _deadlines_of_nobody(workload)


def _useless_numbers(workload: WorkloadSpec, clients: list[ClientPart]) -> Iterable[Problem]:
    """Yield keys of a retrieval stage that no client serving it reads."""
    serving = [client for client in clients if Rag.kind in client.stages]
    if not serving or not all(client.is_ours for client in serving):
        return
    for position, stage in enumerate(workload.pipeline):
        if isinstance(stage, str) or stage.plugin is not Rag:
            continue
        for name, value in stage.parameters().items():
            if value is not None and not any(name in client.looks_at for client in serving):
                yield Problem(
                    ("workload", "pipeline", position, name),
                    f"has no effect: {serving[0].name} serves all rag stages alike; leave it out",
                )


def _useless_times(
    workload: WorkloadSpec, clients: list[ClientPart], described: list[ClientTraits]
) -> Iterable[Problem]:
    """Yield times for each token of workers that serve only stages without tokens."""
    for position, (client, traits) in enumerate(zip(clients, described, strict=True)):
        if getattr(client, "time_per_token", None) is None:
            continue
        parts = [part for part in workload.pipeline if not isinstance(part, str)]
        served = [part for part in parts if part.plugin.kind in traits.serves]
        if served and not any(map(_has_tokens, served)):
            kinds = listed(sorted({part.plugin.kind for part in served}))
            yield Problem(
                ("clients", position, "time_per_token"),
                f"has no effect: num_tokens of {kinds} is 0; give the stage num_tokens, or a task, "
                "with which a preprocess or postprocess stage has the tokens of the row",
            )


def _has_tokens(part: Part) -> bool:
    """Tell whether a stage of the pipeline has tokens, set in the stage or in the row."""
    stage = part.make()
    of_a_row = stage.with_lengths(1, 1) if stage.takes_lengths else stage
    return bool(getattr(of_a_row, "num_tokens", 0))


def _useless_deadlines(workload: WorkloadSpec, engines: list[ClientTraits]) -> Iterable[Problem]:
    if workload.ttft_deadline is None or any(engine.deadline_option for engine in engines):
        return
    yield Problem(
        ("workload", "ttft_deadline"),
        "has no effect: no client has admission.drop_expired, admission.early_rejection "
        "or scheduler.order: earliest_deadline_first",
    )


def _missing_deadlines(workload: WorkloadSpec, engines: list[ClientTraits]) -> Iterable[Problem]:
    used = [using for engine in engines if (using := engine.deadline_option)]
    if workload.ttft_deadline is None and used:
        yield Problem(("workload", "ttft_deadline"), f"is required for {used[0]}")


def _useless_priorities(workload: WorkloadSpec, engines: list[ClientTraits]) -> Iterable[Problem]:
    by_priority = isinstance(workload.ttft_deadline, dict)
    if by_priority or any(engine.uses_priorities for engine in engines):
        return
    why = (
        "has no effect: no client has scheduler.order: priority, and neither ttft_deadline nor a "
        "class of the slo goes by priority"
    )
    if workload.priorities is not None:
        yield Problem(("workload", "priorities"), why)
    for name, each in workload.classes.items():
        if each.priority:
            yield Problem(("workload", "lengths", "classes", name, "priority"), why)


def _deadlines_of_nobody(workload: WorkloadSpec) -> Iterable[Problem]:
    if not isinstance(workload.ttft_deadline, dict):
        return
    known = workload.known_priorities
    said = listed(sorted(known)) if known != {0} else "none, so all have 0"
    for priority in sorted(set(workload.ttft_deadline) - known):
        yield Problem(
            ("workload", "ttft_deadline", str(priority)),
            f"no request has this priority; workload.priorities has {said}",
        )


def _useless_retries(
    workload: WorkloadSpec, engines: list[ClientTraits], *, may_fail: bool
) -> Iterable[Problem]:
    if workload.retries is None:
        return
    why_not = {
        "timed_out": "there is no timeout and no ttft_timeout",
        "rejected": "no client has admission, which turns requests away",
        "lost": "no client fails",
    }
    if may_fail:
        del why_not["lost"]
    if workload.timeout is not None or workload.ttft_timeout is not None:
        del why_not["timed_out"]
    if any(engine.turns_away for engine in engines):
        del why_not["rejected"]
    tried = workload.retries.make().on
    if set(tried) <= set(why_not):
        reasons = ", and ".join(why_not[status] for status in tried)
        yield Problem(("workload", "retries"), f"has no effect: {reasons}")
