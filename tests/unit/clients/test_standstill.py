"""Plans that preempt sequences and give no token, one after the other."""

import pytest

from mist_sim.clients.scheduling.standstill import MOST_ROUNDS, Standstill
from mist_sim.errors import ScenarioError


class Sequence:
    num_tokens = 5
    num_computed_tokens = 0


class Plans:
    """A lane whose plans preempt some sequences; `num_left` have left it, and `num_steps` ended."""

    def __init__(self, *, defers: bool = False):
        self.standstill, self.defers = Standstill(), defers
        self.running: list[Sequence] = []
        self.num_left = self.num_steps = 0

    def preempt(self, number: int, *sequences: Sequence) -> None:
        for _ in range(number):
            progress = self.num_left, self.num_steps
            running = [(each, each.num_computed_tokens) for each in self.running]
            tokens = {each: each.num_tokens for each in sequences}
            self.standstill.note(progress, running, tokens, defers=self.defers)


@pytest.mark.parametrize(("defers", "remedy"), [(True, "step in flight"), (False, "full_isl")])
def test_too_many_in_a_row_are_refused(defers, remedy):
    one, plans = Sequence(), Plans(defers=defers)
    plans.preempt(MOST_ROUNDS - 1, one)
    with pytest.raises(ScenarioError, match=f"1,000 plans in a row preempted .*{remedy}"):
        plans.preempt(1, one)


def give_token(plans: Plans, one: Sequence) -> None:
    one.num_tokens += 1


def decode(plans: Plans, one: Sequence) -> None:
    plans.num_steps += 1


def leave(plans: Plans, one: Sequence) -> None:
    plans.num_left += 1


@pytest.mark.parametrize("progress", [give_token, decode, leave])
def test_progress_begins_the_count_anew(progress):
    one, other, plans = Sequence(), Sequence(), Plans()
    plans.preempt(MOST_ROUNDS - 1, one, other)
    progress(plans, other)
    plans.preempt(MOST_ROUNDS - 1, one, other)
    with pytest.raises(ScenarioError):
        plans.preempt(1, one, other)


def test_two_pairs_that_take_turns_get_no_token_either():
    one, two, plans = Sequence(), Sequence(), Plans()

    def take_turns() -> None:
        for _ in range(2 * MOST_ROUNDS):
            plans.preempt(1, one)
            plans.preempt(1, two)

    with pytest.raises(ScenarioError):
        take_turns()


def test_a_prompt_that_goes_on_in_small_pieces_is_progress():
    one, plans = Sequence(), Plans()
    plans.running = [Sequence()]
    for _ in range(5 * MOST_ROUNDS):
        plans.running[0].num_computed_tokens += 1
        plans.preempt(1, one)
    with pytest.raises(ScenarioError):  # once it goes on no more
        plans.preempt(5 * MOST_ROUNDS, one)
