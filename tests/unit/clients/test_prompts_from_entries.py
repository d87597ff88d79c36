"""Prompts that begin from KV entries kept elsewhere: times and blocks by hand.

As in `test_hand_over.py`: a step takes 1/8 s with a prompt and 1/32 s without, a block of four
tokens 1/64 s on the link, and 1/128 s of latency. A step computes four tokens of prompts.
"""

from itertools import product
from typing import Any

import pytest

from mist_sim.clients import Client
from mist_sim.clients.scheduling import ChunkedScheduler, ContinuousScheduler
from mist_sim.core.hand_over import HandOver
from mist_sim.core.visit import HeldKv
from mist_sim.lifecycle import Failures, Lifecycle, OnFailure
from mist_sim.metrics import Result
from mist_sim.simulation import Simulation
from mist_sim.stages import Decode, KvRetrieval, Prefill, Preprocess
from mist_sim.traces import Rows, TimeLimits, TraceArrivals, TraceRow, Workload
from tests.reference.apart import engine, link
from tests.reference.engines import assert_all_is_free
from tests.unit.clients.test_hand_over import row
from tests.unit.lifecycle.test_hand_overs_through_failures import FLOWING, of_two_roles

FOUND = 1 / 4  # when the library has found what it keeps
COME = FOUND + 2 / 64 + 1 / 128  # two blocks
PROMPT, STEP = 1 / 8, 1 / 32


class Library(Client):
    """Finds the entries of a known context in 1/4 s, and keeps them until they are fetched."""

    def __init__(self, num_tokens: int = 8) -> None:
        super().__init__("library", (KvRetrieval.kind, Preprocess.kind))
        self._num_tokens = num_tokens
        self._kept: list[HeldKv] = []

    def accept(self, visit):
        self.begin(visit)
        self.env.at(self.env.now + FOUND).callbacks.append(lambda _: self._found(visit))

    def _found(self, visit):
        if visit.is_over:
            return
        if isinstance(visit.stages[0], KvRetrieval):
            number = self._num_tokens
            visit.held_kv = kv = HeldKv(
                self.name,
                lambda: self._kept.remove(kv),
                num_tokens=number,
                num_prompt_tokens=number,
                num_output_tokens=0,
                last_token_at=float("nan"),
            )
            self._kept.append(kv)
        self.finish(visit)

    def abort(self, visit):
        self.finish(visit)

    @property
    def held_kv(self):
        return self._kept


def after_retrieval(trace_row: TraceRow) -> tuple[Any, ...]:
    prompt, output = trace_row.num_prompt_tokens, trace_row.num_output_tokens
    found = (KvRetrieval(num_tokens=8), Prefill(num_prompt_tokens=prompt))
    return (*found, Decode(num_tokens=output - 1)) if output > 1 else found


FOURS = ChunkedScheduler(max_num_seqs=4, max_num_batched_tokens=4)
FIRST_TOKENS = ("prefill", "decode")


def in_fours(**more: Any) -> Any:
    return engine(None, more.pop("scheduler", FOURS), name="llm", **more)


def served(rows: list[TraceRow], client: Any, library: Client | None = None, **more: Any) -> Result:
    limits = more.pop("time_limits", None)
    pipeline = more.pop("pipeline", after_retrieval)
    return Simulation(
        clients=[library or Library(), *(client if isinstance(client, tuple | list) else [client])],
        workload=Workload(Rows(rows), TraceArrivals(), pipeline, time_limits=limits),
        network=link(),
        **more,
    ).run()


def test_only_the_rest_of_the_prompt_is_computed():
    """Four of its twelve tokens, in one step in place of three, behind two blocks on the link."""
    client, library = in_fours(), Library()
    result = served([row(0.0, 12, 4)], client, library)
    first = COME + PROMPT
    assert result.token_times(0).tolist() == [first + k * STEP for k in range(4)]
    [moved] = result.transfers.to_dict("records")
    assert (moved["kind"], moved["source"], moved["client"]) == ("fetch", "library", "llm")
    assert (moved["start"], moved["end"]) == (FOUND, COME)
    assert (moved["num_tokens"], moved["num_bytes"]) == (8, 2000.0)
    assert result.clients["num_prefill_tokens"].tolist() == [0, 4]
    assert result.steps["context_sum"].tolist()[0] == 0
    assert_all_is_free(client)
    assert library.is_empty
    assert result.requests["num_prompt_tokens"].tolist() == [12]
    assert result.requests["num_cached_tokens"].tolist() == [0]
    assert result.summary["num_fetches"] == 1
    assert result.summary["fetched_tokens"] == 8
    assert "num_hand_overs" not in result.summary


def only_the_first_retrieves(trace_row: TraceRow) -> tuple[Any, ...]:
    stages = after_retrieval(trace_row)
    return stages if trace_row.num_prompt_tokens == 12 else stages[1:]


