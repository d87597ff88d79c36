"""When the plain client that re-shards goes to the prompts, and when it leaves them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.reference.resharded import ReferenceResharding as Client


class Policy:
    """What all have in common. There are prompts that wait."""

    def wants_prompts(self, client: Client) -> bool:
        raise NotImplementedError

    def rests(self, client: Client) -> bool:
        """Tell whether answers go on although prompts could be computed."""
        return False

    def has_gained(self, client: Client) -> bool:
        """Tell whether prompts may fit that did not when the answers' turn began."""
        return not client.was_short or client.has_finished


class PrefillFirst(Policy):
    def wants_prompts(self, client: Client) -> bool:
        return self.has_gained(client) and client.fits(client.waiting[0])


class DecodeFirst(Policy):
    def wants_prompts(self, client: Client) -> bool:
        return not client.has_answers


@dataclass
class Threshold(Policy):
    share: float

    def wants_prompts(self, client: Client) -> bool:
        if not self.has_gained(client) or not client.fits(client.waiting[0]):
            return False
        return (client.all_blocks - client.free) / client.all_blocks < self.share


class Drain(Policy):
    def wants_prompts(self, client: Client) -> bool:
        return not (client.has_answers or client.on_host)


class Pause(Policy):
    def wants_prompts(self, client: Client) -> bool:
        if client.on_host or client.coming or client.here:
            return False
        if not client.decoding:
            return True
        return self.has_gained(client) and client.fits(client.waiting[0])


class Out(Policy):
    """Answers go to the buffer when it is empty, if half of it is left for prompts."""

    def wants_prompts(self, client: Client) -> bool:
        if client.on_host or client.coming or client.here:
            return False
        return not client.decoding or self.has_room(client, 0.5)

    def has_room(self, client: Client, share: float) -> bool:
        used = client.all_blocks - client.free
        assert client.host_blocks is not None
        return used <= share * client.host_blocks and client.has_room(client.waiting[0], used)


@dataclass
class Bound(Out):
    """Prompts that have waited for `late` seconds go first, those up to `early` last.

    Answers have a step first whenever their turn begins.
    """

    early: float
    late: float

    def rests(self, client: Client) -> bool:
        if not (client.has_answers or client.on_host):
            return False
        return not client.waiting or client.now <= client.waiting[0].arrival + self.early

    def wants_prompts(self, client: Client) -> bool:
        if not (client.has_answers or client.on_host):
            return True
        is_late = client.now >= client.waiting[0].arrival + self.late
        return client.has_stepped and is_late and self.has_room(client, 1.0)
