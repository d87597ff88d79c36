"""Limits that nothing may exceed, whatever it is given."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

SECONDS = 5.0
"""Processor time of a load, of a trace, of a short run."""

WAIT = 60.0
"""Seconds on a clock, which a pipe or a device may take without any processor time."""


class TooLong(BaseException):
    """Something takes too long; no error of the operating system, which readers turn into one."""


@contextmanager
def time_limit(what: str) -> Iterator[None]:
    """Raise TooLong when what is done inside takes more than `SECONDS` or `WAIT`."""
    if not hasattr(signal, "SIGPROF"):  # Windows
        yield
        return

    def stop(*_: object) -> None:
        raise TooLong(f"{what} takes more than {SECONDS} s of processor time, or waits for ever")

    before = [signal.signal(number, stop) for number in (signal.SIGPROF, signal.SIGALRM)]
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    signal.setitimer(signal.ITIMER_REAL, WAIT)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGPROF, before[0])
        signal.signal(signal.SIGALRM, before[1])


def peak_mib() -> float:
    """Return the most memory that this process ever had."""
    import resource

    unit = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
