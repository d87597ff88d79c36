"""`check_client` notices clients that break their contract, and says how."""

from __future__ import annotations

import numpy as np
import pytest

from mist_sim.clients import Client
from mist_sim.core.request import Stage
from mist_sim.environment import PLAN
from mist_sim.stages import Rag
from mist_sim.testing import check_client


class OneByOne(Client):
    """A sound client that serves a visit after the other, in order; the others break it."""

    seconds = 1.0

    def __init__(self, name="client"):
        super().__init__(name, ("rag",))

    def start(self, env, client_id, recorder):
        super().start(env, client_id, recorder)
        self.queue = []
        self.is_busy = False

    def _accept(self, visit):
        self.queue.append(visit)
        self.view.num_waiting += 1
        if not self.is_busy:
            self.is_busy = True
            self.env.start(self.work())

    def _abort(self, visit):
        if visit in self.queue:
            self.queue.remove(visit)
            self.view.num_waiting -= 1
            self._finish(visit)

    def work(self):
        yield self.env.at(self.env.now, PLAN)
        while self.queue:
            visit = self.queue.pop(0)
            self.begin(visit)
            yield self.env.timeout(self.duration(visit))
            self.end(visit)
        self.is_busy = False

    def begin(self, visit):
        visit.started_at = self.env.now
        self.view.num_waiting -= 1
        self.view.num_running += 1

    def duration(self, visit):
        return self.seconds

    def end(self, visit):
        self.view.num_running -= 1
        self._finish(visit)


class ForgetsOne(OneByOne):
    def end(self, visit):
        self.view.num_running -= 1
        if visit.request.request_id != 7:
            self._finish(visit)


class FinishesTwice(OneByOne):
    def end(self, visit):
        super().end(visit)
        self._finish(visit)


class CountsRunningForEver(OneByOne):
    def end(self, visit):
        self._finish(visit)


class CountsNegative(OneByOne):
    def begin(self, visit):
        super().begin(visit)
        self.view.num_waiting -= 1


class CountsTwice(OneByOne):
    def begin(self, visit):
        visit.started_at = self.env.now
        self.view.num_running += 1

    def end(self, visit):
        self.view.num_waiting -= 1
        super().end(visit)


class CountsNothing(OneByOne):
    def _accept(self, visit):
        super()._accept(visit)
        self.view.num_waiting -= 1

    def begin(self, visit):
        visit.started_at = self.env.now

    def end(self, visit):
        self._finish(visit)

    def _abort(self, visit):
        if visit in self.queue:
            self.queue.remove(visit)
            self._finish(visit)


class NeverSaysWhenItStarts(OneByOne):
    def begin(self, visit):
        super().begin(visit)
        visit.started_at = float("nan")


class StartsInTheFuture(OneByOne):
    def begin(self, visit):
        super().begin(visit)
        visit.started_at = self.env.now + 2


class IgnoresAborts(OneByOne):
    def _abort(self, visit):
        pass


class LosesAborted(OneByOne):
    def _abort(self, visit):
        if visit in self.queue:
            self.queue.remove(visit)
            self.view.num_waiting -= 1


class ServesAborted(OneByOne):
    def _abort(self, visit):
        visit.failure = None


class DrawsElsewhere(OneByOne):
    def duration(self, visit):
        return np.random.Generator(np.random.PCG64()).random()


class KeepsItsQueue(OneByOne):
    """What is left of a run that was cut is there in the next one."""

    def __init__(self):
        super().__init__()
        self.left = []

    def start(self, env, client_id, recorder):
        super().start(env, client_id, recorder)
        self.queue = self.left


class SlowsDown(OneByOne):
    """Every run takes longer than the one before it."""

    def start(self, env, client_id, recorder):
        super().start(env, client_id, recorder)
        self.seconds *= 2


class TakesNothing(OneByOne):
    def takes(self, stages):
        return 0


class Raises(OneByOne):
    def _accept(self, visit):
        raise KeyError("queue")


class ServesNothing(OneByOne):
    def __init__(self):
        super().__init__()
        self.serves = ()


class ServesWhatNobodyKnows(OneByOne):
    def __init__(self):
        super().__init__()
        self.serves = ("polish",)


def test_a_sound_client_passes():
    check_client(OneByOne)


def test_stages_that_nobody_registered_are_passed():
    class Polish(Stage):
        kind = "polish"

    check_client(ServesWhatNobodyKnows, [[Polish()], [Polish(), Polish()]])


def test_a_client_without_a_duration_passes():
    class Instant(OneByOne):
        seconds = 0.0

    check_client(Instant, [[Rag(num_query_tokens=1, num_documents=1)]])


@pytest.mark.parametrize(
    ("client", "rule"),
    [
        (object, "must be a subclass of Client"),
        (ServesNothing, "serves must name the kinds"),
        (ServesWhatNobodyKnows, "'polish', which no registered stage is; pass pipelines"),
        (TakesNothing, "must take at least the first"),
        (Raises, "raised KeyError"),
        (ForgetsOne, "must hand every visit back; 1 never came"),
        (FinishesTwice, "raised KeyError"),
        (CountsRunningForEver, "must count a visit as waiting or running|must count nobody"),
        (CountsNegative, "must count at least 0|must count nobody"),
        (CountsTwice, "waiting or running, not as both"),
        (CountsNothing, "must count its visits"),
        (NeverSaysWhenItStarts, "must set started_at between"),
        (StartsInTheFuture, "must set started_at between"),
        (IgnoresAborts, "_abort must take it out of the queue"),
        (LosesAborted, "must hand every visit back"),
        (ServesAborted, "whose request was given up"),
        (DrawsElsewhere, "does something else in another one of its kind"),
        (KeepsItsQueue, "start.. must begin empty|raised"),
        (SlowsDown, "after a run that was cut; start.. must begin empty"),
    ],
)
def test_a_broken_client_is_caught(client, rule):
    with pytest.raises(AssertionError, match=rule):
        check_client(client)
