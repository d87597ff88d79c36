"""`mist list`, `help` and `schema`: what a scenario can name, and what its keys are."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mist_sim.cli.session import saving
from mist_sim.errors import ScenarioError, UnknownPluginError, brief, did_you_mean

_SCENARIO = "scenario"


def schema(*, out: Path | None = None, replace: bool = False) -> None:
    """Print the JSON Schema of scenario files, for editors.

    out FILE: Write to this file instead of the terminal.
    """
    import json

    from mist_sim.scenario.json_schema import json_schema

    text = json.dumps(json_schema(), indent=2)
    if out is None:
        typer.echo(text)
        return
    with saving(out, replace=replace) as file:
        file.write(f"{text}\n")


def _topics(incomplete: str) -> list[str]:
    """Return completions for the shell."""
    return [_SCENARIO] * _SCENARIO.startswith(incomplete)


def help_(topic: Annotated[str, {"autocompletion": _topics}], key: str | None = None) -> None:
    """Print what the keys of scenario files are, with types and defaults; all, or one.

    topic scenario|KEY: The keys of scenario files, or one of them.
    key [KEY]: One key, such as router or clients.0.scheduler.max_num_seqs.
    """
    from mist_sim.cli.listings.scenario_keys import explained, page

    path = [topic] * (topic != _SCENARIO) + ([key] if key else [])
    typer.echo("\n\n".join(explained(".".join(path))) if path else page())


def _families(incomplete: str) -> list[str]:
    """Return completions for the shell."""
    return [family for family in _PLACES if family.startswith(incomplete)]


def list_(
    family: Annotated[str, {"autocompletion": _families}] = "", name: str = "", *, series: str = ""
) -> None:
    """List what a scenario can name: models, GPUs, engine versions, plugins, presets.

    family FAMILY: Family to list; by default all.
    name NAME: One of models, gpus, hosts or presets to show as its file has it (of your own
        config.json the sizes read from it), of topologies to draw, or of engines.
    series --family SERIES: With models: those of a series, such as qwen3.5.
    """
    from mist_sim.cli.listings.catalogs import models, topology
    from mist_sim.cli.listings.entries import ENTRIES, entry
    from mist_sim.cli.listings.families import homes_of, listings, overview
    from mist_sim.cli.listings.releases import release
    from mist_sim.report.elements import Terminal, Trimmed

    families = listings(_PLACES)
    if family and family not in families:
        homes = homes_of(family, families)
        hint = did_you_mean(family, families)
        if homes:
            hint = f"; it is one of {' and '.join(homes)}: mist list {homes[0]}."
        raise UnknownPluginError(
            f"no family named {brief(family)}{hint} Known: {', '.join(families)}"
        )
    if name and family in ENTRIES:
        table = entry(family, name)
        if isinstance(table, str):
            typer.echo(table, nl=False)
            return
    elif name:
        if family not in _SHOWN:
            raise ScenarioError(
                f"NAME must follow {', '.join((*_SHOWN, *ENTRIES))}, whose entries can be shown, "
                f"got {family}"
            )
        table = topology(name) if family == "topologies" else release(name)
    elif series:
        if family != "models":
            raise ScenarioError(f"--family must follow models, which have series, got {family}")
        table = models(series)
    else:
        table = families[family].show() if family else overview(_PLACES, families)
    Terminal().print(Trimmed(table))


_SHOWN = ("topologies", "engines")

_PLACES = {
    "models": "model, clients.N.model",
    "gpus": "clients.N.gpu",
    "hosts": "clients.N.host, for GPUs that PCIe links",
    "topologies": "network.topology",
    "clients": "clients",
    "routers": "router",
    "schedulers": "clients.N.scheduler",
    "predictors": "clients.N.predictor",
    "trace_readers": "workload.trace",
    "arrivals": "workload.arrivals",
    "samplers": "workload.lengths",
    "lengths": "prompt and output of workload.lengths: {type: synthetic}",
    "durations": "workload.patience, lifecycle.start_up.time, "
    "base_time and time_per_token of clients of type sequential",
    "autoscalers": "policy of lifecycle.autoscaling.N",
    "admissions": "gateway",
    "evictions": "clients.N.kv_cache.eviction, and those of tiers and of kv_retrieval clients",
    "stages": "workload.pipeline",
    "connectors": "network.connector",
    "hand_over_policies": "hand_over.policy",
    "prices": "cost; clients.N.gpu_price takes the place of one",
    "engines": "engine, clients.N.engine: releases of vLLM, by which defaults differ",
    "options": "clients.N, with vLLM's names, defaults and meanings",
    "slos": "slo",
    "profiles": "name of workload.lengths: {type: profile}",
    "presets": "mist run NAME",
}
