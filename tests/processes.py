"""Which processes are there, as Linux tells."""

import time
from contextlib import suppress
from pathlib import Path

_PROC = Path("/proc")
_LONG = 300.0  # seconds that nothing lasts on any machine

SEES_PROCESSES = Path("/proc/self/stat").exists()


def in_session(leader: int) -> dict[int, str]:
    """Return the processes of a session that have not ended, with their command lines."""
    found = {}
    for folder in _PROC.iterdir():
        if folder.name.isdigit():
            with suppress(OSError):  # it has just ended
                state, _, _, session = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
                if int(session) == leader and state != "Z":
                    words = (folder / "cmdline").read_bytes().split(b"\0")
                    found[int(folder.name)] = b" ".join(words).decode(errors="replace")[:200]
    return found


class Stopwatch:
    """Seconds without those in which the processes of a session waited for a processor.

    On a quiet machine these are seconds; on a busy one a process takes no blame for others. After
    very long all seconds count.
    """

    def __init__(self, leader: int) -> None:
        self._leader = leader
        self._start = self._last = time.monotonic()
        self._waits = self._waited()
        self._seconds = 0.0

    def seconds(self) -> float:
        """Return how many have passed; ask often."""
        now, waits = time.monotonic(), self._waited()
        longest = max((wait - self._waits.get(key, 0.0) for key, wait in waits.items()), default=0)
        self._seconds += max(0.0, now - self._last - longest)
        self._last, self._waits = now, waits
        return self._seconds if now - self._start < _LONG else now - self._start

    def _waited(self) -> dict[str, float]:
        """Return how many seconds each thread has waited for a processor since it began."""
        found = {}
        for pid in in_session(self._leader):
            with suppress(OSError):
                for thread in (_PROC / str(pid) / "task").iterdir():
                    found[str(thread)] = int((thread / "schedstat").read_text().split()[1]) / 1e9
        return found


def wait_until_gone(leader: int, seconds: float) -> float:
    """Wait until all processes of a session have ended; return how many seconds that took.

    Raises AssertionError after so many; both as a `Stopwatch` counts.
    """
    watch = Stopwatch(leader)
    while left := in_session(leader):
        assert watch.seconds() < seconds, f"there after {seconds:g} s: {left}"
        time.sleep(0.02)
    return watch.seconds()
