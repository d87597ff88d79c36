"""How many steps a lane computes ahead."""

from __future__ import annotations

# Any numbers give the same results. Runs grow while they are not cut, so that what a cut throws
# away is in proportion to what runs.
_FIRST_RUN = 512
_LONGEST_RUN = 65536


class RunLength:
    """The most steps of a lane's next run.

    limit: twice as many after a run of full length, half after one that was cut.
    """

    def __init__(self) -> None:
        self.limit = _FIRST_RUN
        self._longest = _LONGEST_RUN

    def be_single(self) -> None:
        """Compute no step ahead from the next plan on, so that the KV memory is known at any time.

        Results do not change, but the simulation is slower.
        """
        self.limit = self._longest = 1

    def adapt(self, num_steps: int, num_planned: int) -> None:
        """Note how many steps of a run were carried out, and how many had been planned."""
        limit = self.limit
        if num_steps == limit:
            self.limit = min(2 * limit, self._longest)
        elif limit > _FIRST_RUN and num_steps < num_planned:
            self.limit = limit // 2
