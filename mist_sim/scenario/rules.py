"""Rules of a scenario as a whole: keys that contradict one another, and those without effect.

A rule takes the keys, and what each client is, and yields problems. Plugins of others may read any
option, so with them fewer keys count as useless.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from mist_sim.bounds import COPIES
from mist_sim.clients.traits import FLOWING_ROLES, ClientTraits
from mist_sim.core.hand_over import HandOver
from mist_sim.errors import brief, did_you_mean, listed
from mist_sim.lifecycle import Lifecycle, OnFailure
from mist_sim.metrics import Slo
from mist_sim.registry import comes_with_package
from mist_sim.routers import LengthAwareRouter, RandomRouter, RoundRobinRouter
from mist_sim.scenario.format.families import STAGE
from mist_sim.scenario.format.parts import Part
from mist_sim.scenario.format.problems import Problem, shown
from mist_sim.scenario.sections.whole import ScenarioKeys, has_topology, made
from mist_sim.simulation_rules import are_alike, dtype_name
from mist_sim.stages import Decode, EncodeImages, Prefill, Rag, Reasoning
from mist_sim.traces.workload import BASE

Traits = Sequence[ClientTraits]
"""What each client of a scenario is, in their order."""


def problems_of(scenario: ScenarioKeys) -> Iterator[Problem]:
    """Yield the problems of a scenario whose sections have none of their own."""
    if not scenario.clients:
        yield Problem(("clients",), "must have at least one entry, got []")
        return
    traits = [client.describe(scenario.model) for client in scenario.clients]
    for rule in RULES:
        yield from rule(scenario, traits)


def _only_ours(scenario: ScenarioKeys) -> bool:
    """Whether all clients came with the package."""
    return all(client.is_ours for client in scenario.clients)


def _policies_are_ours(scenario: ScenarioKeys) -> bool:
    """Whether routers and gateway came with the package, too."""
    gateway = [] if scenario.gateway is None else [scenario.gateway]
    policies = [*scenario.all_routers, *gateway]
    return all(comes_with_package(policy.plugin) for policy in policies)


# --- clients ------------------------------------------------------------------------------------


def _warmup(scenario: ScenarioKeys, traits: Traits) -> Iterator[Problem]:
    if scenario.warmup < 0:
        yield Problem(("warmup",), f"must be >= 0 s, got {scenario.warmup}")


def _clients(scenario: ScenarioKeys, traits: Traits) -> Iterator[Problem]:
    clients = scenario.clients
    if scenario.engine and not any(client.names_engine for client in clients):
        yield Problem(("engine",), "has no effect: no client has type llm")
    has_gpus = any(client.engines for client in traits)
    if scenario.cost is not None and _only_ours(scenario) and not has_gpus:
        yield Problem(("cost",), "has no effect: no client has GPUs")
    counted = zip(clients, traits, strict=True)
    num_engines = sum(is_.num_engines * client.count for client, is_ in counted)
    if num_engines > COPIES:
        text = f"must have <= {COPIES} engines and other clients in all, got {num_engines}"
        yield Problem(("clients",), text)
    for position, client in enumerate(clients):
        names_none = getattr(client, "model", None) is None and scenario.model is None
        if client.needs_model and names_none:
            text = "is required, since the scenario names no model"
            yield Problem(("clients", position, "model"), text)
    seen: set[str] = set()
    for position, client in enumerate(clients):
        if twice := seen.intersection(client.names):
            names = ", ".join(sorted(twice))
            place = ("clients", position, "name")
            yield Problem(place, f"must be unique, got {names} a second time")
        seen.update(client.names)


def _unserved_stages(scenario: ScenarioKeys, traits: Traits) -> Iterator[Problem]:
    served = {stage for client in scenario.clients for stage in client.stages}
    stages = scenario.workload.stages
    for position, stage in enumerate(stages):
        place = ("workload", "pipeline", position)
        if stage not in served:
            offers = (f"{client.name}: {', '.join(client.stages)}" for client in scenario.clients)
            text = f"no client serves {brief(stage)}; the clients serve {listed(offers, '; ')}"
            if stage == Reasoning.kind:
                text += "; engines think as they answer: count such tokens in the output"
            yield Problem(place, text)
        elif lacking := [
            kind for kind in scenario.workload.leads_to(position) if kind not in served
        ]:
            text = f"leads to {brief(lacking[0])}, which no client serves; add one that does"
            yield Problem(place, text)
        elif stage == Decode.kind and stages[position - 1] not in (Prefill.kind, Decode.kind):
            yield Problem(
                place,
                f"decode must follow prefill or decode directly, which leave the KV entries "
                f"on the client; got it after {brief(stages[position - 1])}",
            )


# --- hand-overs ---------------------------------------------------------------------------------


def _hand_overs(scenario: ScenarioKeys, traits: Traits) -> Iterator[Problem]:
    """Yield problems of roles: no network, different models, a network without roles.

    A user's own types of clients may hand over, too.
    """
    network, hand_over = scenario.network, scenario.hand_over.parameters()
    roles: dict[int, str | None] = {k: c.role for k, c in enumerate(traits) if c.role}
    only_ours = _only_ours(scenario)
    if hand_over["policy"] is not None:
        roles |= {k: c.role for k, c in enumerate(traits) if c.entries is not None}
        only_ours = False  # what roles do not say, the policy may
    failures = getattr(scenario.lifecycle, "failures", ())
    used = bool(roles) or any(item.node is not None for item in failures)
    used = used or _is_shared(scenario, traits)
    if network is not None and not used and only_ours and not scenario.may_split:
        hint = "; spans_nodes: true times clients with GPUs on several nodes by it"
        hint = hint if has_topology(network) else ""
        yield Problem(("network",), f"has no effect: no client has a role{hint}")
    if not roles and only_ours:
        for name, value in hand_over.items():
            if value != getattr(HandOver(), name):
                yield Problem(("hand_over", name), "has no effect: no client has a role")
    if network is None and roles:
        yield Problem(
            ("network",),
            "is required, since KV entries go from clients with role prefill to those with "
            "role decode; such as {bandwidth: 400 Gb/s, latency: 1 ms}",
        )
    flows = FLOWING_ROLES.intersection(roles.values())  # checked when clients are there
    if roles and only_ours and not flows and "prefill" not in roles.values():
        yield _nothing_to_decode(scenario, next(iter(roles)))
    if roles:
        yield from _unlike_engines(scenario, traits)


def _is_shared(scenario: ScenarioKeys, traits: Traits) -> bool:
    """Tell whether a topology is used for more than hand-overs, or by steps across nodes."""
    network = scenario.network
    if network is None or not has_topology(network):
        return False
    starts = getattr(scenario.lifecycle, "start_up", None)
    loads = starts is not None and starts.parameters()["time"] is None
    uses_links = any(client.uses_links for client in traits)
    return bool(loads or uses_links or network.parameters()["spans_nodes"])


def _nothing_to_decode(scenario: ScenarioKeys, position: int) -> Problem:
    if "role" not in scenario.clients[position].parameters():
        text = "decodes what a client with role prefill began, and there is none; add one"
        return Problem(("clients", position), text)
    text = "has no effect: no client has role prefill; the others decode what they prefill"
    return Problem(("clients", position, "role"), text)


def _unlike_engines(scenario: ScenarioKeys, traits: Traits) -> Iterator[Problem]:
    """Yield clients that cannot take over others' entries, at their positions.

    Any two clients may exchange entries, so all are compared with the first engine; where every
    request names a model, only clients of the same model do. Clients whose entries never travel are
    left out.
    """
    firsts: dict[str | None, int] = {}
    by_model = scenario.workload.all_name_models
    # a client that takes blocks of any size is compared with those that have a size
    for position in sorted(range(len(traits)), key=lambda k: _block_size(traits[k]) is None):
        mine = traits[position]
        if mine.entries is None:
            continue
        first = firsts.setdefault(mine.model if by_model else None, position)
        names = [scenario.clients[each].name for each in (first, position)]
        for key, text in _differences(names, traits[first], mine):
            yield Problem(("clients", position, *key.split(".")), text)
        if mine.role is None and Decode.kind in mine.serves and not mine.takes_entries:
            yield Problem(
                ("clients", position, "scheduler"),
                "must not be static beside clients with a role, which may hand over to it: "
                "no request joins a static batch",
            )


def _block_size(traits: ClientTraits) -> int | None:
    return traits.entries.block_size if traits.entries else None


def _differences(
    names: Sequence[str], theirs: ClientTraits, mine: ClientTraits
) -> Iterable[tuple[str, str]]:
    """Yield (key, problem) for each way in which two clients store entries differently."""
    if mine.model != theirs.model:
        others = "as of the other clients, with which it exchanges KV entries"
        yield "model", f"must be {theirs.model} {others}, got {mine.model}"
        return
    exchange = f"as of {names[0]}, with which {names[1]} exchanges KV entries"
    sizes = _block_size(theirs), _block_size(mine)
    if None not in sizes and sizes[0] != sizes[1]:
        yield "kv_cache.block_size", f"must be {sizes[0]} {exchange}, got {sizes[1]}"
    dtypes = [
        dtype_name((traits.entries and traits.entries.dtype) or "auto") for traits in (theirs, mine)
    ]
    if not are_alike(*dtypes):
        key = "kv_cache_dtype" if sizes[1] is None else "kv_cache.kv_cache_dtype"
        yield key, f"must be {dtypes[0]} {exchange}, got {dtypes[1]}"


def _places_of_nobody(scenario: ScenarioKeys, traits: Traits) -> Iterator[Problem]:
    """Yield keys that need a topology, such as places, if the network has none."""
    for position, client in enumerate(scenario.clients):
        for problem in () if has_topology(scenario.network) else client.needing_topology():
            yield Problem(("clients", position, *problem.location), problem.text)


# --- routers ------------------------------------------------------------------------------------


def _routers(scenario: ScenarioKeys, traits: Traits) -> Iterator[Problem]:
    """Yield routers of stages that do not exist or are not routed."""
    served = {stage for client in scenario.clients for stage in client.stages}
    stages = scenario.workload.stages
    for name in scenario.routers:
        text = ""
        if name not in STAGE.registry:
            hint = did_you_mean(name, STAGE.registry)
            text = f"there is no stage {brief(name)}{hint} Known: {', '.join(STAGE.registry)}"
        elif STAGE.registry[name].kind not in served and name not in served:
            text = f"no client serves {brief(name)}; the clients serve {listed(sorted(served))}"
        elif _only_ours(scenario) and name not in stages:
            text = f"has no effect: no request walks it; they walk {', '.join(stages)}"
        elif (
            _only_ours(scenario)
            and name == Decode.kind
            and not any(client.role for client in traits)
        ):
            text = (
                "has no effect: no client has a role, so that prefill and decode are one visit, "
                "for which the router of prefill is asked"
            )
        if text:
            yield Problem(("routers", name), text)


def _polls(scenario: ScenarioKeys, traits: Traits) -> Iterator[Problem]:
    """Yield polling options without effect, and an invalid interval."""
    interval, place = scenario.view_interval, ("view_interval",)
    if interval is None:
        if not scenario.counts_sent:
            yield Problem(("counts_sent",), "has no effect without view_interval")
        return
    plugins = [part.plugin for part in scenario.all_routers]
    if interval < 0:
        yield Problem(place, f"must be >= 0 s, got {interval}")
    elif LengthAwareRouter in plugins:
        text = "must be left out with length_aware: its estimates use the present state, not polls"
        yield Problem(place, text)
    elif all(plugin in (RandomRouter, RoundRobinRouter) for plugin in plugins):
        text = "has no effect: random and round_robin use no state, so polls change nothing"
        yield Problem(place, text)


# --- what requests name -------------------------------------------------------------------------


def served_models(traits: Traits) -> set[str] | None:
    """Return the names of the models that clients serve; None if a client may serve any."""
    found: set[str] = set()
    for client in traits:
        if client.model is not None:
            found.add(client.model)
        elif Prefill.kind in client.serves or Decode.kind in client.serves:
            return None
    return found


def nobody_serves(model: str, served: set[str]) -> str:
    """Return what to say of a model that none of the clients has. served: theirs."""
    hint = did_you_mean(model, served)
    return f"no client serves it{hint} The clients serve {listed(sorted(served))}"


def _models(scenario: ScenarioKeys, traits: Traits) -> Iterator[Problem]:
    """Yield models that requests or stages name and no client serves."""
    workload, served = scenario.workload, served_models(traits)
    if served is None:
        return
    for name in workload.models or {}:
        if name not in served:
            yield Problem(("workload", "models", name), nobody_serves(name, served))
    for position in range(len(workload.pipeline)):
        for key, name in workload.names_models(position):
            if name not in served:
                place = ("workload", "pipeline", position, key)
                yield Problem(place, f"got {brief(name)}: {nobody_serves(name, served)}")


def _adapters(scenario: ScenarioKeys, traits: Traits) -> Iterator[Problem]:
    """Yield clients without adapters that may get requests which name some."""
    adapters = scenario.workload.adapters or ()
    if set(adapters) <= {BASE}:
        return
    for number, client in enumerate(scenario.clients):
        generates = Prefill.kind in client.stages or Decode.kind in client.stages
        if generates and client.parameters().get("lora") is None:
            yield Problem(
                ("clients", number),
                f"must have lora, such as {{max_loras: {len(adapters)}}}, since "
                "requests name adapters (workload.adapters)",
            )


def _images(scenario: ScenarioKeys, traits: Traits) -> Iterator[Problem]:
    """Yield clients that serve images and may not, and images that no client encodes."""
    images, encodes = scenario.workload.images, EncodeImages.kind in scenario.workload.stages
    for number, client in enumerate(scenario.clients):
        if Prefill.kind not in client.stages:
            continue
        has_tower = client.parameters().get("images") is not None
        if images is not None and not encodes and not has_tower:
            yield Problem(
                ("clients", number),
                "must have images, such as {mm_encoder_tp_mode: data}, since prompts have some "
                "(workload.images)",
            )
        elif has_tower and (images is None or encodes):
            why = "an image_encoder has them" if encodes else "no prompt has any (workload.images)"
            yield Problem(("clients", number, "images"), f"must be left out: {why}")
    if encodes and images is None:
        yield Problem(("workload", "images"), "is required with encode_images in the pipeline")


# --- columns of a workload that no part reads ---------------------------------------------------


def _retries(scenario: ScenarioKeys, traits: Traits) -> Iterator[Problem]:
    """Yield retries of failures that cannot be."""
    workload = scenario.workload
    refuses = ("max_waiting", "sheds_from")  # options of a gateway that refuses
    may_refuse = any(getattr(scenario.gateway, name, None) is not None for name in refuses)
    are_ours = _policies_are_ours(scenario) and _only_ours(scenario)
    if workload.retries is None or may_refuse or not are_ours:
        return
    failures = getattr(scenario.lifecycle, "failures", ())
    reasons = {
        "timed_out": (
            workload.timeout is None and workload.ttft_timeout is None,
            "there is no timeout and no ttft_timeout",
        ),
        "rejected": (
            not any(client.turns_away for client in traits),
            "no client has admission, which turns requests away",
        ),
        "lost": (all(each.link is not None for each in failures), "no client fails"),
    }
    why_not = {status: why for status, (never, why) in reasons.items() if never}
    tried = workload.retries.make().on
    if set(tried) <= set(why_not):
        text = ", and ".join(why_not[status] for status in tried)
        yield Problem(("workload", "retries"), f"has no effect: {text}")


def _numbers(scenario: ScenarioKeys, traits: Traits) -> Iterator[Problem]:
    """Yield keys of a retrieval stage that no client serving it reads."""
    serving = [client for client in scenario.clients if Rag.kind in client.stages]
    if not serving or not all(client.is_ours for client in serving):
        return
    for position, stage in enumerate(scenario.workload.pipeline):
        if isinstance(stage, str) or stage.plugin is not Rag:
            continue
        for name, value in stage.parameters().items():
            if value is not None and not any(name in client.looks_at for client in serving):
                yield Problem(
                    ("workload", "pipeline", position, name),
                    f"has no effect: {serving[0].name} serves all rag stages alike; leave it out",
                )


def _times(scenario: ScenarioKeys, traits: Traits) -> Iterator[Problem]:
    """Yield times for each token of workers that serve only stages without tokens."""
    parts = [part for part in scenario.workload.pipeline if not isinstance(part, str)]
    for position, (client, is_) in enumerate(zip(scenario.clients, traits, strict=True)):
        if getattr(client, "time_per_token", None) is None:
            continue
        served = [part for part in parts if part.plugin.kind in is_.serves]
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


def _missing(scenario: ScenarioKeys, traits: Traits) -> Iterator[Problem]:
    """Yield predictions and deadlines that a client asks for, and deadlines that no part reads."""
    workload = scenario.workload
    if not workload.has_predictions and any(each.uses_predictions for each in traits):
        yield Problem(
            ("workload", "predictions"),
            "is required for scheduler.order: shortest_predicted_first, such as {sigma: 0.5}, or "
            "a trace of type csv with predicted_column",
        )
    deadline = workload.ttft_deadline
    used = [using for client in traits if (using := client.deadline_option)]
    if deadline is None and used:
        yield Problem(("workload", "ttft_deadline"), f"is required for {used[0]}")
    known = workload.known_priorities
    said = listed(sorted(known)) if known != {0} else "none, so all have 0"
    for priority in sorted(set(deadline) - known) if isinstance(deadline, dict) else ():
        yield Problem(
            ("workload", "ttft_deadline", str(priority)),
            f"no request has this priority; workload.priorities has {said}",
        )


def unread_facts(scenario: ScenarioKeys) -> Iterator[str]:
    """Yield what the scenario says of requests and no part of it reads, with what would.

    Plugins may read anything, so with them everything counts as read.
    """
    workload, gateway = scenario.workload, scenario.gateway
    if not _policies_are_ours(scenario) or not _only_ours(scenario):
        return
    traits = [client.describe(scenario.model) for client in scenario.clients]
    deadline = workload.ttft_deadline
    if deadline is not None and not any(client.deadline_option for client in traits):
        yield (
            "workload.ttft_deadline has no effect: no client has admission.drop_expired, "
            "admission.early_rejection or scheduler.order: earliest_deadline_first."
        )
    counts_tokens = getattr(gateway, "max_tokens", None) is not None
    read_them = counts_tokens or any(client.uses_predictions for client in traits)
    if workload.predictions and not read_them:
        yield (
            "workload.predictions has no effect: no client has scheduler.order: "
            "shortest_predicted_first, and no gateway has max_tokens."
        )
    by_priority = isinstance(deadline, dict) or scenario.slo.make().goes_by_priority
    if by_priority or gateway is not None or any(client.uses_priorities for client in traits):
        return
    classes = {name: each.priority for name, each in workload.classes.items()}
    if workload.priorities is not None or any(classes.values()):
        yield (
            "Priorities of requests have no effect: no client has scheduler.order: priority, and "
            "neither ttft_deadline nor a class of the slo goes by priority."
        )


# --- classes of requests ------------------------------------------------------------------------


def _shares(scenario: ScenarioKeys, traits: Traits) -> Iterator[Problem]:
    """Yield shares of an admission for classes that no request is of."""
    shares, classes = getattr(scenario.gateway, "shares", None), scenario.workload.classes
    for name in shares if isinstance(shares, Mapping) else ():
        if name not in classes:
            known = listed(classes) if classes else "none"
            yield Problem(
                ("gateway", "shares", name),
                f"no request is of this class; workload.lengths has {known}",
            )


def _classes(scenario: ScenarioKeys, traits: Traits) -> Iterator[Problem]:
    """Yield classes of limits that no request can belong to."""
    workload, slo = scenario.workload, scenario.slo.make()
    for name, limits in slo.classes.items():
        place = ("slo", "classes", name)
        if limits.priority is not None and limits.priority not in workload.known_priorities:
            known = listed(sorted(workload.known_priorities))
            yield Problem(
                (*place, "priority"),
                f"no request has priority {limits.priority}; they have {known}",
            )
        if limits.model is not None and not workload.may_name(limits.model):
            yield Problem((*place, "model"), f"no request names {brief(limits.model)}")
        by_name = limits.priority is None and limits.model is None
        if by_name and name not in workload.classes:
            known = listed(workload.classes) if workload.classes else "none"
            yield Problem(
                place,
                f"no request is of this class; workload.lengths has {known}; or name the priority "
                "or the model of its requests",
            )


# --- lives of clients, and sliders --------------------------------------------------------------


def _names(scenario: ScenarioKeys, traits: Traits) -> Iterator[Problem]:
    """Yield names in the lifecycle that no client has, and limits of a group beyond its number."""
    part, clients = scenario.lifecycle, scenario.clients
    if part is None:
        return
    if made(part, clients) == Lifecycle():
        yield Problem(("lifecycle",), "has no effect: it is empty; leave it out")
    known = [name for client in clients for name in dict.fromkeys((client.name, *client.names))]
    for key in ("failures", "drains", "autoscaling"):
        for position, item in enumerate(getattr(part, key)):
            for name in item.clients:
                if name not in known:
                    hint = did_you_mean(name, known)
                    text = f"no client is named {shown(name)}{hint} Known: {listed(known)}"
                    yield Problem(("lifecycle", key, position, "clients"), text)
    names = {name for client in clients for name in client.names}
    for position, group in enumerate(made(part, clients).autoscaling):
        problem = group.problem(len(group.clients))
        if problem and names.issuperset(group.clients):
            field, _, text = problem.partition(" ")
            yield Problem(("lifecycle", "autoscaling", position, field), text)


def _lives(scenario: ScenarioKeys, traits: Traits) -> Iterator[Problem]:
    """Yield parts of a lifecycle without effect, and what these need elsewhere."""
    if scenario.lifecycle is None:
        return
    lives, has_places = made(scenario.lifecycle, scenario.clients), has_topology(scenario.network)
    if lives.start_up is not None and not lives.starts_anybody:
        text = "has no effect: no client starts; failures are permanent, and no client is scaled"
        yield Problem(("lifecycle", "start_up"), text)
    if lives.start_up is not None and lives.start_up.weights_at is not None and not has_places:
        text = "has no effect: the network has no topology"
        yield Problem(("lifecycle", "start_up", "weights_at"), text)
    if lives.on_failure != OnFailure() and not any(one.link is None for one in lives.failures):
        yield Problem(("lifecycle", "on_failure"), "has no effect: there are no failures")
    for position, failure in enumerate(() if has_places else lives.failures):
        for key, have in (("node", "nodes"), ("link", "links")):
            if getattr(failure, key) is not None:
                place = ("lifecycle", "failures", position, key)
                text = f"must be left out without network.topology, which has {have}"
                yield Problem(place, text)
    if lives.asks_for_slo and not _judges(scenario):
        text = "must have a limit, which autoscaling by slo_attainment goes by"
        yield Problem(("slo",), text)


def _judges(scenario: ScenarioKeys) -> bool:
    """Whether the scenario has limits on requests."""
    slo: Slo = scenario.slo.make()
    return slo.judges_requests


def _sliders(scenario: ScenarioKeys, traits: Traits) -> Iterator[Problem]:
    """Yield problems that keep the sliders of a scenario from moving."""
    part = scenario.reconfigure
    if part is None:
        return
    if not FLOWING_ROLES.intersection(client.role for client in traits):
        text = "has no effect: no client has role p_heavy or d_heavy"
        yield Problem(("reconfigure",), text)
    if scenario.view_interval is not None:
        text = (
            "must be left out with reconfigure: the gateway that changes roles knows them at once"
        )
        yield Problem(("view_interval",), text)
    if getattr(part, "on_change", None) is not None and not _judges(scenario):
        text = "must have a limit, which the search of reconfigure.on_change goes by"
        yield Problem(("slo",), text)


Rule = Callable[[ScenarioKeys, Traits], Iterator[Problem]]

RULES: Sequence[Rule] = (
    *(_warmup, _clients, _unserved_stages, _hand_overs, _places_of_nobody, _routers, _polls),
    *(_models, _adapters, _images, _retries, _numbers, _times, _missing, _shares, _classes),
    *(_names, _lives, _sliders),
)
"""In the order in which their problems are told."""
