"""The requests that wait for admission, first come, first served."""

from __future__ import annotations

from array import array

_NONE = -1


class Queue:
    """Slots in a row; one leaves from anywhere without a search.

    first: the slot that is next, -1 if none waits. length: how many wait.
    """

    def __init__(self) -> None:
        self.first = self.last = _NONE
        self.length = 0
        self.before = self.behind = array("q")

    def make_room(self, num_slots: int) -> None:
        """Let slots up to a number wait."""
        more = bytes(8 * (num_slots - len(self.before)))
        self.before = array("q", array("q", self.before).tobytes() + more)
        self.behind = array("q", array("q", self.behind).tobytes() + more)

    def add(self, slot: int) -> None:
        """Queue a slot at the end."""
        self.before[slot], self.behind[slot] = self.last, _NONE
        if self.last == _NONE:
            self.first = slot
        else:
            self.behind[self.last] = slot
        self.last = slot
        self.length += 1

    def give_back(self, slot: int) -> None:
        """Queue a slot before all others."""
        self.before[slot], self.behind[slot] = _NONE, self.first
        if self.first == _NONE:
            self.last = slot
        else:
            self.before[self.first] = slot
        self.first = slot
        self.length += 1

    def remove(self, slot: int) -> None:
        """Take a slot out, wherever it stands."""
        before, behind = self.before[slot], self.behind[slot]
        if before == _NONE:
            self.first = behind
        else:
            self.behind[before] = behind
        if behind == _NONE:
            self.last = before
        else:
            self.before[behind] = before
        self.length -= 1

    def slots(self) -> list[int]:
        """Return the slots that wait, in order."""
        found, slot = [], self.first
        while slot != _NONE:
            found.append(slot)
            slot = self.behind[slot]
        return found
