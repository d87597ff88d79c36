"""Clients that fail, put together from plain engines: a life of a client is an engine of its own.

What an engine does until a time does not depend on what comes later. So the life of a client up to
a failure is a run of the plain engine with the jobs that came before, of which the steps and tokens
up to the failure count. Who is inside then comes to another engine: as a prompt with the tokens so
far, of which there are so many less to get. Rules at the same time: steps end, clients fail or come
up, then jobs arrive; those that were lost in the order in which they came, and they go before those
that have waited since.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf

from mist_sim.hardware.predictors import Predictor
from tests.reference.comparison import EngineOptions, Reference
from tests.reference.stepwise import Job, Outcome, Step


@dataclass(frozen=True)
class Outage:
    """A client is away from a time on, for so many seconds."""

    begin: float
    seconds: float

    @property
    def end(self) -> float:
        return self.begin + self.seconds


@dataclass
class Fate:
    """What became of a job over all its visits."""

    status: str = "unfinished"
    finished_at: float = inf
    token_times: list[float] = field(default_factory=list)
    chunk_times: list[float] = field(default_factory=list)
    num_visits: int = 0
    num_lost: int = 0
    num_lost_early: int = 0  # without a token
    num_preemptions: int = 0


Coming = list[tuple[int, Job]]
"""Numbers and jobs in order of arrival."""
_LATE = 1e6  # seconds, behind all that a case does


@dataclass
class Life:
    """A client between two failures. steps: of each lane, those that ended in it."""

    client: int
    steps: list[list[Step]]


class Outages:
    """One client that fails, whose jobs wait for it; or with a second one, to which they go.

    spare: the options of the second one, which never fails; None: there is none.
    """

    def __init__(
        self,
        options: EngineOptions,
        predictor: Predictor,
        jobs: Sequence[Job],
        outages: Sequence[Outage],
        spare: EngineOptions | None = None,
    ) -> None:
        self.predictor = predictor
        self.fates = [Fate() for _ in jobs]
        self.lives: list[Life] = []
        self.lost: list[int] = []  # in order
        coming = list(enumerate(jobs))
        to_spare: Coming = []
        for outage in [*outages, Outage(inf, inf)]:
            life = [(n, job) for n, job in coming if job.arrival_time < outage.begin]
            later = coming[len(life) :]
            lost = self._live(0, options, life, outage.begin)
            if spare is None:
                coming = [
                    (n, replace(job, arrival_time=max(job.arrival_time, outage.end)))
                    for n, job in [*lost, *later]
                ]
            else:
                meanwhile = [(n, job) for n, job in later if job.arrival_time < outage.end]
                to_spare += lost + meanwhile
                coming = later[len(meanwhile) :]
        if spare is not None:
            assert not self._live(1, spare, to_spare, inf)
        end = max((fate.finished_at for fate in self.fates), default=0.0)
        for one in self.lives:  # the run is over with its last request
            one.steps[:] = [[step for step in lane if step.end <= end] for lane in one.steps]

    def _live(self, client: int, options: EngineOptions, jobs: Coming, until: float) -> Coming:
        """Serve jobs up to a time; return those that are lost then, as they go on.

        A job comes behind them: without one an engine that plans ahead rests before its last step,
        in which answers with drafts run over.
        """
        ahead = [*jobs, (-1, Job(min(until, _LATE), 1, 1))]
        numbers = [number for number, _ in ahead]
        engine = options.stepwise(self.predictor, [job for _, job in ahead], request_ids=numbers)
        self.lives.append(
            Life(client, [[s for s in lane.steps if s.end <= until] for lane in _lanes(engine)])
        )
        lost: Coming = []
        for (number, job), outcome in zip(jobs, engine.outcomes[: len(jobs)], strict=True):
            fate = self.fates[number]
            fate.num_visits += 1
            fate.token_times += [time for time in outcome.token_times if time <= until]
            fate.chunk_times += [time for time in outcome.chunk_times if time <= until]
            fate.num_preemptions += sum(time < until for time in outcome.preempted_at)
            num_got = sum(time <= until for time in outcome.token_times)
            if _is_over(outcome, until):
                fate.status, fate.finished_at = outcome.status, outcome.finished_at
                continue
            fate.num_lost += 1
            self.lost.append(number)
            fate.num_lost_early += not fate.token_times
            rest = replace(
                job,
                arrival_time=until,
                num_prompt_tokens=job.num_prompt_tokens + num_got,
                num_output_tokens=job.num_output_tokens - num_got,
                whole_answer=job.predicted,
                path=(),
            )
            lost.append((number, rest))
        return lost


def _is_over(outcome: Outcome, until: float) -> bool:
    """Whether a job left before a failure; who is served at that time does, by the step's end.

    Who is turned away by a plan of that time does not, since nothing is planned any more.
    """
    at_the_end = outcome.left_at == until and outcome.status == "finished"
    return outcome.left_at < until or at_the_end


def _lanes(engine: Reference) -> Sequence[Reference]:
    return list(engine.tracks)
