"""Rules for clients, network and workload under which prompts can be handed over."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from mist_sim.clients import Client
from mist_sim.clients.rules import check_flows
from mist_sim.clients.traits import FLOWING_ROLES, SENDING_ROLES, ClientTraits
from mist_sim.core.hand_over import HandOver
from mist_sim.errors import ScenarioError
from mist_sim.network import Network, Tenant
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
