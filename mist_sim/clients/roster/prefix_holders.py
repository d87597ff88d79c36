"""Which clients have cached blocks of which content, kept as their caches change."""

from __future__ import annotations

from collections.abc import Hashable

from mist_sim.clients.prefixes.prefix_cache import Chain
from mist_sim.core.request import Request
from mist_sim.core.views import KvView


class PrefixHolders:
    """Content ids with the clients whose prefix caches hold blocks of them, client n as bit n.

    The caches report entries and evictions, as engines send KV-cache events to a gateway (the
    event-driven mode of SGLang's gateway, llm-d's precise prefix scorer), here without delay.

    block_size: tokens per block of these clients.
    asked: clients that also find prefixes in other ways, and must be asked.
    """

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.asked = 0
        self._of: dict[Hashable, int] = {}
        self._followers: dict[int, _Follower] = {}

    def watch(self, client_id: int, kv: KvView) -> None:
        """Follow the caches of a client."""
        self._followers[client_id] = follower = _Follower(self._of, 1 << client_id)
        if not kv.watch(follower):
            self.asked |= 1 << client_id

    def forget(self, client_id: int) -> None:
        """Stop following a client's caches, and remove their content."""
        self.asked &= ~(1 << client_id)
        if follower := self._followers.pop(client_id, None):
            follower.stop()

    def levels(self, request: Request, clients: int) -> list[tuple[int, int]]:
        """Yield the clients that may hold a prefix, deepest first, with its largest length.

        Each item is (clients as bits, tokens): clients with blocks of the content span that ends
        there, perhaps of later ones. Clients in `asked` are in the first item, if there are any.
        """
        size, holders = self.block_size, self._of
        most = (request.num_prompt_tokens - 1) // size  # a prompt's last token is computed
        levels = []
        here = clients
        for content_id, end in Chain(request.content, size).spans:
            here &= holders.get(content_id, 0)
            if not here:
                break
            levels.append((here, min(end, most) * size))
            if end >= most:
                break
        levels.reverse()
        if request.content and (asked := self.asked & clients):
            levels.insert(0, (asked, most * size))
        return levels


class _Follower:
    """Follows the caches of one client, which may have several."""

    def __init__(self, holders: dict[Hashable, int], bit: int) -> None:
        self._holders = holders
        self._bit = bit
        self._again: dict[Hashable, int] = {}  # caches that have an id, less one

    def stop(self) -> None:
        """Remove the client's content and ignore later reports of its caches."""
        holders, bit = self._holders, self._bit
        mine = [content_id for content_id, clients in holders.items() if clients & bit]
        self._holders = dict.fromkeys(mine, bit)
        for content_id in mine:
            if clients := holders[content_id] ^ bit:
                holders[content_id] = clients
            else:
                del holders[content_id]

    def enter(self, content_id: Hashable) -> None:
        """Note that its client has one more block with this content."""
        holders, bit = self._holders, self._bit
        clients = holders.get(content_id, 0)
        if clients & bit:
            self._again[content_id] = self._again.get(content_id, 0) + 1
        holders[content_id] = clients | bit

    def leave(self, content_id: Hashable) -> None:
        """Note that its client has one block fewer with this content."""
        if num_others := self._again.pop(content_id, 0):
            if num_others > 1:
                self._again[content_id] = num_others - 1
            return
        clients = self._holders[content_id] ^ self._bit
        if clients:
            self._holders[content_id] = clients
        else:
            del self._holders[content_id]
