"""Plain retries: jobs that failed are sent again, one after the other, each time from the start.

What is sent again changes nothing that was before. So the earliest of the attempts that are due is
added to the jobs, and the engine serves them all anew, until nothing is due any more. Rules:

- A job is sent again when its time was up, or when it was turned away because the engine was busy:
  on arrival, or while it waited without a token. Who could never be served is not.
- Of those that are sent again at the same time, who left first is sent first.
- After attempt k its sender waits min(backoff x factor^(k - 1), max_backoff) from when it gave up,
  and at least until the engine has let the last attempt go. There is no jitter.
- An attempt is a job of its own: its limits count from its sending, it has no memory and no place
  in the queue left, and its drafts are drawn from the beginning. Its content is the same.
"""

from bisect import insort
from dataclasses import dataclass, replace

from mist_sim.hardware.predictors import Predictor
from mist_sim.traces import Retries
from tests.reference.comparison import Case, Reference, left
from tests.reference.stepwise import Job, Live, Outcome


@dataclass(eq=False)
class Attempt:
    """A sending of a job: the number of the request, and how often it was sent by then."""

    job: Job
    request_id: int
    number: int
    was_last: bool = True

    @property
    def sent_at(self) -> float:
        return self.job.arrival_time


def served_with_retries(
    case: Case, retries: Retries, predictor: Predictor
) -> tuple[Reference, list[Attempt]]:
    """Return the reference after all attempts, and these in the order of its outcomes."""
    attempts = [Attempt(job, number, 1) for number, job in enumerate(case.jobs)]
    while True:
        engine = case.options.stepwise(
            predictor,
            [attempt.job for attempt in attempts],
            request_ids=[attempt.request_id for attempt in attempts],
        )
        order = left(engine)
        due = [
            (_resend_at(retries, attempt, outcome), order.index(position), attempt)
            for position, (attempt, outcome) in enumerate(
                zip(attempts, engine.outcomes, strict=True)
            )
            if attempt.was_last and _is_retried(retries, engine, attempt, outcome)
        ]
        if not due:
            return engine, attempts
        time, _, attempt = min(due, key=lambda each: each[:2])
        attempt.was_last = False
        job = replace(attempt.job, arrival_time=time)
        again = Attempt(job, attempt.request_id, attempt.number + 1)
        insort(attempts, again, key=lambda each: each.sent_at)


def _resend_at(retries: Retries, attempt: Attempt, outcome: Outcome) -> float:
    wait = min(retries.backoff * retries.factor ** (attempt.number - 1), retries.max_backoff)
    return max(outcome.left_at, outcome.finished_at + wait)


def _is_retried(retries: Retries, engine: Reference, attempt: Attempt, outcome: Outcome) -> bool:
    if outcome.status not in retries.on or attempt.number == retries.max_attempts:
        return False
    if outcome.status == "timed_out":
        return True
    any_lane = engine.tracks[0]
    return not (outcome.token_times or any_lane.is_hopeless(Live(attempt.job, Outcome())))
