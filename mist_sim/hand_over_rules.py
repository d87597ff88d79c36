"""What has to hold of clients, network and workload so that prompts can be handed over."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from mist_sim.clients import AfdClient, Client, LlmClient
from mist_sim.clients.engine_config import FLOWING_ROLES, Role
from mist_sim.clients.flows import check_flows
from mist_sim.core.hand_over import HandOver
from mist_sim.errors import ScenarioError
from mist_sim.models import load_model
from mist_sim.network import Network, Tenant
from mist_sim.traces.base import Source

Models = Mapping[str, str | None]
"""The model that each client serves, by name; None: any."""

Roles = Mapping[str, Role | None]
"""The role of each client with engines, by name."""


def check_hand_overs(
    clients: Sequence[Client], network: Network | None, hand_over: HandOver
) -> None:
    """Raise ScenarioError for engines that cannot hand over KV entries as they are asked to."""
    any_splits = hand_over.policy is not None
    _check_network(clients, network, any_splits=any_splits)
    _check_takers(clients, hand_over)
    _check_entries(clients, any_splits=any_splits)
    with_role = {c.name for c in clients if isinstance(c, LlmClient) and c.role}
    members = tenants(clients, any_splits=any_splits)
    _check_models(members, with_role, models_of(clients), roles_of(clients))


def _check_network(clients: Sequence[Client], network: Network | None, *, any_splits: bool) -> None:
    """Raise ScenarioError where KV entries have no way, or no size."""
    engines = [client for client in clients if isinstance(client, LlmClient | AfdClient)]
    roles = [
        f"{client.name} ({client.role or 'by hand_over.policy'})"
        for client in engines
        if client.role or any_splits
    ]
    if not roles:
        return
    if network is None:
        raise ScenarioError(
            "network must be given, since KV entries go from clients with role prefill to those "
            f"with role decode, got none with {', '.join(roles)}; such as "
            "network=Link(bandwidth=50e9, latency=1e-3), in bytes per second and seconds"
        )
    for client in engines:
        if isinstance(client, AfdClient):
            continue  # its model says how large entries are
        is_taker = client.role != "prefill" and client.scheduler.takes_over
        if is_taker and client.kv_block_bytes is None:
            raise ScenarioError(
                f"{client.name}: kv_block_bytes must be given in EngineMemory, got none; KV "
                "entries of other clients come here, and their size says how long they take"
            )


def _check_takers(clients: Sequence[Client], hand_over: HandOver) -> None:
    """Raise ScenarioError for clients that cannot take over as `hand_over` says."""
    roles = [client.role for client in clients if isinstance(client, LlmClient)]
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
        if hand_over.transfer == "push" and isinstance(client, AfdClient):
            raise ScenarioError(
                f"hand_over.transfer must be pull, since {client.name} is a bundle, which reserves "
                "no memory, got push"
            )
        if not hand_over.drops_first:
            continue
        takes_drafts = (
            isinstance(client, LlmClient)
            and client.speculative_config is not None
            and client.role != "prefill"
        )
        if isinstance(client, AfdClient) or takes_drafts:
            what = "a bundle" if isinstance(client, AfdClient) else "an engine with drafts"
            raise ScenarioError(
                f"hand_over.first_token must be prefill, since {client.name} is {what}, which does "
                "not begin answers here, got decode"
            )


_SAME = {"bfloat16": "bf16", "float16": "fp16", "fp8_e4m3": "fp8"}  # two names in vLLM
_OPEN = {"auto", "bf16", "fp16"}  # "auto" is one of the others; specs do not say which


def dtype_name(dtype: str) -> str:
    """Return the one name of how KV entries are stored."""
    return _SAME.get(dtype, dtype)


def are_alike(one: str, other: str) -> bool:
    """Tell whether entries stored in one way can be read in the other. Names: of `dtype_name`."""
    return one == other or ("auto" in (one, other) and {one, other} <= _OPEN)


def _check_entries(clients: Sequence[Client], *, any_splits: bool) -> None:
    """Raise ScenarioError for engines of a model that exchange entries, and store them unlike.

    Of engines without a GPU, whose memory is given in blocks, nobody knows what these hold.
    """
    names = {one.name for one in tenants(clients, any_splits=any_splits) if one.sends or one.takes}
    firsts: dict[str | None, LlmClient] = {}
    for client in clients:
        if not isinstance(client, LlmClient) or client.machine is None or client.name not in names:
            continue
        first = firsts.setdefault(client.served_model, client)
        exchange = f"as of {first.name}, with which {client.name} exchanges KV entries"
        size, others = client.config.kv_cache.block_size, first.config.kv_cache.block_size
        if size != others:
            raise ScenarioError(f"kv_cache.block_size must be {others} {exchange}, got {size}")
        dtypes: list[str] = [one.config.kv_cache.kv_cache_dtype for one in (first, client)]
        if dtypes[0] != dtypes[1]:
            dtypes = [_dtype_of(first), _dtype_of(client)]
        if not are_alike(*dtypes):
            raise ScenarioError(
                f"kv_cache.kv_cache_dtype must be {dtypes[0]} {exchange}, got {dtypes[1]}"
            )


def _dtype_of(client: LlmClient) -> str:
    model, dtype = client.config.model, str(client.config.kv_cache.kv_cache_dtype)
    if dtype == "auto":
        dtype = (load_model(model) if isinstance(model, str) else model).kv_cache_dtype
    return dtype_name(dtype)


def _check_models(
    members: Sequence[Tenant], with_role: Collection[str], models: Models, roles: Roles
) -> None:
    """Raise ScenarioError for clients with a role and nobody of their model on the other side."""
    if not any(tenant.sends for tenant in members):
        return
    for tenant in (tenant for tenant in members if tenant.name in with_role):
        if not any(_may_exchange(tenant, other, models, roles) for other in members):
            does, others = _WORDS if tenant.sends else _WORDS[::-1]
            model = models[tenant.name]
            raise ScenarioError(
                f"clients: {tenant.name} {does} answers of {model}, and no client {others} any of "
                f"that model; give one the model {model}, or leave {tenant.name} out"
            )


_WORDS = ("hands over", "takes over")


def _may_exchange(one: Tenant, other: Tenant, models: Models, roles: Roles) -> bool:
    """Tell whether KV entries may go from one client to another, or from that to it.

    Answers flow between clients with role p_heavy and d_heavy, and not among those of one.
    """
    mine, theirs = models[one.name], models[other.name]
    goes = (one.sends and other.takes) or (one.takes and other.sends)
    role = roles.get(one.name)
    are_one_side = role in FLOWING_ROLES and role == roles.get(other.name)
    is_other = one is not other and not are_one_side
    return goes and is_other and (mine == theirs or None in (mine, theirs))


def roles_of(clients: Sequence[Client]) -> dict[str, Role | None]:
    """Return the role of each client with engines, by name."""
    return {client.name: client.role for client in clients if isinstance(client, LlmClient)}


def models_of(clients: Sequence[Client]) -> dict[str, str | None]:
    """Return the model that each client serves, by name."""
    return {client.name: client.served_model for client in clients}


def check_lengths(clients: Sequence[Client], source: Source | None) -> None:
    """Raise ScenarioError where no client that decodes can hold any prompt of a workload.

    Answers begin at those without a role, or with role decode or d_heavy.
    source: of the prompts; one whose shortest is not known is not looked at.
    """
    engines = [client for client in clients if isinstance(client, LlmClient)]
    takers = [client for client in engines if client.role not in ("prefill", "p_heavy")]
    has_bundles = any(isinstance(client, AfdClient) for client in clients)
    if len(takers) == len(engines) or not takers or has_bundles:
        return
    shortest: int = getattr(source, "shortest_prompt", 1)
    limits = {client.name: client.longest_prompt for client in takers}
    longest = max(limit for limit, _ in limits.values())
    if shortest > longest:
        what = "; ".join(f"{name}: {limit:.0f}, {why}" for name, (limit, why) in limits.items())
        raise ScenarioError(
            f"workload.lengths must have prompts of at most {longest:.0f} tokens, the most that a "
            f"client holds which decodes ({what}), got {shortest} or more in each; all would be "
            "rejected"
        )


def local_pools(
    members: Sequence[Tenant], network: Network | None, models: Models, roles: Roles
) -> dict[str, str]:
    """Return the node of each client, by name.

    models: that the clients serve, by name. roles: their roles.
    Raises ScenarioError where the network has no nodes, and for clients that hand over, or take
    over, and have nobody in their node for that.
    """
    found = {one.name: network.node_of(one.name) if network else None for one in members}
    pools = {name: node for name, node in found.items() if node is not None}
    tenants_of = [tenant for tenant in members if tenant.sends or tenant.takes]
    if any(tenant.name not in pools for tenant in tenants_of):
        raise ScenarioError(
            "hand_over.pools must be global, since the network has no topology, got local; set "
            "network.topology, such as hgx-h100"
        )
    for tenant in tenants_of:
        node, what = pools[tenant.name], "takes over" if tenant.sends else "hands over"
        near = [other for other in tenants_of if pools[other.name] == node]
        if not any(_may_exchange(tenant, other, models, roles) for other in near):
            model = f" of {models[tenant.name]}" if len(set(models.values())) > 1 else ""
            others = [o for o in tenants_of if _may_exchange(tenant, o, models, roles)]
            elsewhere = ", ".join(sorted({pools[o.name] for o in others})) or "no node"
            raise ScenarioError(
                f"hand_over.pools must be global, or a client{model} in {node} must be one that "
                f"{what}, got local, with {tenant.name} there and such clients in {elsewhere} "
                "only; set `place`"
            )
    return pools


def tenants(clients: Sequence[Client], *, any_splits: bool = False) -> list[Tenant]:
    """Return the clients that run engines, and what they need of a network.

    A worker of a bundle is an engine. any_splits: whether clients without a role may hand over,
    too.
    """
    engines = [client for client in clients if isinstance(client, LlmClient)]
    hands_over = any_splits or any(client.role == "prefill" for client in engines)
    found = []
    for client in clients:
        if isinstance(client, AfdClient):
            found += client.tenants(takes=hands_over)
        elif isinstance(client, LlmClient):
            config = client.config
            sends = client.role not in ("decode", None) or (any_splits and client.role is None)
            found.append(
                Tenant(
                    client.name,
                    config.data_parallel_size,
                    config.pipeline_parallel_size,
                    config.tensor_parallel_size,
                    client.place,
                    sends=sends,
                    takes=hands_over and client.role != "prefill" and client.scheduler.takes_over,
                    stores=tuple(client.stores.items()),
                )
            )
    return found
