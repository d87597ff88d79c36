"""Failures and drains while requests are handed over: token times by hand.

As in `test_hand_over.py`: a step takes 1/8 s with a prompt and 1/32 s without, the two blocks of a
prompt of eight tokens 5/128 s on the link. Pushed, they are sent at 1/8 s and there at 21/128 s.
"""

import pytest

from mist_sim import Fabric
from mist_sim.clients.scheduling import ChunkedScheduler
from mist_sim.core.hand_over import HandOver
from mist_sim.lifecycle import Drain, Failures, Lifecycle, OnFailure
from mist_sim.metrics import Result
from mist_sim.reconfiguration import Change, Reconfigure
from mist_sim.routers import FlippingPolicy, FlowingPolicy
from mist_sim.simulation import Simulation
from mist_sim.traces import Rows, TraceArrivals, TraceRow, Workload
from tests.reference.apart import engine, link
from tests.reference.engines import assert_all_is_free
from tests.unit.clients.test_hand_over import row

PUSH = HandOver(transfer="push")
RETRY, RESUME = OnFailure(), OnFailure(policy="resume")
ONE = [row(0.0, 8, 4)]
PROMPT, MOVE, STEP = 1 / 8, 5 / 128, 1 / 32


class FirstThatIsUp:
    """Sends all to the first client that is up."""

    def choose(self, request, stage, candidates):
        return candidates[0].client_id


def two_of_each(**of_first_decode: object):
    return [
        engine("prefill", name="p0"),
        engine("prefill", name="p1"),
        engine("decode", name="d0", **of_first_decode),
        engine("decode", name="d1"),
    ]


def run(
    lifecycle: Lifecycle | None,
    rows: list[TraceRow] = ONE,
    hand_over: HandOver = PUSH,
    **more: object,
) -> Result:
    clients = more.pop("clients", None) or two_of_each()
    result = Simulation(
        clients=clients,
        workload=Workload(Rows(rows), TraceArrivals()),
        router=FirstThatIsUp(),
        network=more.pop("network", None) or link(),
        hand_over=hand_over,
        lifecycle=lifecycle,
        **more,
    ).run()
    if set(result.requests["status"]) == {"finished"}:
        assert result.requests["num_output_tokens"].tolist() == [r.num_output_tokens for r in rows]
        failed = set(result.client_states.query("state == 'failed'")["client"])
        for client in (client for client in clients if client.name not in failed):
            assert_all_is_free(client)
    return result


def fails(*names: str, at: float, on: OnFailure = RETRY, **more: object) -> Lifecycle:
    return Lifecycle(failures=(Failures(clients=names, at=(at,), **more),), on_failure=on)


def answer(first: float, second: float, num: int = 4) -> list[float]:
    return [first, *(second + STEP * k for k in range(num - 1))]


def served_by(result: Result) -> list[str]:
    return result.stages["client"].tolist()


@pytest.mark.parametrize(
    ("policy", "second"), [("retry", 2 * PROMPT), ("resume", PROMPT + MOVE + STEP)]
)
def test_the_place_is_lost_while_prompt_is_computed(policy, second):
    """It ends its prompt; then its entries are there for d1, or it is a prompt again."""
    result = run(fails("d0", at=1 / 16, on=OnFailure(policy=policy)))
    times = result.token_times(0).tolist()
    assert times[:2] == [PROMPT, second]
    assert result.transfers["client"].tolist() == ["d1"]
    assert result.summary["num_lost_visits"] == 1
    assert result.summary["lost_kv_tokens"] == (8 if policy == "retry" else 0)


def test_the_place_is_lost_before_there_was_memory():
    """Three blocks at d0: the second request waits for the first, until both are lost at 1/16 s.

    The first one's prompt is done at 1/8 s and computed again; that of the second goes to p0 at
    once, and joins its next step.
    """
    rows = [row(0.0, 8, 4), row(0.0, 8, 2)]
    result = run(fails("d0", at=1 / 16), rows, clients=two_of_each(num_gpu_blocks=3))
    assert [result.token_times(k)[0] for k in (0, 1)] == [PROMPT, 2 * PROMPT]
    assert result.summary["num_lost_visits"] == 2
    assert result.summary["lost_kv_tokens"] == 8
    assert set(result.transfers["client"]) == {"d1"}