def test_where_the_prefix_cache_has_all_of_it_nothing_moves():
    rows = [row(0.0, 8, 1, ((5, 8),)), row(1.0, 12, 1, ((5, 12),))]
    library = Library()
    result = served(
        rows, in_fours(), library, pipeline=lambda r: after_retrieval(r)[r.num_prompt_tokens == 8 :]
    )
    assert result.transfers.empty
    assert result.requests["num_cached_tokens"].tolist() == [0, 8]
    assert library.is_empty


def test_entries_wait_for_the_prompt_through_other_stages():
    result = served(
        [row(0.0, 12, 1)],
        in_fours(),
        pipeline=lambda r: (KvRetrieval(num_tokens=8), Preprocess(), Prefill(num_prompt_tokens=12)),
    )
    assert result.requests["finished_at"].tolist() == [COME + PROMPT]  # both in one visit of 1/4 s


@pytest.mark.parametrize("num_tokens", [12, 20])
def test_the_last_token_is_computed_whatever_is_kept(num_tokens):
    result = served([row(0.0, 12, 1)], in_fours(), Library(num_tokens))
    assert result.transfers["num_tokens"].tolist() == [11]
    assert result.clients["num_prefill_tokens"].tolist() == [0, 1]


def test_a_prompt_that_is_given_up_on_the_way_frees_all():
    client, library = in_fours(), Library()
    limits = TimeLimits(timeout=FOUND + 1 / 64)
    result = served(
        [row(0.0, 12, 4), row(1.0, 4, 1)],
        client,
        library,
        time_limits=limits,
        pipeline=only_the_first_retrieves,
    )
    assert result.requests["status"].tolist() == ["timed_out", "finished"]
    assert_all_is_free(client)
    assert library.is_empty


@pytest.mark.parametrize("policy", ["retry", "resume", "fail"])
def test_entries_that_are_lost_on_way_are_computed(policy):
    """The library fails while they come: when they would be there, all twelve are computed."""
    lost = Failures(clients=("library",), at=(FOUND + 1 / 64,))
    lifecycle = Lifecycle(failures=(lost,), on_failure=OnFailure(policy=policy))
    client = in_fours()
    result = served([row(0.0, 12, 4)], client, lifecycle=lifecycle)
    assert result.transfers.empty
    assert result.token_times(0).tolist() == [COME + 3 * PROMPT + k * STEP for k in range(4)]
    assert_all_is_free(client)
    assert result.summary.get("num_fetches", 0) == 0


def test_entries_that_are_lost_while_the_prompt_waits_are_computed():
    """It waits for memory until 21/32 s; then it needs three steps for all of it."""
    lost = Failures(clients=("library",), at=(FOUND + 1 / 64,))
    result = served(
        [row(0.0, 12, 2), row(0.0, 20, 2)],
        in_fours(num_gpu_blocks=7),
        pipeline=only_the_first_retrieves,
        lifecycle=Lifecycle(failures=(lost,)),
    )
    done = 5 * PROMPT + STEP
    assert result.requests["finished_at"].tolist() == [done + 3 * PROMPT + STEP, done]
    assert result.transfers.empty


@pytest.mark.parametrize(("transfer", "first_token"), [*product(("pull", "push"), FIRST_TOKENS)])
def test_a_prompt_from_entries_is_handed_over(transfer, first_token):
    """All twelve tokens' entries go on from the prefill client, wherever they were computed.

    With the first token from decode, the entries of the last token stay behind.
    """
    roles = engine("prefill", FOURS), engine("decode")
    hand_over = HandOver(transfer=transfer, first_token=first_token)
    result = served([row(0.0, 12, 4)], roles, hand_over=hand_over)
    moves = result.transfers
    assert moves["kind"].tolist() == ["fetch", "hand_over"]
    assert moves["num_tokens"].tolist() == [8, 12 - (first_token == "decode")]
    done = COME + PROMPT
    assert moves["end"].tolist() == [COME, done + 3 / 64 + 1 / 128]
    first = done if first_token == "prefill" else moves["end"][1] + STEP
    assert result.token_times(0).tolist()[0] == first
    assert result.clients["num_prefill_tokens"].tolist() == [0, 4, 0]
    for client in roles:
        assert_all_is_free(client)


def test_answer_that_flows_may_have_begun_from_entries():
    """TaiChi: the D-heavy client goes on; its answer has all tokens, and memory comes back."""
    roles = of_two_roles("p", "d")
    result = served([row(0.0, 12, 12)], roles, hand_over=FLOWING)
    assert result.transfers["kind"].tolist()[:2] == ["fetch", "hand_over"]
    assert len(result.token_times(0)) == 12
    for client in roles:
        assert_all_is_free(client)


def test_a_scheduler_that_cuts_no_prompt_takes_rest():
    """Sixteen tokens are more than a step takes, but not the eight that are left."""
    client = in_fours(scheduler=ContinuousScheduler(max_num_batched_tokens=8))
    result = served([row(0.0, 16, 1), row(0.0, 17, 1)], client)
    assert result.requests["status"].tolist() == ["finished", "rejected"]
    assert result.clients["num_prefill_tokens"].tolist() == [0, 8]
