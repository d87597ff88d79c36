"""What a client is stands in its record: rules read that, and never a type."""

from dataclasses import FrozenInstanceError, replace

import pytest

from mist_sim import (
    AfdClient,
    ChunkedScheduler,
    Client,
    ClientTraits,
    Link,
    PoissonArrivals,
    Profile,
    ScenarioError,
    Simulation,
    Workload,
    check_clients,
    llm_client,
)
from mist_sim.clients.traits import KvForm, Slider
from mist_sim.core.hand_over import HandOver
from mist_sim.lifecycle import Autoscaling, Drain, Failures, Lifecycle, QueueLength, StartUp
from mist_sim.metrics import CostOptions
from mist_sim.network import Fabric
from mist_sim.reconfiguration import Change, Reconfigure
from mist_sim.routers.flowing_policy import FlowingPolicy
from tests.refusals import refused


class Twin(Client):
    """Another class with the record of an engine, and what goes with its role."""

    def __init__(self, engine: Client, **changes: object) -> None:
        super().__init__(engine.name, replace(engine.traits, **changes))

    def accept(self, visit): ...

    def abort(self, visit): ...


def engines(*roles: str | None, **options: object) -> list[Client]:
    scheduler = ChunkedScheduler(max_num_batched_tokens=512, max_num_seqs=64)
    return [
        llm_client(f"{role or 'both'}-{number}", role=role, scheduler=scheduler, **options)
        for number, role in enumerate(roles)
    ]


def built(clients: list[Client], **parts) -> Simulation:
    workload = Workload(Profile(num_requests=3), PoissonArrivals(rate=1.0))
    return Simulation(clients=clients, workload=workload, **parts)


def refusal(clients: list[Client], parts: dict) -> str | None:
    try:
        built(clients, **parts)
    except ScenarioError as problem:
        return str(problem)
    return None


LINK = {"network": Link(bandwidth=50e9)}
FABRIC = {"network": Fabric(topology="hgx-h100", nodes=2)}
FAILS = Lifecycle(failures=(Failures(clients=("both-0",), at=(1.0,)),))
NODE_FAILS = Lifecycle(failures=(Failures(node="node0", at=(1.0,)),))
DRAINS = Lifecycle(drains=(Drain(clients=("both-0",), at=1.0),))
PARTS_OF_A_RUN = {
    "pull": (("prefill", "decode"), LINK),
    "push": (("prefill", "decode"), LINK | {"hand_over": HandOver(transfer="push")}),
    "first token": (("prefill", "decode"), LINK | {"hand_over": HandOver(first_token="decode")}),
    "pools": (("prefill", "decode"), FABRIC | {"hand_over": HandOver(pools="local")}),
    "flowing": (
        ("p_heavy", "d_heavy"),
        LINK | {"hand_over": HandOver(policy=FlowingPolicy(tpot=0.05))},
    ),
    "sliders": (
        ("p_heavy", "d_heavy", "d_heavy"),
        LINK
        | {
            "hand_over": HandOver(policy=FlowingPolicy(tpot=0.05)),
            "reconfigure": Reconfigure(schedule=(Change(at=1.0, num_p=1, s_p=1024, s_d=128),)),
        },
    ),
    "cost": ((None,), {"cost": CostOptions()}),
    "failures": ((None, None), {"lifecycle": FAILS}),
    "node": (("prefill", "decode"), FABRIC | {"lifecycle": NODE_FAILS}),
    "drains": ((None, None), {"lifecycle": DRAINS}),
    "scaled": (
        (None, None),
        {
            "lifecycle": Lifecycle(
                autoscaling=(
                    Autoscaling(clients=("both-0", "both-1"), policy=QueueLength(target=4)),
                ),
                start_up=StartUp(weights_at="host"),
            ),
            **FABRIC,
        },
    ),
}


@pytest.mark.parametrize("name", PARTS_OF_A_RUN)
def test_rules_read_the_record_not_the_class(name):
    roles, parts = PARTS_OF_A_RUN[name]
    assert refusal(engines(*roles), parts) is None
    assert refusal([Twin(engine) for engine in engines(*roles)], parts) is None


# --- clients that claim what they do not do ---------------------------------------------------


