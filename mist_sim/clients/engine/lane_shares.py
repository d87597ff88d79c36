"""How many sequences each lane of a client may run."""

from __future__ import annotations

from mist_sim.errors import ScenarioError


def lane_shares(max_num_seqs: int, num_engines: int, num_lanes: int) -> list[int]:
    """Return the sequences that each lane may run at once, engine by engine.

    The lanes of an engine share its `max_num_seqs` evenly; the first ones take the remainder.
    Raises ScenarioError if it is less than the number of lanes.
    """
    share, rest = divmod(max_num_seqs, num_lanes)
    if not share:
        raise ScenarioError(
            f"max_num_seqs must be >= pipeline_parallel_size ({num_lanes}), "
            f"got {max_num_seqs}; every lane of the pipeline runs at least one"
        )
    return [share + (lane < rest) for lane in range(num_lanes)] * num_engines
