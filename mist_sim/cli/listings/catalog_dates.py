"""How new the catalogs are: when each of them last changed, for `mist --version`.

What they hold is written down beside the dates, since to read them takes a second.
"""

from __future__ import annotations

import re
import tomllib
from hashlib import sha256
from importlib import resources
from pathlib import Path

CATALOGS = {
    "models": ("models/catalog", "models/generation_configs.csv"),
    "gpus": ("hardware/catalog", "hardware/architectures"),
    "prices": ("hardware/prices.csv",),
    "engines": (
        "scenario/engines/engine_version.py",
        "scenario/engines/versions.py",
        "scenario/engines/version_defaults.py",
        "clients/engine_rules.py",
    ),
}
"""The files and folders of each catalog, inside the package."""

_PACKAGE = Path(str(resources.files("mist_sim")))
DATES = _PACKAGE / "cli" / "listings" / "catalog_dates.toml"


def digest_of(catalog: str) -> str:
    """Return a checksum of a catalog's files, whose names and lines count."""
    places = [_PACKAGE / place for place in CATALOGS[catalog]]
    files = [file for place in places for file in (place, *place.rglob("*")) if file.is_file()]
    known = sorted(file for file in files if file.suffix in (".toml", ".json", ".py", ".csv"))
    total = sha256()
    for file in known:
        total.update(file.relative_to(_PACKAGE).as_posix().encode())
        total.update(file.read_text("utf-8").encode())
    return total.hexdigest()[:16]


def held() -> dict[str, str]:
    """Return what each catalog holds, read from it."""
    from mist_sim.hardware import gpu_names
    from mist_sim.hardware.prices import offers
    from mist_sim.models import model_names
    from mist_sim.scenario.engines.versions import VERSIONS

    years = sorted(year for offer in offers() for year in re.findall(r"20\d\d", offer.date))
    versions = [name.removeprefix("vllm-") for name in VERSIONS]
    return {
        "models": f"models  {len(model_names())}",
        "gpus": f"GPUs    {len(gpu_names())}",
        "prices": f"prices  {len(offers())}, of {years[0]} to {years[-1]}",
        "engines": f"vLLM    {versions[0]} to {versions[-1]}",
    }


def catalog_lines() -> list[str]:
    """Return a line for each catalog: what it holds, and when it last changed."""
    dates = tomllib.loads(DATES.read_text("utf-8"))
    return [f"  {dates[name]['holds']:<28} changed {dates[name]['date']}" for name in CATALOGS]
