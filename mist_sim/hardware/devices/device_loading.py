"""Finds an accelerator by name in the catalog, or reads the TOML spec file of one.

A spec file carries units and may start from a catalog entry, or from another spec file, and change
some keys:

    based_on = "h100-sxm"
    memory = "120 GB"
    memory_bandwidth = "6 TB/s"
    flops.fp8 = "3 PFLOP/s"
    interconnect = {kind = "nvlink", bandwidth = "900 GB/s"}
    prefill = {mfu = 0.7, mbu = 0.85}

A partial table keeps the other keys of the base, except that an interconnect of a named kind
replaces the base's. `GpuSpec.based_on` keeps the name of the catalog's entry. Missing efficiencies
are those of the base, or `TYPICAL_PREFILL` and `TYPICAL_DECODE`, and so are the shares of its power
(`draw`, or `TYPICAL_DRAW`); the confidence of changed figures is "spec-only" unless the file sets
it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from mist_sim.errors import ScenarioError, brief, did_you_mean
from mist_sim.hardware.devices.kernels import Kernel
from mist_sim.hardware.devices.specs import GpuSpec
from mist_sim.spec_files import Table, all_names, load_toml, name_of, read_table, tables_in
from mist_sim.user_paths import user_path

_DATA_SHEET = (
    "memory",
    "memory_bandwidth",
    "flops",
    "host_bandwidth",
    "power",
    "l2_cache",
    "architecture",
    "compute_capability",
)
_NO_FIGURES = ("name", "based_on", "confidence", "sources")
_PRICES = ("price", "gpu_price", "cost", "usd_per_hour")
_DEFAULT_ALL_REDUCE = {"nvlink": "auto", "pcie": "host", "hccs": "auto"}


def gpu_names(*, with_aliases: bool = False) -> list[str]:
    """Return the names of the catalog, sorted."""
    return sorted(all_names(_catalog()) if with_aliases else _catalog())


def load_gpu(said: str | Table | GpuSpec) -> GpuSpec:
    """Return an accelerator of the catalog, of a TOML spec file, or of a spec's keys.

    said: a catalog name or alias ("h100-sxm"), in any case; the path of a spec file; a spec's table
        ({"based_on": "b200", "memory_bandwidth": "10 TB/s"}); or the accelerator itself.

    Raises ScenarioError with the file and the field when there is no such accelerator, or when
    the file cannot be read or holds a key, unit or value that is not right.
    """
    if isinstance(said, GpuSpec):
        return said
    if not isinstance(said, str):
        return gpu_from_table(said, name=_changed_name(said), source="its mapping")
    name_or_path = said
    slug = name_of(name_or_path, _catalog())
    if slug is not None:
        return _catalog_gpu(slug)
    path = user_path(name_or_path)
    if not path.is_file():
        raise _unknown(name_or_path, "no accelerator and no file is named", "a TOML spec file")
    return _read_entry(whole_table(path), path.stem, str(path))


def _changed_name(table: Table) -> str:
    """Return a name for keys without one: the base, and what is changed."""
    base = str(table.get("based_on", "gpu"))
    changed = [key for key in table if key != "based_on"]
    return f"{base} with other {' and '.join(changed)}" if changed else base


def whole_table(path: Path) -> dict[str, object]:
    """Return the table of a spec file, completed with what it is based on."""
    return _on_base(load_toml(path), str(path), (path,))


def architecture_names() -> list[str]:
    """Return the names of the architectures whose kernels have figures, sorted."""
    return list(_architectures())


@cache
def kernels_of(architecture: str) -> Mapping[str, Kernel]:
    """Return the figures of an architecture's kernels, by kind."""
    where, tables = f"{architecture}.toml", _architectures()[architecture]
    return {
        kind: read_table(Kernel, table, where, f"{kind}.")
        for kind, table in tables.items()
        if kind != "sources"
    }


