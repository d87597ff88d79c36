"""`mist list`: what a scenario can name: models, GPUs, hosts, plugins of every family, presets."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, get_args

import typer

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from mist_sim.scenario.format.parts import Part


def _families(incomplete: str) -> list[str]:
    """Return what a shell may complete."""
    return [family for family in _PLACES if family.startswith(incomplete)]


def list_(
    family: str = typer.Argument(
        "",
        metavar="FAMILY",
        help="What to list; all families without it.",
        autocompletion=_families,
    ),
    name: str = typer.Argument(
        "",
        metavar="NAME",
        help="With topologies: the one to draw, a preset or a .toml file.",
    ),
) -> None:
    """List what a scenario can name: models, GPUs, hosts, topologies, plugins, presets."""
    from rich.console import Console

    from mist_sim.errors import ScenarioError, UnknownPluginError, did_you_mean
    from mist_sim.report.elements.layout import Trimmed

    listings = _listings()
    if family and family not in listings:
        raise UnknownPluginError(
            f"no family named {family!r}{did_you_mean(family, listings)} "
            f"Known: {', '.join(listings)}"
        )
    if name:
        if family != "topologies":
            raise ScenarioError(f"NAME must follow topologies, which can be drawn, got {family}")
        table = _drawing(name)
    else:
        table = listings[family]() if family else _overview()
    Console(highlight=False).print(Trimmed(table))


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
    "stages": "workload.pipeline",
    "connectors": "network.connector",
    "hand_over_policies": "hand_over.policy",
    "prices": "cost; clients.N.gpu_price takes the place of one",
    "options": "clients.N, with vLLM's names, defaults and meanings",
    "presets": "mist run NAME",
}


def _listings() -> dict[str, Callable[[], RenderableType]]:
    from functools import partial

    from mist_sim.scenario.plugins import FAMILIES, load_plugins

    load_plugins()
    plugins = {name: partial(_plugins, name) for name in FAMILIES}
    specs = {"models": _models, "gpus": _gpus, "hosts": _hosts, "topologies": _topologies}
    own = {"prices": _prices, "options": _options, "presets": _presets}
    return {**specs, **plugins, **own}


def _overview() -> RenderableType:
    from mist_sim.hardware import gpu_names, host_names
    from mist_sim.hardware.prices import offers
    from mist_sim.models import model_names
    from mist_sim.network import topology_names
    from mist_sim.scenario.options.listing import engine_options
    from mist_sim.scenario.plugins import FAMILIES
    from mist_sim.scenario.presets import preset_names

    names = {
        "models": model_names(),
        "gpus": gpu_names(),
        "hosts": host_names(),
        "topologies": topology_names(),
        **{name: list(family.registry) for name, family in FAMILIES.items()},
        "prices": sorted({offer.gpu for offer in offers()}),
        "options": [option.key for option in engine_options() if "." not in option.key],
        "presets": preset_names(),
    }
    table = _table("family", "names")
    for family, place in _PLACES.items():
        table.add_row(family, f"{', '.join(names[family])}\n[dim]{place}[/dim]")
    table.caption = "mist list FAMILY shows descriptions and parameters"
    return table


def _plugins(family_name: str) -> RenderableType:
    from rich.markup import escape

    from mist_sim.scenario.plugins import FAMILIES

    family = FAMILIES[family_name]
    table = _table("type", f"in a scenario: {_PLACES[family_name]}")
    for name in family.registry:
        model = family.part_type(name)
        about = escape(_summary(model))
        parameters = ", ".join(_parameters(model))
        table.add_row(name, f"{about}\n[dim]{escape(parameters)}[/dim]" if parameters else about)
    return table


def _parameters(model: type[Part]) -> Iterator[str]:
    """Yield a plugin's parameters: "name", with its unit and default where it has them."""
    from mist_sim.scenario.format.fields import Quantity

    defaults = model.model_construct().model_dump(mode="json", by_alias=True, warnings=False)
    for info in model.model_fields.values():
        name = info.alias or ""
        if name in defaults and name != "type":
            value = defaults[name]
            yield f"{name} = {value if isinstance(value, str) else json.dumps(value)}"
        elif name not in ("", "type"):
            kinds = [mark.kind.base for mark in info.metadata if isinstance(mark, Quantity)]
            yield f"{name} (required{''.join(f', in {unit}' for unit in kinds)})"


def _models() -> RenderableType:
    from mist_sim.models import load_model, model_names
    from mist_sim.report.elements.layout import listed

    rows = []
    for name in model_names():
        model = load_model(name)
        rows.append(
            (
                name,
                f"{model.num_parameters / 1e9:.1f} B",
                str(model.num_layers),
                f"{model.max_position_embeddings:,}",
                f"{model.kv_bytes_per_token / 1024:.0f} KiB",
            )
        )
    titles = ("model", "parameters", "layers", "context", "KV per token")
    return _captioned(
        listed(titles, rows, right=range(1, 5)), "or the path of a Hugging Face config.json"
    )


