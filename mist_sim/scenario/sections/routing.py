"""Keys of a scenario about routers, and about models that requests name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from mist_sim.errors import TraceError, brief, did_you_mean, listed
from mist_sim.routers import LengthAwareRouter, PolledRouter, RandomRouter, RoundRobinRouter, Router
from mist_sim.scenario.format.families import STAGE
from mist_sim.scenario.format.parts import Part
from mist_sim.scenario.format.problems import Problem
from mist_sim.scenario.sections.clients import ClientPart
from mist_sim.scenario.sections.workload import WorkloadSpec
from mist_sim.stages import Decode, EncodeImages, Prefill
from mist_sim.traces import NamesModels, TraceReader
from mist_sim.traces.workload import BASE

_LOOK_AT_NO_LOAD = (RandomRouter, RoundRobinRouter)


def made_router(part: Part, view_interval: float | None, counts_sent: bool) -> Router:
    """Return the router of a part, with polled views if there is an interval."""
    router: Router = part.make()
    if not view_interval:
        return router
    return PolledRouter(router=router, view_interval=view_interval, counts_sent=counts_sent)


def of_kinds(routers: Mapping[str, Part]) -> dict[str, Part]:
    """Return routers by the kind of stage that clients serve, instead of its name."""
    return {STAGE.registry[name].kind: part for name, part in routers.items()}


def router_problems(
    routers: Mapping[str, Part],
    workload: WorkloadSpec,
    clients: Sequence[ClientPart],
    model: str | None,
) -> Iterable[Problem]:
    """Yield routers of stages that do not exist or are not routed.

    model: the scenario's.
    """
    served = {stage for client in clients for stage in client.stages}
    only_ours = all(client.is_ours for client in clients)
    has_roles = any(client.describe(model).role for client in clients)
    for name in routers:
        if problem := _no_stage(name, served):
            yield Problem(("routers", name), problem)
        elif only_ours and name not in workload.stages:
            stages = ", ".join(workload.stages)
            yield Problem(
                ("routers", name), f"has no effect: no request walks it; they walk {stages}"
            )
        elif only_ours and name == Decode.kind and not has_roles:
            yield Problem(
                ("routers", name),
                "has no effect: no client has a role, so that prefill and decode are one visit, "
                "for which the router of prefill is asked",
            )


def _no_stage(name: str, served: set[str]) -> str:
    if name not in STAGE.registry:
        hint = did_you_mean(name, STAGE.registry)
        return f"there is no stage {brief(name)}{hint} Known: {', '.join(STAGE.registry)}"
    if STAGE.registry[name].kind not in served and name not in served:
        return f"no client serves {brief(name)}; the clients serve {listed(sorted(served))}"
    return ""


def poll_problems(
    view_interval: float | None, counts_sent: bool, routers: Iterable[Part]
) -> Iterable[Problem]:
    """Yield polling options without effect, and an invalid interval."""
    if view_interval is None:
        if not counts_sent:
            yield Problem(("counts_sent",), "has no effect without view_interval")
        return
    plugins = [part.plugin for part in routers]
    if view_interval < 0:
        yield Problem(("view_interval",), f"must be >= 0 s, got {view_interval}")
    elif LengthAwareRouter in plugins:
        text = "must be left out with length_aware: its estimates use the present state, not polls"
        yield Problem(("view_interval",), text)
    elif all(plugin in _LOOK_AT_NO_LOAD for plugin in plugins):
        text = "has no effect: random and round_robin use no state, so polls change nothing"
        yield Problem(("view_interval",), text)


def served_models(clients: Iterable[ClientPart], model: str | None) -> set[str] | None:
    """Return the names of the models that clients serve; None if a client may serve any.

    model: the scenario's.
    """
    found: set[str] = set()
    for client in clients:
        traits = client.describe(model)
        if traits.model is not None:
            found.add(traits.model)
        elif Prefill.kind in traits.serves or Decode.kind in traits.serves:
            return None
    return found


def model_problems(workload: WorkloadSpec, served: set[str] | None) -> Iterable[Problem]:
    """Yield models that requests or stages name and no client serves."""
    if served is None:
        return
    for name in workload.models or {}:
        if name not in served:
            yield Problem(("workload", "models", name), _nobody_serves(name, served))
    for position in range(len(workload.pipeline)):
        for key, name in workload.names_models(position):
            if name not in served:
                place = ("workload", "pipeline", position, key)
                yield Problem(place, f"got {brief(name)}: {_nobody_serves(name, served)}")


def adapter_problems(workload: WorkloadSpec, clients: Sequence[ClientPart]) -> Iterable[Problem]:
    """Yield adapters that requests name, where a client that may get them serves none."""
    if set(workload.adapters or ()) <= {BASE}:
        return
    for number, client in enumerate(clients):
        generates = Prefill.kind in client.stages or Decode.kind in client.stages
        if generates and client.parameters().get("lora") is None:
            yield Problem(
                ("clients", number),
                f"must have lora, such as {{max_loras: {len(workload.adapters or ())}}}, since "
                "requests name adapters (workload.adapters)",
            )


def image_problems(workload: WorkloadSpec, clients: Sequence[ClientPart]) -> Iterable[Problem]:
    """Yield clients that serve images and may not, and images that no client encodes."""
    encodes = EncodeImages.kind in workload.stages
    for number, client in enumerate(clients):
        if Prefill.kind not in client.stages:
            continue
        has_tower = client.parameters().get("images") is not None
        if workload.images is not None and not encodes and not has_tower:
            yield Problem(
                ("clients", number),
                "must have images, such as {mm_encoder_tp_mode: data}, since prompts have some "
                "(workload.images)",
            )
        elif has_tower and (workload.images is None or encodes):
            why = "an image_encoder has them" if encodes else "no prompt has any (workload.images)"
            yield Problem(("clients", number, "images"), f"must be left out: {why}")
    if encodes and workload.images is None:
        yield Problem(("workload", "images"), "is required with encode_images in the pipeline")


def check_rows(source: object, served: set[str] | None) -> None:
    """Raise TraceError for the first row whose model no client serves."""
    if served is None or not isinstance(source, TraceReader):
        return
    if isinstance(source, NamesModels) and source.names_models:
        for line, model in source.models():
            if model not in served:
                text = f"names the model {brief(model)}: {_nobody_serves(model, served)}"
                raise TraceError(source.path, line, text)


def _nobody_serves(model: str, served: set[str]) -> str:
    hint = did_you_mean(model, served)
    return f"no client serves it{hint} The clients serve {listed(sorted(served))}"
