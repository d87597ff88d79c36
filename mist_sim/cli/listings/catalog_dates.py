"""How new the catalogs are: when each of them last changed, for `mist --version`.

What they hold is written down beside the dates, since to read them takes a second.
"""

from __future__ import annotations

import tomllib
from importlib import resources
from pathlib import Path

DATES = Path(str(resources.files("mist_sim.cli.listings"))) / "catalog_dates.toml"


def catalog_lines() -> list[str]:
    """Return a line for each catalog: what it holds, and when it last changed."""
    dates = tomllib.loads(DATES.read_text("utf-8")).values()
    return [f"  {each['holds']:<28} changed {each['date']}" for each in dates]
