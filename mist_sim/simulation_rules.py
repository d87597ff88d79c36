"""Rules for the parts of a simulation, and under which prompts can be handed over."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import Any, cast

from numpy import bincount, isin, isnan, ptp, quantile

from mist_sim.clients import Client
from mist_sim.clients.kv_cache.capacity import gib
from mist_sim.clients.llm import LlmClient
from mist_sim.clients.rag import RagClient
from mist_sim.clients.rules import check_flows, check_shared_parts, check_shared_tiers
from mist_sim.clients.traits import FLOWING_ROLES, SENDING_ROLES, ClientTraits
from mist_sim.core.hand_over import HandOver
from mist_sim.core.recorder import Recorder
from mist_sim.core.request import Stage
from mist_sim.core.result_warnings import (
    BLIND_ROUTER,
    COMMON_START,
    CUT_TEXTS,
    IDLE_REPLICAS,
    NO_PRICE,
    TOO_SMALL,
    WAVES,
    ResultWarning,
)
from mist_sim.durations import DurationDistribution
from mist_sim.errors import ScenarioError, brief, in_words, listed, require_known
from mist_sim.hardware.gpu_group import num_gpus, without_watts
from mist_sim.lifecycle import Lifecycle
from mist_sim.metrics import CostOptions, Slo
from mist_sim.metrics.spending import gpu_prices
from mist_sim.network import Network, Tenant
from mist_sim.reconfiguration import Reconfigure, Search, check_reconfigure
from mist_sim.registry import require_method
from mist_sim.routers import (
    ROUTERS,
    PlacementAwareRouter,
    PolledRouter,
    PrefixAffinityRouter,
    Router,
    SessionAffinityRouter,
)
from mist_sim.routers.load import LoadBound
from mist_sim.stages import Decode, Prefill
from mist_sim.traces import ClosedLoop
from mist_sim.traces.base import Source


def check_hand_overs(
    clients: Sequence[Client], network: Network | None, hand_over: HandOver
) -> None:
    """Raise ScenarioError for clients that cannot hand over KV entries as their roles require.

    Only a client's traits count, not its type.
    """
    any_splits = hand_over.policy is not None
    _check_network(clients, network, any_splits=any_splits)
    _check_takers(clients, hand_over)
    members = Members(clients, any_splits=any_splits)
    _check_entries(members)
    members.check_roles()


def _check_network(clients: Sequence[Client], network: Network | None, *, any_splits: bool) -> None:
    """Raise ScenarioError where KV entries have no way, or no size."""
    exchanging = [client for client in clients if client.traits.entries is not None]
    roles = [
        f"{client.name} ({client.traits.role or 'by hand_over.policy'})"
        for client in exchanging
        if client.traits.role or any_splits
    ]
    if not roles:
        return
    if network is None:
        raise ScenarioError(
            "network must be given, since KV entries go from clients with role prefill to those "
            f"with role decode, got none with {', '.join(roles)}; such as "
            "network=Link(bandwidth=50e9, latency=1e-3), in bytes per second and seconds"
        )
    for client in exchanging:
        form = client.traits.entries
        if client.traits.takes_entries and form is not None and form.block_bytes is None:
            raise ScenarioError(
                f"{client.name}: kv_block_bytes must be given in EngineMemory, got none; KV "
                "entries of other clients come here, and their transfer time depends on their size"
            )


def _check_takers(clients: Sequence[Client], hand_over: HandOver) -> None:
    """Raise ScenarioError for clients that cannot take over as `hand_over` says."""
    all_traits = [client.traits for client in clients]
    roles = [traits.role for traits in all_traits if traits.entries is not None]
    check_flows(clients, hand_over.policy)
    if "prefill" not in roles and hand_over.policy is None:
        return
    if hand_over.policy is not None and (lack := hand_over.policy.lacks(roles)):
        name = type(hand_over.policy).__name__
        raise ScenarioError(
            f"hand_over.policy has no effect: {name} needs {lack}, got none; change a role, or "
            "leave the policy out"
        )
    for client in clients:
        traits = client.traits
        if traits.entries is None or not traits.takes_entries:
            continue
        if hand_over.transfer == "push" and not traits.reserves:
            raise ScenarioError(
                f"hand_over.transfer must be pull, since {client.name} reserves no memory for "
                "entries that are still to be computed, got push"
            )
        if hand_over.drops_first and not traits.emits_first_token:
            raise ScenarioError(
                f"hand_over.first_token must be prefill, since {client.name} does not begin "
                "answers (a bundle, or an engine with drafts), got decode"
            )


_SAME = {"bfloat16": "bf16", "float16": "fp16", "fp8_e4m3": "fp8"}  # two names in vLLM
_OPEN = {"auto", "bf16", "fp16"}  # "auto" resolves to one of the others; specs do not say which


def dtype_name(dtype: str) -> str:
    """Return the one name of how KV entries are stored."""
    return _SAME.get(dtype, dtype)


def are_alike(one: str, other: str) -> bool:
    """Tell whether entries stored in one way can be read in the other. Names: of `dtype_name`."""
    return one == other or ("auto" in (one, other) and {one, other} <= _OPEN)


def _check_entries(members: Members) -> None:
    """Raise ScenarioError if clients of a model exchange entries and store them in different forms.

    If an engine's memory is given in blocks, without a GPU, the contents of its blocks are unknown.
    """
    firsts: dict[str | None, Client] = {}
    for client in members.exchanging():
        form = client.traits.entries
        if form is None or (form.block_size, form.dtype) == (None, None):
            continue
        first = firsts.setdefault(client.traits.model, client)
        other = first.traits.entries or form
        exchange = f"as of {first.name}, with which {client.name} exchanges KV entries"
        sizes = form.block_size, other.block_size
        if None not in sizes and sizes[0] != sizes[1]:
            raise ScenarioError(
                f"kv_cache.block_size must be {sizes[1]} {exchange}, got {sizes[0]}"
            )
        dtypes = dtype_name(form.dtype or "auto"), dtype_name(other.dtype or "auto")
        if not are_alike(*dtypes):
            raise ScenarioError(
                f"kv_cache.kv_cache_dtype must be {dtypes[1]} {exchange}, got {dtypes[0]}"
            )


class Members:
    """The clients that run engines, and the pairs among them that may exchange KV entries.

    any_splits: whether clients without a role may hand over too.
    tenants: their engines, and the network needs of each.
    """

    def __init__(self, clients: Sequence[Client], *, any_splits: bool = False) -> None:
        self._clients = clients
        self._traits = {client.name: client.traits for client in clients}
        hands_over = any_splits or any(client.traits.role == "prefill" for client in clients)
        self.tenants: list[Tenant] = []
        for client in clients:
            traits = client.traits
            self.tenants += client.tenants(
                sends=_sends(traits, any_splits=any_splits),
                takes=hands_over and traits.takes_entries and traits.role != "prefill",
            )

    def exchanging(self) -> list[Client]:
        """Return the clients that hand entries over, or take them over, in their order."""
        names = {one.name for one in self.tenants if one.sends or one.takes}
        return [client for client in self._clients if client.name in names]

    def check_roles(self) -> None:
        """Raise ScenarioError for a role without its counterpart among the clients of a model."""
        tenants = self.tenants
        if not any(tenant.sends for tenant in tenants):
            return
        for tenant in tenants:
            traits = self._traits[tenant.name]
            if traits.role is None or not (tenant.sends or tenant.takes):
                continue
            if not any(self._may_exchange(tenant, other) for other in tenants):
                does, others = _WORDS if tenant.sends else _WORDS[::-1]
                model = traits.model
                raise ScenarioError(
                    f"clients: {tenant.name} {does} answers of {model}, and no client {others} any "
                    f"of that model; give one the model {model}, or leave {tenant.name} out"
                )

    def _may_exchange(self, one: Tenant, other: Tenant) -> bool:
        """Tell whether KV entries may go between two clients, in either direction.

        Answers flow between clients with role p_heavy and d_heavy, but not among clients of one
        role.
        """
        mine, theirs = self._traits[one.name], self._traits[other.name]
        goes = (one.sends and other.takes) or (one.takes and other.sends)
        are_one_side = mine.role in FLOWING_ROLES and mine.role == theirs.role
        is_other = one is not other and not are_one_side
        return (
            goes and is_other and (mine.model == theirs.model or None in (mine.model, theirs.model))
        )

    def local_pools(self, network: Network | None) -> dict[str, str]:
        """Return the node of each client, by name.

        Raises ScenarioError where the network has no nodes, and for clients that hand over, or take
        over, and have no other for that in their node.
        """
        found = {one.name: network.node_of(one.name) if network else None for one in self.tenants}
        pools = {name: node for name, node in found.items() if node is not None}
        exchanging = [tenant for tenant in self.tenants if tenant.sends or tenant.takes]
        if any(tenant.name not in pools for tenant in exchanging):
            raise ScenarioError(
                "hand_over.pools must be global, since the network has no topology, got local; set "
                "network.topology, such as hgx-h100"
            )
        for tenant in exchanging:
            node, what = pools[tenant.name], "takes over" if tenant.sends else "hands over"
            others = [other for other in exchanging if self._may_exchange(tenant, other)]
            if not any(pools[other.name] == node for other in others):
                models = {traits.model for traits in self._traits.values()}
                model = f" of {self._traits[tenant.name].model}" if len(models) > 1 else ""
                elsewhere = ", ".join(sorted({pools[o.name] for o in others})) or "no node"
                raise ScenarioError(
                    f"hand_over.pools must be global, or a client{model} in {node} must be one "
                    f"that {what}, got local, with {tenant.name} there and such clients in "
                    f"{elsewhere} only; set `place`"
                )
        return pools


_WORDS = ("hands over", "takes over")


def _sends(traits: ClientTraits, *, any_splits: bool) -> bool:
    """Tell whether a client hands entries over: as its role says, or a policy may let it."""
    if traits.role is not None:
        return traits.role in SENDING_ROLES
    return any_splits and traits.sends_entries and traits.entries is not None


def check_lengths(clients: Sequence[Client], source: Source | None) -> None:
    """Raise ScenarioError if no client that decodes can hold any prompt of a workload.

    Answers begin at clients without a role, or with role decode or d_heavy.
    source: source of the prompts; not checked if its shortest prompt is unknown.
    """
    engines = [client for client in clients if client.traits.entries is not None]
    takers = [client for client in engines if client.traits.role not in ("prefill", "p_heavy")]
    if len(takers) == len(engines) or not takers:
        return
    shortest: int = getattr(source, "shortest_prompt", 1)
    limits = {client.name: client.traits.longest_prompt for client in takers}
    longest = max(limit for limit, _ in limits.values())
    if longest < inf and shortest > longest:
        what = "; ".join(f"{name}: {limit:.0f}, {why}" for name, (limit, why) in limits.items())
        raise ScenarioError(
            f"workload.lengths must have prompts of at most {longest:.0f} tokens, the most that a "
            f"client holds which decodes ({what}), got {shortest} or more in each; all would be "
            "rejected"
        )


_ENOUGH = 100  # visits of a group from which on a router that leaves clients idle is named
_ALL_BUT, _NONE = 0.9, 0.01  # shares of the visits: of the busiest client, and of the idlest
_THINKING = 0.1  # seconds: load generators take less between two requests of a user
_ROSE = 1.5  # times: a p99 that the first requests of users who start at once set
_EXCEED = re.compile("exceed .*KV cache|in max_model_len")  # reasons against requests


def check_clients(
    clients: Sequence[Client], network: Network | None = None, hand_over: HandOver | None = None
) -> None:
    """Raise ScenarioError unless clients do what their traits claim, and fit together.

    A simulation calls it when it is made; authors of clients may call it at any time. It checks
    that each client has traits and a unique name, takes a visit of each stage and model that it
    claims to serve, and, if it exchanges KV entries, finds another client that stores them in the
    same form.

    network: network between them; None: none. hand_over: how prompts continue; None: the defaults
        of `HandOver()`.
    """
    check_names(clients)
    for client in clients:
        _check_claims(client)
    check_hand_overs(clients, network, hand_over or HandOver())
    check_shared_tiers(clients)
    check_shared_parts(clients)


def _check_claims(client: Client) -> None:
    """Raise ScenarioError for a client that does not do what its traits claim.

    Before the client starts, `takes` is asked whether it would begin a prompt, and an answer.
    """
    kind = type(client).__name__
    for name in _of_the_run(client):
        raise ScenarioError(
            f"{client.name}: {kind} must not have a field {name!r}, which every client has for the "
            "run; rename it"
        )
    traits, stages = client.traits, list[Stage]()
    if Prefill.kind in traits.serves:
        stages.append(Prefill(num_prompt_tokens=1))
    if Decode.kind in traits.serves and traits.takes_entries:
        stages.append(Decode(num_tokens=1))
    for stage in stages:
        if not client.takes((stage,)):
            raise ScenarioError(
                f"{client.name}: traits.serves must name stages that it takes, got {stage.kind}, "
                f"of which {kind}.takes takes none"
            )


_SET_BY_RUNS = (
    *("env", "client_id", "recorder", "view", "stays", "track", "streams", "network", "history"),
    *(
        "traits",
        "collectives",
        "shared_parts",
        "flow",
        "has_taker",
        "layouts",
        "may_fail",
    ),
)


def _of_the_run(client: Client) -> list[str]:
    """Return parameters of a client that are called like something that a run sets."""
    parameters = getattr(type(client), "__dataclass_fields__", {})
    return [name for name in parameters if name in _SET_BY_RUNS]


def check_names(clients: Sequence[Client]) -> None:
    """Raise ScenarioError unless there are clients, with traits and a name of its own each."""
    for client in clients:
        if isinstance(client, type) or not isinstance(client, Client):
            raise ScenarioError(
                "clients must be clients, such as llm_client(...), or children of mist_sim.Client, "
                f"got {brief(client)}"
            )
        if not isinstance(getattr(client, "traits", None), ClientTraits):
            raise ScenarioError(
                f"clients: {type(client).__name__} must have traits; call super().__init__(name, "
                f"traits) in its __init__ or __post_init__"
            )
    if not clients:
        raise ScenarioError("clients: a simulation needs at least one client, got none")
    for name, count in Counter(client.name for client in clients).items():
        if count > 1:
            raise ScenarioError(f"clients: names must be unique, got {brief(name)} {count} times")


def check_lives(
    lifecycle: Lifecycle,
    clients: Sequence[Client],
    network: Network | None,
    slo: Slo,
) -> None:
    """Raise ScenarioError for lives that clients or limits do not go with."""
    lifecycle.check(clients, network)
    if lifecycle.asks_for_slo and not slo.judges_requests:
        raise ScenarioError("slo must have a limit, which autoscaling by attainment needs")


def check_search(
    reconfigure: Reconfigure | None, search: Search | None, clients: Sequence[Client]
) -> None:
    """Raise ScenarioError for a reconfiguration that clients cannot make, or without a search."""
    if reconfigure is not None:
        check_reconfigure(reconfigure, clients)
    asks = reconfigure is not None and reconfigure.on_change is not None
    if asks != (search is not None):
        rule = "be given with" if search is None else "be left out without"
        raise ScenarioError(f"search must {rule} reconfigure.on_change, whose positions it finds")


def named_router(option: str, said: object) -> Router:
    """Return a router that is given, or the one of that name with its defaults.

    option: that says it, for messages. Raises ScenarioError for anything else.
    """
    if isinstance(said, str):
        plugin = ROUTERS[said]
        try:
            made: Router = plugin()
        except TypeError as error:
            raise ScenarioError(
                f"{option}: {said} has no default for all parameters; give the router itself, "
                f"{plugin.__name__}(...): {error}"
            ) from None
        return made
    if isinstance(said, type) or not callable(getattr(said, "choose", None)):
        raise ScenarioError(
            f"{option} must be a router, with choose(request, stage, candidates), or the name of "
            f"one, such as least_outstanding, got {brief(said)}"
        )
    require_method(option, said, "choose(request, stage, candidates)")
    return cast("Router", said)


def without_price(clients: Sequence[Client], cost: CostOptions) -> tuple[ResultWarning, ...]:
    """Return a warning where a cost is asked for and a GPU has no price; empty if all have one.

    Raises ScenarioError where the GPUs of a client, or watts to pay for, are not known.
    """
    for client in clients:
        if client.traits.machine is None and client.traits.times is not None:
            raise ScenarioError(
                f"cost must be None, since the GPUs of {client.name} are unknown; leave it out, "
                "or name them: gpu of a bundle, llm_client for an engine, machine in the traits of "
                "a client of one's own"
            )
    machines = [client.traits.machine for client in clients]
    if cost.electricity and (gpus := without_watts(machines)):
        raise ScenarioError(
            f"cost.electricity must be 0 $/kWh, since the power of {', '.join(gpus)} is not known; "
            "say it with the GPU's figures"
        )
    try:
        gpu_prices(machines, cost)
    except ScenarioError as error:
        return (ResultWarning(NO_PRICE, f"No dollars: {error}."),)
    return ()


def check_routers(clients: Sequence[Client], routers: Mapping[str, Router]) -> None:
    """Raise ScenarioError for a router of a stage that no client serves."""
    served = {kind for client in clients for kind in client.traits.serves}
    for kind in routers:
        more = f"The clients serve {', '.join(sorted(served))}"
        require_known(kind, served, f"routers.{kind}: no client serves", more)


def too_small_warnings(recorder: Recorder, clients: Iterable[Client]) -> Iterator[ResultWarning]:
    """Yield a warning for each group of requests that no engine's KV cache has room for.

    With what is missing, and what would hold the longest of them.
    """
    c = recorder.requests.columns()
    lengths = c["num_prompt_tokens"] + c["num_output_tokens"]
    engines = {each.name: each for each in clients if isinstance(each, LlmClient)}
    reasons: dict[str, list[int]] = {}
    for number, reason in enumerate(map(str, recorder.reasons.values)):
        if _EXCEED.search(reason):
            reasons.setdefault(reason.partition(": ")[0], []).append(number)
    found: dict[int, list[tuple[LlmClient, int, int]]] = {}
    for name in filter(engines.get, reasons):
        client, rows = engines[name], isin(c["reason"], reasons[name])
        pool, longest = client.memory.pool(), int(lengths[rows].max(initial=0))
        if pool.blocks_alone(longest) > pool.num_blocks:
            found.setdefault(pool.num_blocks, []).append((client, int(rows.sum()), longest))
    for told in found.values():
        yield ResultWarning(TOO_SMALL, _too_small(told))


def cut_warnings(clients: Iterable[Client]) -> Iterator[ResultWarning]:
    """Yield a warning for each model that read texts longer than its longest input."""
    found: dict[tuple[str, str], Counter[str]] = {}
    most = {}
    for client in [each for each in clients if isinstance(each, RagClient)]:
        for step, reader in client.readers.items():
            key = step, reader.predictor.model.name
            most[key] = reader.longest_input
            if client.num_cut[step]:
                mine = Counter(cut=client.num_cut[step], texts=client.num_texts[step])
                found[key] = found.get(key, Counter()) + mine
    for (step, model), number in found.items():
        yield ResultWarning(
            CUT_TEXTS,
            f"{number['cut']:,} of {number['texts']:,} texts were cut at {most[step, model]:,} "
            f"tokens, the longest input of {model} ({step}; a re-ranker reads the question with "
            "the passage): what is behind that takes no time, and a real model does not see it. "
            "Let passages be shorter, or take a model that reads more.",
        )


def waves_warnings(recorder: Recorder, loop: ClosedLoop | None) -> Iterator[ResultWarning]:
    """Yield a warning where users move in waves, since requests and pauses are all equal.

    Pauses as short as those of load generators are not meant.
    """
    if loop is None or loop.sessions or loop.concurrency == 1:
        return
    pause, c = loop.think_time, recorder.requests.columns()
    if isinstance(pause, DurationDistribution) or pause < _THINKING:
        return
    prompt, output = (c[f"num_{each}_tokens"] for each in ("prompt", "output"))
    if len(prompt) > loop.concurrency and ptp(prompt) == ptp(output) == 0:
        yield ResultWarning(
            WAVES,
            f"Users move in waves: every request has {prompt[0]:,} + {output[0]:,} tokens and "
            f"every pause {pause:g} s, so users who once met stay together and queue for one "
            "another. People do not: let lengths vary (type: normal), or pauses (think_time: "
            f"{{type: exponential, mean: {pause:g} s}}).",
        )


def common_start_warnings(
    recorder: Recorder, loop: ClosedLoop | None, warmup: float
) -> Iterator[ResultWarning]:
    """Yield a warning where users who think start all at once, and those requests set the p99."""
    if loop is None or loop.concurrency == 1 or loop.ramp_up or warmup:
        return
    if not isinstance(loop.think_time, DurationDistribution) and loop.think_time < _THINKING:
        return
    c = recorder.requests.columns()
    done = (c["status"] == 0) & (c["parent_id"] == c["request_id"])
    times, at_start = c["first_token_at"] - c["arrival_time"], c["arrival_time"] == 0
    known = done & ~isnan(times)
    later = times[known & ~at_start]
    if not len(later) or not (known & at_start).any():
        return
    p99, without = (1e3 * float(quantile(each, 0.99)) for each in (times[known], later))
    if p99 > _ROSE * without:
        yield ResultWarning(
            COMMON_START,
            f"All {loop.concurrency:,} users start at once: with their first requests p99 TTFT is "
            f"{p99:,.0f} ms, without them {without:,.0f} ms. People do not: give "
            "workload.arrivals.ramp_up, or a warmup that leaves the first ones out.",
        )


def idle_warnings(
    recorder: Recorder, clients: Iterable[Client], routers: Mapping[str, Router]
) -> Iterator[ResultWarning]:
    """Yield a warning for each group of clients alike of which one has all but all visits.

    routers: by kind of stage; "": of all others.
    """
    visits = bincount(recorder.visits.columns()["client_id"], minlength=1)
    groups: dict[tuple[Any, ...], list[tuple[int, str]]] = {}
    for number, client in enumerate(clients):
        traits = client.traits
        times = int(visits[number]) if number < len(visits) else 0
        key = traits.serves, traits.role, traits.model
        groups.setdefault(key, []).append((times, client.name))
    for (serves, *_), found in groups.items():
        total, most, least = sum(times for times, _ in found), max(found), min(found)
        if total < _ENOUGH or most[0] <= _ALL_BUT * total or least[0] > _NONE * total:
            continue
        router = next((routers[kind] for kind in serves if kind in routers), routers[""])
        known = (name for name, cls in ROUTERS.loaded().items() if type(router) is cls)
        name, advice = next(known, type(router).__name__), "take one that looks at load"
        if isinstance(router, LoadBound):
            advice = (
                f"lower balance_abs_threshold ({router.balance_abs_threshold:g}) and "
                f"balance_rel_threshold ({router.balance_rel_threshold:g}), or {advice}"
            )
        yield ResultWarning(
            IDLE_REPLICAS,
            f"The router {name} sends {most[0]:,} of {total:,} visits to {most[1]}, and "
            f"{least[0]:,} to {least[1]}, of {len(found)} clients alike: {advice}, such as "
            "least_outstanding.",
        )


def blind_warnings(
    recorder: Recorder, clients: Sequence[Client], routers: Mapping[str, Router]
) -> Iterator[ResultWarning]:
    """Yield a warning for each router by prefix, session or KV entries that had none to go by.

    routers: by kind of stage; "": of all others.
    """
    columns = recorder.requests.columns()
    for kind, router in routers.items():
        served = [set(client.traits.serves) for client in clients]
        mine = [
            client
            for client, kinds in zip(clients, served, strict=True)
            if (kind in kinds if kind else kinds - routers.keys())
        ]
        router = router.router if isinstance(router, PolledRouter) else router  # noqa: PLW2901
        by_entries = isinstance(router, PlacementAwareRouter)
        why = _why_blind(router, columns)
        if by_entries and "hand_over" not in recorder.moves.names:
            why = "no request brings KV entries, as no client hands any over"
        if why and len(mine) > 1 and len(columns["request_id"]) > 1:
            name = next(name for name, cls in ROUTERS.loaded().items() if isinstance(router, cls))
            yield ResultWarning(
                BLIND_ROUTER,
                f"The router {name} has nothing to go by: {why}. It chooses as least_outstanding "
                "does.",
            )


def _why_blind(router: Router, c: Mapping[str, Any]) -> str:
    """Return what a router by prefix or session lacks; empty if nothing. c: of all requests."""
    if isinstance(router, SessionAffinityRouter) and (c["session_id"] < 0).all():
        return "no request is of a session (of a log, session_column names it)"
    if not isinstance(router, PrefixAffinityRouter):
        return ""
    if not c["num_queried_tokens"].any():
        return "no client caches prefixes (kv_cache.enable_prefix_caching)"
    if not c["num_known_tokens"].any():
        return "no prompt begins as an earlier one, or the workload does not say so"
    return ""


def _too_small(told: Sequence[tuple[LlmClient, int, int]]) -> str:
    """Return what equal engines lack for the longest request. told: engine, requests, longest."""
    client, number, longest = told[0][0], sum(n for _, n, _ in told), max(t for _, _, t in told)
    pool, machine = client.memory.pool(), client.traits.machine
    missing = (pool.blocks_alone(longest) - pool.num_blocks) * (client.kv_block_bytes or 0.0)
    ranks = max(num_gpus(machine) / client.data_parallel_size, 1)
    found = client.what_fits(longest) if client.what_fits else ""
    names = listed(dict.fromkeys(each.name for each, _, _ in told))
    return (
        f"{in_words(number, 'request')} of up to {longest:,} tokens never fit in the KV cache of "
        f"{client.memory.num_tokens:,} tokens at {names}: {gib(missing / ranks)} are missing."
        f"{f' They fit with {found}.' if found else ''}"
    )