def device_of(gpu: GpuSpec) -> GpuSpec:
    """Return the catalog's entry of the device that an accelerator is based on, or itself."""
    return load_gpu(gpu.based_on) if gpu.based_on in _catalog() else gpu


def is_its_device(gpu: GpuSpec) -> bool:
    """Tell whether an accelerator is the device of the catalog that it is based on.

    Efficiencies, overheads and other measurements may differ; what a data sheet says may not.
    """
    base, links = device_of(gpu), ("kind", "bandwidth", "domain", "tray")
    return gpu.based_on in _catalog() and (
        all(getattr(gpu, name) == getattr(base, name) for name in _DATA_SHEET)
        and all(getattr(gpu.interconnect, n) == getattr(base.interconnect, n) for n in links)
    )


def gpu_from_table(table: Table, *, name: str, source: str) -> GpuSpec:
    """Return the accelerator of a parsed spec file, `based_on` included.

    name: the accelerator's name unless the table has one.
    source: prefix of error messages, such as the file's path.
    """
    return _read_entry(_on_base(table, source, ()), name, source)


def _on_base(table: Table, source: str, files: tuple[Path, ...]) -> dict[str, object]:
    """Return the table of a spec file, completed with what it is based on.

    files: the spec file, after the files that are based on it. A base's path starts at the folder
    of the file that names it.
    """
    own = {key: value for key, value in table.items() if key != "based_on"}
    if not isinstance(own.get("sources", {}), dict):
        raise ScenarioError(f"{source}: sources must be a table, got {brief(own['sources'])}")
    if "based_on" in table:
        base = _base(str(table["based_on"]), source, files) | {"confidence": "spec-only"}
        draw = base.get("draw")
        if own.keys() & {"draw", "power"} and isinstance(draw, dict):
            base["draw"] = {**draw, "confidence": "spec-only"}
        own = merge_tables(base, own) | {"sources": _merged_sources(base, own, source)}
    return own


def _base(named: str, source: str, files: tuple[Path, ...]) -> dict[str, object]:
    """Return the table that a spec file starts from: of a catalog entry or of another file."""
    slug = name_of(named, _catalog())
    if slug is not None:
        return _entry(slug)
    path = _beside(named, files)
    if not path.is_file():
        problem = f"{source}: based_on: no accelerator and no file is named"
        raise _unknown(named, problem, "a TOML spec file")
    if any(path.samefile(file) for file in files):
        raise ScenarioError(f"{source}: based_on must not lead back to {path}; name another base")
    table = _on_base(load_toml(path), str(path), (*files, path))
    _read_entry(table, path.stem, str(path))  # errors in the base name the base's file
    figures = {key: value for key, value in table.items() if key not in _NO_FIGURES}
    sources = dict.fromkeys(_flatten(figures), str(path)) | _flatten(table.get("sources", {}))
    return {key: value for key, value in table.items() if key != "name"} | {"sources": sources}


def _beside(named: str, files: tuple[Path, ...]) -> Path:
    """Return the path of a base: in the folder of the file naming it, or the working directory."""
    path = user_path(named)
    if files and (beside := files[-1].parent / path).is_file():
        return beside
    return path


def base_files(path: Path) -> list[Path]:
    """Return the files that a spec file is based on, one after the other; none of a broken one."""
    found = [path]
    while found[-1].suffix == ".toml":
        try:
            named = load_toml(found[-1]).get("based_on")
        except ScenarioError:
            break
        if not isinstance(named, str) or name_of(named, _catalog()) is not None:
            break
        base = _beside(named, tuple(found))
        if not base.is_file() or any(base.samefile(file) for file in found):
            break
        found.append(base)
    return found[1:]