def test_a_place_is_left_where_prompt_is_lost():
    """p0 fails at 1/16 s; p1 computes the prompt, for a new place at d0."""
    result = run(fails("p0", at=1 / 16))
    assert result.token_times(0).tolist() == answer(3 / 16, 3 / 16 + MOVE + STEP)
    assert result.transfers["source"].tolist() == ["p1"]
    assert result.summary["num_lost_visits"] == 1


def test_entries_are_lost_on_their_way():
    """p0 fails at 9/64 s; the first token is the user's, p1 computes the next one."""
    result = run(fails("p0", at=9 / 64))
    second = 9 / 64 + PROMPT
    assert result.token_times(0).tolist() == [
        PROMPT,
        *answer(second, result.transfers["end"].item() + STEP, num=3),
    ]
    assert result.summary["lost_kv_tokens"] == 8
    assert result.transfers["source"].tolist() == ["p1"]


def test_entries_are_lost_at_very_end_of_prompt():
    result = run(fails("p0", at=PROMPT))
    assert result.token_times(0)[:2].tolist() == [PROMPT, 2 * PROMPT]
    assert result.summary["num_lost_visits"] == 1
    assert result.summary["lost_kv_tokens"] == 8


def test_entries_come_to_a_client_that_has_failed():
    """d0 fails at 9/64 s; what is on its way is of no use, and p0 computes all again for d1."""
    result = run(fails("d0", at=9 / 64, on=RESUME))
    assert result.token_times(0)[:2].tolist() == [PROMPT, 9 / 64 + PROMPT]
    assert result.transfers["client"].tolist()[-1] == "d1"


def test_both_sides_fail_together():
    result = run(fails("p0", "d0", at=1 / 16))
    assert result.token_times(0).tolist() == answer(3 / 16, 3 / 16 + MOVE + STEP)
    assert result.summary["num_lost_visits"] == 1
    assert set(served_by(result)[-2:]) == {"p1", "d1"}


def test_who_nobody_tries_again_has_a_reason():
    result = run(fails("d0", at=1 / 16, on=OnFailure(policy="fail")))
    assert result.requests["status"].tolist() == ["lost"]
    assert result.requests["reason"].tolist() == ["d0: failed while it had the request"]


@pytest.mark.parametrize("how", ["drain", "failure"])
def test_client_of_prompt_leaves_before_there_is_memory(how):
    """Three blocks at d0, the only one: p0 is away when the second request may begin its prompt."""
    clients = [engine("prefill", name="p0"), engine("prefill", name="p1")]
    clients.append(engine("decode", name="d0", num_gpu_blocks=3))
    rows = [row(0.0, 8, 20), row(0.0, 8, 2)]
    lifecycle = Lifecycle(drains=(Drain(clients=("p0",), at=0.25),))
    if how == "failure":
        lifecycle = fails("p0", at=0.25)
    result = run(lifecycle, rows, clients=clients)
    assert result.transfers["source"].tolist() == ["p0", "p1"]
    first_ends = result.token_times(0)[-1]
    assert result.token_times(1)[0] == first_ends + PROMPT
    assert result.summary["num_lost_visits"] == 0


def test_a_prompt_waits_for_a_client_that_decodes():
    """d0 is away until 1/2 s: only then the prompt begins."""
    clients = [engine("prefill", name="p0"), engine("decode", name="d0")]
    result = run(fails("d0", at=0.0, repair=0.5), clients=clients)
    assert result.token_times(0).tolist() == answer(0.5 + PROMPT, 0.5 + PROMPT + MOVE + STEP)


def test_drains_end_what_was_begun():
    drains = (Drain(clients=("p0", "d0"), at=1 / 16),)
    rows = [row(0.0, 8, 4), row(1 / 16, 8, 20)]
    result = run(Lifecycle(drains=drains), rows)
    assert result.token_times(0).tolist() == answer(PROMPT, PROMPT + MOVE + STEP)
    assert result.transfers["client"].tolist() == ["d0", "d1"]
    off = result.client_states[result.client_states["state"] == "off"].set_index("client")["start"]
    assert off["p0"] == result.transfers["end"].tolist()[0]
    assert off["d0"] == result.token_times(0)[-1]


