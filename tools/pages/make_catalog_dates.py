"""Writes the date of today beside each catalog that has changed: `mist --version` prints it.

python tools/pages/make_catalog_dates.py
"""

from __future__ import annotations

import re
import tomllib
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

from mist_sim.cli.listings.catalog_dates import DATES

INTRO = (
    "# When each catalog last changed, the checksum of its files then, and what it holds.\n"
    "# Written by tools/pages/make_catalog_dates.py.\n"
)


_PACKAGE = Path(__file__).parents[2] / "mist_sim"
CATALOGS = {
    "models": ("models/catalog", "models/generation_configs.csv"),
    "gpus": ("hardware/catalog", "hardware/architectures"),
    "prices": ("hardware/prices.csv",),
    "engines": ("scenario/engines/versions.toml", "clients/engine_rules.py"),
}
"""The files and folders of each catalog, inside the package."""


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


def page() -> str:
    """Return the file as it should be: catalogs that did not change keep their date."""
    known = tomllib.loads(DATES.read_text("utf-8")) if DATES.exists() else {}
    today = datetime.now(UTC).date()
    sections, holds = [], held()
    for name in CATALOGS:
        digest = digest_of(name)
        entry = known.get(name, {})
        date = entry["date"] if entry.get("digest") == digest else today
        sections.append(f'[{name}]\ndate = {date}\ndigest = "{digest}"\nholds = "{holds[name]}"\n')
    return "\n".join([INTRO, *sections])


if __name__ == "__main__":
    DATES.write_text(page(), encoding="utf-8", newline="\n")
