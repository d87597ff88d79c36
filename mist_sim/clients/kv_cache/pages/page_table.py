"""The pages of a lane one by one: which are free, in what order, and what is found in them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable


class Page:
    """A page of a group of layers. name: the tokens whose entries are in it, or were.

    holders: requests that hold it; without any it is free, and its content is found until the page
        is used for something else.
    """

    __slots__ = ("group", "holders", "name")

    def __init__(self, group: int) -> None:
        self.group = group
        self.holders = 1
        self.name: Hashable = None


class PageTable:
    """Free pages in the order in which they are used, and named pages by group.

    num_blank: free pages in which nothing is found and which are used before all others.
    blank_first: whether returned pages without a name are used before the others (vLLM from 0.24
        on), rather than in the order of their return.
    watched: names that the latest look-up was for.
    changes: grows whenever a page with one of these comes or goes, or is held or free.
    fresh: names of blocks whose states were saved in the present plan.

    Source: `BlockPool` in `vllm/v1/core/block_pool.py`.
    """

    def __init__(self, num_pages: int, num_groups: int, *, blank_first: bool) -> None:
        self.num_blank = num_pages
        self.watched: frozenset[Hashable] = frozenset()
        self.changes = 0
        self.fresh: set[Hashable] = set()
        self._blank_first = blank_first
        self._free: OrderedDict[Page, None] = OrderedDict()  # the next one to be used first
        self._named: list[dict[Hashable, dict[Page, None]]] = [{} for _ in range(num_groups)]

    @property
    def num_free(self) -> int:
        """Pages that no request holds."""
        return self.num_blank + len(self._free)

    def find(self, group: int, name: Hashable) -> Page | None:
        """Return the page that has had a name for longest; None without any."""
        copies = self._named[group].get(name)
        return next(iter(copies)) if copies else None

    def take(self, group: int) -> Page:
        """Take the free page that is used next; what was in it is lost."""
        if self.num_blank:
            self.num_blank -= 1
            return Page(group)
        page, _ = self._free.popitem(last=False)
        self._forget(page)
        page.group, page.holders = group, 1
        return page

    def hold(self, page: Page) -> bool:
        """Let one more request hold a page; return whether it was free."""
        is_free = not page.holders
        if is_free:
            del self._free[page]
        page.holders += 1
        if page.name in self.watched:
            self.changes += 1
        return is_free

    def call(self, page: Page, name: Hashable) -> None:
        """Name a page by the tokens in it."""
        page.name = name
        self._named[page.group].setdefault(name, {})[page] = None
        if name in self.watched:
            self.changes += 1

    def let_go(self, pages: Iterable[Page | None]) -> int:
        """Take pages back from a request, in this order; return how many are free now."""
        num_free, watched = 0, self.watched
        for page in pages:
            if page is None:
                continue
            page.holders -= 1
            if page.holders:
                continue
            num_free += 1
            if page.name in watched:
                self.changes += 1
            if page.name is None and self._blank_first:
                self.num_blank += 1
            else:
                self._free[page] = None
        return num_free

    def _forget(self, page: Page) -> None:
        if page.name is None:
            return
        copies = self._named[page.group][page.name]
        del copies[page]
        if not copies:
            del self._named[page.group][page.name]
        if page.name in self.watched:
            self.changes += 1
        page.name = None
