"""Writes the date of today beside each catalog that has changed: `mist --version` prints it.

python docs/make_catalog_dates.py
"""

from __future__ import annotations

import tomllib
from datetime import UTC, datetime

from mist_sim.cli.listings.catalog_dates import CATALOGS, DATES, digest_of, held

INTRO = (
    "# When each catalog last changed, the checksum of its files then, and what it holds.\n"
    "# Written by docs/make_catalog_dates.py.\n"
)


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
