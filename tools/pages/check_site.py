"""Checks the built site: every link inside it leads to a page, and to a place on it.

    python tools/pages/check_site.py site

Prints each broken link with its page and leaves with 1 if there is one. Links to other sites are
not followed.
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The links of a page, and the ids that links may name."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.ids: set[str] = set()
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect the links and the ids of a tag."""
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.links.add(value)
            elif name == "id" and value:
                self.ids.add(value)


def broken_links(site: Path) -> list[str]:
    """Return a line for each link of a site's pages that leads nowhere."""
    pages = {path.resolve(): Page(path) for path in site.rglob("*.html")}
    broken = []
    for path, page in sorted(pages.items()):
        for link in sorted(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            home = site if parts.path.startswith("/") else path.parent  # 404.html names the root
            target = (home / unquote(parts.path).lstrip("/")).resolve() if parts.path else path
            known = pages.get(target)
            lost = known is not None and parts.fragment and parts.fragment not in known.ids
            if not target.is_file() or lost:
                broken.append(f"{path.relative_to(site.resolve())}: {link}")
    return broken


def main() -> None:
    """Print broken links of the site; exit with 1 if there are any."""
    site = Path(sys.argv[1])
    broken = broken_links(site)
    print("\n".join([*broken, f"{len(list(site.rglob('*.html')))} pages, {len(broken)} broken"]))
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