def merge_tables(base: Table, own: Table) -> dict[str, object]:
    """Return a base's table updated with a file's keys; `sources` are the caller's.

    A link of another kind replaces the base's; a link of the same kind keeps the base's other keys.
    """
    merged = {**base, **own}
    for key, value in own.items():
        under = base.get(key)
        if not (isinstance(value, dict) and isinstance(under, dict)):
            continue
        if value.get("kind") in (None, under.get("kind")):
            merged[key] = merge_tables(under, value) if key == "kernels" else {**under, **value}
    return merged


def _merged_sources(base: Table, own: Table, source: str) -> dict[str, object]:
    """Return the base's sources; figures that the file changes have the file as source."""
    own_sources = _flatten(own.get("sources", {}))
    figures = {key: value for key, value in own.items() if key not in _NO_FIGURES}
    return _flatten(base["sources"]) | dict.fromkeys(_flatten(figures), source) | own_sources


def _read_entry(table: Table, name: str, where: str) -> GpuSpec:
    for key in _PRICES:
        if key in table:
            raise ScenarioError(
                f"{where}: {key} must not stand here, since offers change; say it in the scenario, "
                "gpu_price: 5 $/h under the client, or with mist plan --price NAME=5"
            )
    entry = _with_architecture({"name": name, **table}, where)
    link = entry.get("interconnect")
    if isinstance(link, dict):
        all_reduce = _DEFAULT_ALL_REDUCE.get(str(link.get("kind")), "auto")
        entry["interconnect"] = {"all_reduce": all_reduce, **link}
    if isinstance(entry.get("sources"), dict):
        entry["sources"] = _flatten(entry["sources"])
    return read_table(GpuSpec, entry, where)


def _with_architecture(entry: Table, where: str) -> dict[str, object]:
    """Return an entry completed with the kernels of its architecture."""
    name = entry.get("architecture")
    if not name:
        return {**entry}
    known = _architectures()
    if name not in known:
        hint = did_you_mean(str(name), known)
        raise ScenarioError(
            f"{where}: architecture has no {brief(name)}{hint} Known: {', '.join(known)}"
        )
    table = dict(known[str(name)])
    sources = _flatten(table.pop("sources"), "kernels.")
    merged = merge_tables({"kernels": table}, {"kernels": {}, **entry})
    return merged | {"sources": sources | _flatten(entry.get("sources", {}))}


def _flatten(table: object, prefix: str = "") -> dict[str, object]:
    """Nested tables as dotted names: {"prefill": {"mfu": x}} becomes {"prefill.mfu": x}."""
    if not isinstance(table, dict):
        return {prefix.removesuffix("."): table}
    flat: dict[str, object] = {}
    for key, value in table.items():
        flat |= _flatten(value, f"{prefix}{key}.")
    return flat


@cache
def fitted_gpus() -> tuple[GpuSpec, ...]:
    """Return the catalog's accelerators whose kernels and shares of the peaks were timed."""
    gpus = [load_gpu(name) for name in gpu_names()]
    return tuple(gpu for gpu in gpus if gpu.kernels and gpu.confidence == "fitted")


@cache
def _catalog() -> Mapping[str, Table]:
    """Return the table of each catalog entry, by name."""
    return tables_in("mist_sim.hardware", "catalog")


@cache
def _architectures() -> Mapping[str, Table]:
    """The table of kernels of every architecture by name."""
    return tables_in("mist_sim.hardware", "architectures")


@cache
def _catalog_gpu(slug: str) -> GpuSpec:
    return _read_entry(_entry(slug), slug, f"{slug}.toml")


def _entry(slug: str) -> dict[str, object]:
    figures = {key: value for key, value in _catalog()[slug].items() if key != "aliases"}
    return {"based_on": slug, **figures}


def _unknown(name: str, problem: str, otherwise: str = "") -> ScenarioError:
    hint = did_you_mean(name.lower(), _catalog())
    path = f"; or give the path of {otherwise}" if otherwise else ""
    return ScenarioError(f"{problem} {brief(name)}{hint} Known: {', '.join(gpu_names())}{path}")