@pytest.mark.parametrize("transfer", ["pull", "push"])
@pytest.mark.parametrize("num_before", [0, 1, 3])
def test_a_first_token_from_decode_is_emitted_once(transfer, num_before):
    """d0 fails in the middle of a step, after so many tokens."""
    late = HandOver(transfer=transfer, first_token="decode")
    there = PROMPT + MOVE
    fails_at = there + (num_before + 0.5) * STEP
    result = run(fails("d0", at=fails_at), hand_over=late)
    begun = [there + STEP * (k + 1) for k in range(num_before)]
    again = fails_at + PROMPT
    times = result.token_times(0).tolist()
    assert times[:num_before] == begun
    if num_before:
        assert times[num_before] == again  # the client of the prompt gives the next one
    else:
        assert times[0] > again + MOVE
    assert result.requests["ttft"].tolist() == [times[0]]
    assert result.requests["tpot"].item() == pytest.approx((times[-1] - times[0]) / 3)


def test_an_answer_of_one_token_from_decode_survives():
    late = HandOver(first_token="decode")
    result = run(fails("d0", at=PROMPT + MOVE), [row(0.0, 8, 1)], hand_over=late)
    assert len(result.token_times(0)) == 1


@pytest.mark.parametrize("repair", [None, 1.0])
@pytest.mark.parametrize("transfer", ["pull", "push"])
def test_local_pools_wait_for_their_own(repair, transfer):
    """d0 stands where p0 does, and d1 elsewhere."""
    clients = two_of_each()
    for client, place in zip(clients, ("node0", "node1", "node0", "node1"), strict=True):
        client.place = place
    hand_over = HandOver(pools="local", transfer=transfer)
    network = Fabric(topology="hgx-h100", nodes=2)
    result = run(
        fails("d0", at=0.0, repair=repair), hand_over=hand_over, clients=clients, network=network
    )
    if repair is not None:
        assert result.transfers["start"].item() >= 1.0
        assert result.transfers["client"].tolist() == ["d0"]
        return
    reason = result.requests["reason"].item()
    assert result.requests["status"].tolist() == ["rejected"]
    assert reason == (
        "no client serves the stage 'decode' in the node of the prompt's client (pools: local); "
        "all that do have failed or left for good: d0"
    )


def test_policy_makes_do_with_those_that_are_left():
    """a0 takes prompts and a1 answers; when a1 is gone, a0 serves all."""
    clients = [engine(None, name=name) for name in ("a0", "a1")]
    rows = [row(0.0, 8, 4), row(1.0, 8, 4)]
    policy = FlippingPolicy(num_prefill=1)
    result = run(fails("a1", at=0.5), rows, HandOver(policy=policy), clients=clients)
    assert result.transfers["client"].tolist() == ["a1"]
    assert result.token_times(1).tolist() == answer(1.0 + PROMPT, 1.0 + PROMPT + STEP)


def test_a_client_that_comes_up_has_not_planned_at_that_instant():
    """a1 is back when a step of a0 ends and another prompt comes, which joins the next step."""
    clients = [engine(None, name=name) for name in ("a0", "a1")]
    rows = [row(0.0, 8, 20), row(8 * STEP, 8, 4)]
    lifecycle = fails("a1", at=STEP, repair=7 * STEP)
    result = run(lifecycle, rows, HandOver(), clients=clients)
    assert result.token_times(1)[0] == 8 * STEP + PROMPT


# --- answers that flow ------------------------------------------------------------------------

FLOWING = HandOver(policy=FlowingPolicy(tpot=1.0, watermark=0.03))
LONG = [row(0.0, 8, 12)]
LEAVES = 41 / 128  # when its sixth token is there: the fourth block is above the watermark
IS_THERE = LEAVES + 4 / 64 + 1 / 128


def of_two_roles(*names: str):
    roles = {"p": "p_heavy", "d": "d_heavy"}
    scheduler = ChunkedScheduler()
    return [engine(roles[name[0]], name=name, scheduler=scheduler) for name in names]


def flowing_run(lifecycle: Lifecycle, *names: str, rows: list[TraceRow] = LONG) -> Result:
    return run(lifecycle, rows, FLOWING, clients=of_two_roles(*names))