def _gpus() -> RenderableType:
    from mist_sim.hardware import gpu_names, load_gpu
    from mist_sim.report.elements.layout import listed

    rows = []
    for name in gpu_names():
        gpu = load_gpu(name)
        rows.append(
            (
                name,
                f"{gpu.memory / 2**30:.0f} GiB",
                f"{gpu.memory_bandwidth / 1e12:.2f} TB/s",
                f"{gpu.flops['bf16'] / 1e12:.0f} TFLOP/s",
                f"{gpu.interconnect.kind} {gpu.interconnect.bandwidth / 1e9:.0f} GB/s",
                gpu.confidence,
            )
        )
    titles = ("gpu", "memory", "bandwidth", "bf16", "link", "estimates")
    return _captioned(listed(titles, rows, right=range(1, 4)), "or the path of a .toml spec file")


def _hosts() -> RenderableType:
    from mist_sim.hardware import host_names, load_gpu, load_host
    from mist_sim.hardware.devices.hosts import bus_rate
    from mist_sim.report.elements.layout import listed

    rows = []
    for name in host_names():
        host = load_host(name)
        card = load_gpu("l40s" if host.pcie_generation == 4 else "rtx-pro-6000")
        link = replace(card.interconnect, host=host)
        rates = (f"{bus_rate(link, ranks) / 1e9:.1f} GB/s" for ranks in (2, 4, 8))
        rows.append((name, "yes" if host.peer_access else "no", *rates))
    titles = ("host", "peer access", "2 GPUs", "4 GPUs", "8 GPUs")
    caption = (
        "bus bandwidth of large collectives, with PCIe 5.0 cards where the host takes them; "
        "or the path of a .toml spec file, or a mapping"
    )
    return _captioned(listed(titles, rows, right=range(2, 5)), caption)


def _prices() -> RenderableType:
    from mist_sim.hardware.prices import PriceKind, offers
    from mist_sim.report.elements.layout import listed

    kinds = get_args(PriceKind)
    rows = [
        (
            offer.gpu,
            offer.provider,
            str(offer.num_gpus),
            *("-" if (price := offer.price(kind)) is None else f"{price:.2f}" for kind in kinds),
            offer.date,
        )
        for offer in offers()
    ]
    titles = ("gpu", "provider", "GPUs", "on demand", "spot", "1 year", "3 years", "date")
    caption = "$ of one GPU an hour; a run takes the median. Sources: mist_sim/hardware/prices.csv"
    return _captioned(listed(titles, rows, right=range(2, 7)), caption)


def _topologies() -> RenderableType:
    from mist_sim.network import load_topology, topology_names
    from mist_sim.report.elements.layout import listed

    rows = []
    for name in topology_names():
        topology = load_topology(name)
        nodes = f"{topology.nodes} x {topology.gpus} GPUs"
        racks = str(topology.num_racks)
        nvlink = f"{topology.nvlink / 1e9:.0f} GB/s" if topology.nvlink else "none"
        nics = f"{topology.nics} x {topology.nic * 8e-9:.0f} Gb/s"
        rows.append((name, nodes, racks, nvlink, f"{topology.pcie / 1e9:.0f} GB/s", nics))
    titles = ("topology", "nodes", "racks", "NVLink", "PCIe", "NICs")
    return _captioned(
        listed(titles, rows, right=range(1, 6)),
        "or the path of a .toml spec file; mist list topologies NAME draws one",
    )


def _drawing(name: str) -> RenderableType:
    """Return a topology as a tree, and where its figures come from."""
    from rich.console import Group
    from rich.text import Text

    from mist_sim.network import load_topology
    from mist_sim.network.topology.drawing import drawing

    topology = load_topology(name)
    sources = [f"{figure}: {source}" for figure, source in topology.sources.items()]
    return Group(Text(drawing(topology)), Text("\n".join(["", *sources]), style="dim"))


def _captioned(body: RenderableType, caption: str) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    return Group(body, Text(caption, style="dim italic"))


def _options() -> RenderableType:
    import re

    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    from mist_sim.scenario.options.listing import engine_options

    lines: list[RenderableType] = []
    for option in engine_options():
        types = f" ({', '.join(option.types)})" if option.types else ""
        values = f"; one of {', '.join(option.values)}" if option.values else ""
        default = " (required)" if option.default is None else f" = {option.default}"
        whole = re.sub(r" \([^()]*[;:.] [^()]*\)", "", option.meaning)
        meaning = re.split(r"[;.] | \(vLLM's name", whole)[0]
        head = Text.assemble(
            f"{option.key}{default}", (f"   vLLM: {option.vllm or 'not known'}", "dim")
        )
        lines += [head, Padding(Text(f"{meaning}{values}{types}"), (0, 0, 0, 4))]
    note = (
        "Keys of clients.N, with vllm serve's flags; docs/reference/scenario.md says more of each"
    )
    return Group(*lines, Text(note, style="dim italic"))


def _presets() -> RenderableType:
    from mist_sim.scenario.presets import preset_names, preset_path

    table = _table("preset", "mist run NAME")
    for name in preset_names():
        first = preset_path(name).read_text(encoding="utf-8").splitlines()[0]
        table.add_row(name, first.removeprefix("# "))
    return table


def _table(*titles: str) -> Table:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, caption_justify="left")
    for title in titles:
        table.add_column(title)
    table.columns[0].no_wrap = True
    return table


def _summary(model: type[Part]) -> str:
    """Return the first paragraph of a class's docstring, without what parameters mean."""
    from mist_sim.scenario.format.docstrings import documented

    names = [info.alias or name for name, info in model.model_fields.items()]
    paragraphs, _ = documented(model.plugin, names)
    return next(iter(paragraphs), "")