test_traits_that_contradict_one_another_are_refused = refused(
    lambda said: ClientTraits(**said),
    ({"serves": ()}, "serves must name kinds of stages"),
    ({"serves": ("prefill",), "role": "decode"}, "serves must have decode with role decode"),
    ({"serves": ("prefill", "decode"), "role": "prefill"}, "serves must have prefill with"),
    ({"serves": ("prefill",), "role": "prefill"}, "sends_entries must be True with role"),
    ({"serves": ("decode",), "role": "decode"}, "takes_entries must be True for a client that"),
    ({"serves": ("decode",)}, "takes_entries must be True for a client that serves decode"),
    (
        {
            "serves": ("prefill", "decode"),
            "role": "p_heavy",
            "sends_entries": True,
            "takes_entries": True,
        },
        "slider must be given with role p_heavy",
    ),
    ({"serves": ("rag",), "reserves": True}, "entries must be given with reserves"),
    error=ValueError,
)


class TakesNothing(Twin):
    def takes(self, stages):
        return 0


def test_a_stage_that_is_claimed_and_not_taken_is_refused():
    (engine,) = engines(None)
    check_clients([engine])
    with pytest.raises(ScenarioError, match="both-0: traits.serves must name stages that it takes"):
        check_clients([TakesNothing(engine)])


def test_entries_in_a_form_that_no_other_client_has_are_refused():
    prefill, decode = engines("prefill", "decode")
    form = decode.traits.entries
    check_clients([prefill, Twin(decode)], **LINK)
    for odd, problem in (
        ({"entries": replace(form, block_size=64)}, "block_size must be 16 as of prefill-0"),
        ({"entries": replace(form, dtype="fp8")}, "kv_cache_dtype must be auto as of prefill-0"),
        ({"entries": KvForm()}, "kv_block_bytes must be given"),
        ({"model": "qwen3-8b"}, "answers of llama-3.1-8b, and no client takes over any of that"),
    ):
        with pytest.raises(ScenarioError, match=problem):
            check_clients([prefill, Twin(decode, **odd)], **LINK)


def test_a_client_that_does_not_say_what_it_is_is_refused():
    class Silent(Client):
        def __init__(self):
            self.name = "silent"

        def accept(self, visit): ...

        def abort(self, visit): ...

    with pytest.raises(ScenarioError, match="Silent must have traits; call super"):
        check_clients([Silent()])


def test_what_cannot_be_drained_is_not():
    lives = Lifecycle(drains=(Drain(clients=("both-0",), at=1.0),))
    stays = [Twin(engine, can_drain=False) for engine in engines(None)]
    with pytest.raises(ScenarioError, match="drains.0: both-0 must stay, since Twin cannot"):
        lives.check(stays, None)


def test_the_record_of_each_client_of_the_package():
    traits = ClientTraits.serving(["rag"])
    assert (traits.serves, traits.entries, traits.num_engines) == (("rag",), None, 1)
    assert ClientTraits.serving(["decode"]).takes_entries
    assert ClientTraits.serving(["prefill"]).sends_entries
    engine = llm_client("llm", tensor_parallel_size=2, data_parallel_size=3)
    with pytest.raises(FrozenInstanceError):
        engine.traits.role = "decode"  # type: ignore[misc]
    assert engine.traits.num_engines == 3
    assert engine.traits.num_gpus == 6
    assert engine.traits.machine.cluster.num_gpus == 6
    assert engine.traits.slider is None
    (flowing,) = engines("p_heavy")
    assert flowing.traits.slider == Slider(chunk=512, max_num_seqs=64, scheduler="ChunkedScheduler")
    bundle = AfdClient(
        "bundle",
        model="llama-3.1-8b",
        attention_workers=3,
        ffn_workers=2,
        attention_gpus=4,
        slots=4,
        cycle_s=1e-3,
        coefficients="deepseek-v3-ascend-910c",
    )
    assert (bundle.traits.num_engines, bundle.traits.num_gpus) == (3, 14)
    assert [tenant.first for tenant in bundle.tenants(takes=True)] == [0, 3]
    assert [tenant.takes for tenant in bundle.tenants(takes=True)] == [True, False]
    assert not bundle.traits.reserves
