"""`check_client` notices clients that break their contract, and says how."""

import numpy as np
import pytest

from mist_sim.clients import Client
from mist_sim.clients.traits import ClientTraits
from mist_sim.core.request import Request, Stage
from mist_sim.core.visit import HeldKv, Moved, Served
from mist_sim.environment import PLAN
from mist_sim.stages import Rag, ToolCall
from mist_sim.testing import check_client
from tests.refusals import refused


class OneByOne(Client):
    """A sound client that serves a visit after the other, in order; the others break it."""

    seconds = 1.0

    def __init__(self, name="client"):
        super().__init__(name, ("rag",))

    def start(self, env, client_id, recorder):
        super().start(env, client_id, recorder)
        self.queue = []
        self.is_busy = False

    def accept(self, visit):
        self.queue.append(visit)
        if not self.is_busy:
            self.is_busy = True
            self.env.start(self.work())

    def abort(self, visit):
        if visit in self.queue:
            self.queue.remove(visit)
            self.finish(visit)

    def work(self):
        yield self.env.at(self.env.now, PLAN)
        while self.queue:
            visit = self.queue.pop(0)
            self.begin(visit)
            yield self.env.timeout(self.duration(visit))
            self.finish(visit)
        self.is_busy = False

    def duration(self, visit):
        return self.seconds


class ForgetsOne(OneByOne):
    def finish(self, visit):
        if visit.request.request_id != 7:
            super().finish(visit)


class FinishesTwice(OneByOne):
    def finish(self, visit):
        super().finish(visit)
        super().finish(visit)


class NeverBegins(OneByOne):
    def begin(self, visit):
        pass


class BeginsInTheFuture(OneByOne):
    def begin(self, visit):
        super().begin(visit)
        visit.started_at = self.env.now + 2


class IgnoresAborts(OneByOne):
    def abort(self, visit):
        pass


class LosesAborted(OneByOne):
    def abort(self, visit):
        if visit in self.queue:
            self.queue.remove(visit)


class ServesAborted(OneByOne):
    def abort(self, visit):
        visit.outcome = None


class EndsInAWord(OneByOne):
    def finish(self, visit):
        visit.outcome = "done"
        super().finish(visit)


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


class Relay(OneByOne):
    """Emits some tokens and leaves the rest of the answer, with its KV entries, to others."""

    num_tokens_a_visit = 100

    def __init__(self):
        super().__init__()
        self.traits = ClientTraits.serving(("prefill", "decode"))

    def finish(self, visit):
        if visit.started_at == visit.started_at and visit.failure is None:
            self.emit(visit)
        super().finish(visit)

    def emit(self, visit):
        first, last = visit.stages[0], visit.stages[-1]
        num_left = getattr(last, "num_tokens", 0)
        visit.num_output_tokens = min(self.num_tokens_a_visit, num_left + (first.kind == "prefill"))
        visit.first_token_at = self.env.now
        num_left -= visit.num_output_tokens - (first.kind == "prefill")
        if num_left > 0:
            visit.outcome = Moved(num_left)
            self.leave(visit)

    def leave(self, visit):
        num_before = visit.kv.num_output_tokens if visit.kv else 0
        visit.held_kv = HeldKv(
            self.name,
            lambda: None,
            num_tokens=1,
            num_prompt_tokens=1,
            num_output_tokens=num_before + visit.num_output_tokens,
            last_token_at=self.env.now,
        )


class LeavesNoEntries(Relay):
    def leave(self, visit):
        pass


class LeavesTooMuch(Relay):
    def leave(self, visit):
        super().leave(visit)
        visit.outcome = Moved(10**6)


class DecodesOnly(OneByOne):
    def __init__(self):
        super().__init__()
        self.traits = ClientTraits.serving(("decode",))


class NeverLetsGo(DecodesOnly):
    def begin(self, visit):
        super().begin(visit)
        visit.kv.begin_copy()


class PrefillsAndKeepsNothing(OneByOne):
    def __init__(self):
        super().__init__()
        self.traits = ClientTraits.serving(("prefill",))


class Grows(OneByOne):
    """Has every request search once more, after a child has called a tool."""

    def finish(self, visit):
        if visit.failure is None and visit.request.num_stages == 1:
            search = Rag(num_query_tokens=1, num_documents=1)
            tool = Request(0, None, (ToolCall(duration=0.5),))
            visit.outcome = Served(then=(search,), children=(tool,))
        super().finish(visit)


class TakesNothing(OneByOne):
    def takes(self, stages):
        return 0


class Raises(OneByOne):
    def accept(self, visit):
        raise KeyError("queue")


class ServesNothing(OneByOne):
    def __init__(self):
        super().__init__()
        del self.traits


class ServesWhatNobodyKnows(OneByOne):
    def __init__(self):
        super().__init__()
        self.traits = ClientTraits.serving(("polish",))


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


@pytest.mark.parametrize("client", [Relay, DecodesOnly, Grows])
def test_clients_that_leave_work_to_others_pass(client):
    check_client(client)


test_a_broken_client_is_caught = refused(
    check_client,
    (object, "must be a subclass of Client"),
    (ServesNothing, "traits must be set"),
    (ServesWhatNobodyKnows, "'polish', which no registered stage is; pass pipelines"),
    (TakesNothing, "must take at least the first"),
    (Raises, "raised KeyError"),
    (ForgetsOne, "must hand every visit back; 1 never came"),
    (FinishesTwice, "whose visit has ended or never came: call it once a visit"),
    (NeverBegins, "must begin a visit that it serves"),
    (BeginsInTheFuture, "must begin a visit that it serves"),
    (EndsInAWord, "visit.outcome of request 0 must be Served, Moved or None, got 'done'"),
    (IgnoresAborts, "abort must take it out of the queue"),
    (LosesAborted, "must hand every visit back"),
    (ServesAborted, "whose request was given up"),
    (LeavesNoEntries, "must leave its KV entries in visit.held_kv"),
    (LeavesTooMuch, "must leave 1 to [0-9]+ tokens"),
    (PrefillsAndKeepsNothing, "must leave its KV entries in visit.held_kv"),
    (NeverLetsGo, "must let go of KV entries that others keep"),
    (DrawsElsewhere, "answers otherwise in another one of its kind"),
    (KeepsItsQueue, "start.. must begin empty|raised"),
    (SlowsDown, "after a run that was cut.* start.. must begin empty"),
    error=AssertionError,
)
