"""A sample of a session of cosmic-ray is the same with the same seed, and has nothing else."""

import pytest

pytest.importorskip("cosmic_ray")

from cosmic_ray.work_db import use_db
from cosmic_ray.work_item import MutationSpec, WorkItem

from tools.sample_mutants import sample


def sampled(path, number, seed, only=""):
    with use_db(path) as session:
        session.clear()
        session.add_work_items(
            WorkItem.single(
                job_id=f"{module} {n}",
                mutation=MutationSpec(
                    module_path=f"core/{module}",
                    operator_name="core/AddNot",
                    occurrence=n,
                    start_pos=(n, 0),
                    end_pos=(n, 1),
                    operator_args={},
                    definition_name="f",
                ),
            )
            for module in ("lane.py", "quiet.py")
            for n in range(20)
        )
        assert sample(session, number, seed, only) == session.num_work_items
        return {item.job_id for item in session.work_items}


def test_a_seed_samples_the_same_mutants(tmp_path):
    first, second, other = (sampled(tmp_path / "m.sqlite", 10, seed) for seed in (7, 7, 8))
    assert len(first) == 10
    assert first == second != other


def test_a_sample_may_be_of_one_file_and_is_no_larger_than_that(tmp_path):
    found = sampled(tmp_path / "m.sqlite", 100, 7, "lane.py")
    assert found == {f"lane.py {n}" for n in range(20)}