def ways(result: Result) -> list[tuple[str, str]]:
    return list(zip(result.transfers["source"], result.transfers["client"], strict=True))


def test_an_answer_stays_while_nobody_would_take_it():
    result = flowing_run(fails("p", at=1 / 4), "p", "d")
    assert ways(result) == [("p", "d")]
    assert result.token_times(0).tolist() == answer(PROMPT, PROMPT + MOVE + STEP, 12)


@pytest.mark.parametrize(("up", "leaves"), [(-0.25, 0), (0, 1), (0.25, 1), (3.5, 4)])
def test_it_leaves_at_the_end_of_the_first_step_in_which_somebody_is_up(up, leaves):
    """In steps after it could have left; who comes up at the very end of one comes after it."""
    repair = LEAVES + up * STEP - 1 / 4
    result = flowing_run(fails("p", at=1 / 4, repair=repair), "p", "d")
    assert ways(result) == [("p", "d"), ("d", "p")]
    assert result.transfers["start"][1] == LEAVES + leaves * STEP


@pytest.mark.parametrize("at", [LEAVES + 1 / 128, LEAVES + STEP])
@pytest.mark.parametrize("failing", ["p", "d"])
def test_an_answer_on_its_way_is_lost_with_either_client(failing, at):
    """The other one computes the prompt and the six tokens, and goes on."""
    result = flowing_run(fails(failing, at=at), "p", "d")
    times = result.token_times(0).tolist()
    before = answer(PROMPT, PROMPT + MOVE + STEP, 6)
    assert times == before + answer(at + PROMPT, at + PROMPT + STEP, 6)
    assert result.summary["num_lost_visits"] == 1
    assert result.summary["lost_kv_tokens"] == 13
    assert served_by(result)[-1] == {"p": "d", "d": "p"}[failing]


def test_who_would_have_taken_it_fails_at_the_instant_when_it_leaves():
    """Another one of its own role goes on, and where there is none its own client."""
    times = answer(PROMPT, PROMPT + MOVE + STEP, 6) + answer(
        IS_THERE + STEP, IS_THERE + 2 * STEP, 6
    )
    for names, taker in ((("p", "d", "d1"), "d1"), (("p", "d"), "d")):
        result = flowing_run(fails("p", at=LEAVES), *names)
        assert ways(result)[:2] == [("p", "d"), ("d", taker)]
        if taker == "d":
            assert result.token_times(0).tolist() == times
        assert result.summary["num_lost_visits"] == 0


def test_a_client_that_drains_is_empty_when_its_answer_was_fetched():
    lifecycle = Lifecycle(drains=(Drain(clients=("d",), at=1 / 4),))
    result = flowing_run(lifecycle, "p", "d")
    states = result.client_states.query("client == 'd' and state == 'draining'")
    assert ways(result) == [("p", "d"), ("d", "p")]
    assert states["end"].tolist() == [IS_THERE]


def test_a_client_comes_back_in_the_role_that_its_slider_gave_it():
    clients = of_two_roles("p", "d", "d1")
    sliders = Reconfigure(schedule=(Change(at=1 / 8, num_p=2, s_p=512, s_d=512),))
    run(
        fails("d", at=1 / 4, repair=1 / 8),
        [*LONG, row(1.0, 8, 4)],
        FLOWING,
        clients=clients,
        reconfigure=sliders,
    )
    assert [client.view.role for client in clients] == ["p_heavy", "p_heavy", "d_heavy"]


@pytest.mark.parametrize("late", [0.0, 1 / 128])
def test_the_rule_of_a_role_holds_from_the_next_step_that_ends(late):
    """d lets nobody go, and as a P-heavy client everybody, but not with the step that ends then."""
    turns = PROMPT + MOVE + 3 * STEP
    policy = FlowingPolicy(tpot=STEP / 2, watermark=1.0)
    result = run(
        None,
        LONG,
        HandOver(policy=policy),
        clients=of_two_roles("p", "d", "d1"),
        reconfigure=Reconfigure(schedule=(Change(at=turns + late, num_p=2, s_p=512, s_d=512),)),
    )
    assert ways(result) == [("p", "d"), ("d", "d1")]
    assert result.transfers["start"][1] == turns + STEP
