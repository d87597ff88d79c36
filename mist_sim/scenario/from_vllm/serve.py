"""From `vllm serve ...` to a client of a scenario."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mist_sim.errors import cut
from mist_sim.scenario.from_vllm import server as server_variables
from mist_sim.scenario.from_vllm.flags import Arity, Flag, flags_of
from mist_sim.scenario.from_vllm.handlers import (
    adapter_flags,
    backend_flags,
    compilation,
    drafts,
    generation_flags,
    limit_flags,
    model_flags,
    nodes,
    planning_ahead,
    spec_flags,
    state_flags,
    tower_flags,
    transfer_flags,
)
from mist_sim.scenario.from_vllm.server import Handler, Server
from mist_sim.scenario.from_vllm.tables import RENAMED, SERVE, Row, marked
from mist_sim.scenario.from_vllm.wrappers.charts import with_config

COMMAND = "vllm serve"

HANDLERS: Mapping[str, Handler] = {
    "--headless": nodes.headless,
    "--disable-custom-all-reduce": nodes.no_custom_all_reduce,
    "--disable-sliding-window": model_flags.windows,
    "--disable-hybrid-kv-cache-manager": model_flags.windows,
    "--enable-lora": adapter_flags.enable,
    "--fully-sharded-loras": adapter_flags.fully_sharded,
    "--enable-tower-connector-lora": adapter_flags.other,
    "--language-model-only": tower_flags.language_only,
    "--quantization": model_flags.quantization,
    "--hf-overrides": model_flags.hf_overrides,
    "--rope-scaling": model_flags.rope,
    "--rope-theta": model_flags.rope,
    "--moe-backend": backend_flags.moe_backend,
    "--attention-backend": backend_flags.attention_backend,
    "--attention-config": backend_flags.attention_config,
    "--kernel-config": backend_flags.kernel_config,
    "--distributed-executor-backend": planning_ahead.executor,
    "--speculative-config": drafts.drafts,
    "--compilation-config": compilation.compilation,
    "--optimization-level": compilation.level,
    "--kv-transfer-config": transfer_flags.transfer,
    "--api-server-count": limit_flags.api_servers,
    "--kv-offloading-size": limit_flags.offloading_size,
    "--kv-offloading-backend": limit_flags.offloading_backend,
    "--mamba-cache-mode": state_flags.cache_mode,
    "--generation-config": generation_flags.source,
    "--override-generation-config": generation_flags.override,
    "--nnodes": nodes.nnodes,
    "--node-rank": nodes.rank,
    "--data-parallel-start-rank": nodes.rank,
    "--data-parallel-size-local": nodes.local,
    "--all2all-backend": nodes.all_to_all,
    "--max-loras": adapter_flags.size,
    "--max-lora-rank": adapter_flags.size,
    "--max-cpu-loras": adapter_flags.size,
    "--lora-modules": adapter_flags.modules,
    "--lora-dtype": adapter_flags.other,
    "--lora-extra-vocab-size": adapter_flags.other,
    "--lora-target-modules": adapter_flags.other,
    "--limit-mm-per-prompt": tower_flags.limits,
}
"""Handlers of flags that need more than a key."""

SHORT: Mapping[str, str] = {alias: row.flag for row in SERVE.values() for alias in row.aliases}
ARITIES: Mapping[str, Arity] = {
    **{flag: row.takes for flag, row in SERVE.items()},
    **{flag: renamed.takes for flag, renamed in RENAMED.items()},
}
"""How many values each flag takes."""


def read_server(
    words: Sequence[str],
    variables: Mapping[str, str],
    *,
    num_gpus: int | None = None,
    overrides: Collection[str] = (),
    gpu: str = "",
    engine: str | None = None,
) -> Server:
    """Return the client that a server's arguments describe, with an account of each of them.

    variables: of its environment. num_gpus: that it may use, if known. overrides: keys that are
    said elsewhere. gpu: its name; empty if it is not known. engine: as in `Server`.
    """
    words, fault = with_config(words)
    flags = marked(flags_of(words, ARITIES, SHORT, has_model=True), engine)
    flags = spec_flags.merged(flags)
    said = {flag.name: flag for flag in flags if not flag.fault}
    server = Server(said, variables, overrides, gpu, engine)
    _read_model(said, server)
    for flag in flags:
        if flag.fault:
            server.account.refused(flag.name, flag.fault)
        elif said[flag.name] is not flag:
            server.account.no_effect(flag.written, f"{flag.name} is given again behind it")
        elif flag.name == "--config" and not fault:
            server.account.applied(flag.written, "the keys of the file, as arguments")
        elif flag.name not in ("", "--model", "--config"):
            _handle(flag, server)
    if fault:
        server.account.refused("--config", fault)
    _drop_lone_experts(server)
    nodes.exchanges(server)
    nodes.note_lanes(server)
    nodes.check_nodes(server)
    model_flags.check_length(server)
    backend_flags.from_variables(server)
    generation_flags.defaults(server)
    server_variables.account_for(server, num_gpus=num_gpus)
    return server


def _read_model(said: Mapping[str, Flag], server: Server) -> None:
    loose = said[""].values if "" in said else ()
    if loose:
        model_flags.model(loose[0], cut(loose[0]), server)
    for word in loose[1:]:
        server.account.refused(
            cut(word), "is no flag, and follows none that takes it; leave it out"
        )
    if loose and "--model" in said:
        server.account.no_effect(said["--model"].written, "the model is given without a flag, too")
    elif "--model" in said:
        model_flags.model(said["--model"].value, said["--model"].written, server)
    elif not loose:
        server.account.refused("", f"the model is missing; write {COMMAND} MODEL ...")


def _handle(flag: Flag, server: Server) -> None:
    if flag.name in RENAMED:
        _handle_renamed(flag, server)
        return
    row = SERVE[flag.name]
    if flag.name in HANDLERS:
        HANDLERS[flag.name](flag, server)
    elif row.fate == "set":
        _honour(flag, row, server)
    elif row.fate != "refused":
        note = server.account.assumed if row.fate == "assumed" else server.account.no_effect
        note(flag.name if flag.is_on else flag.written, row.why)
    elif row.asks_for_nothing(flag):
        server.account.no_effect(flag.written, "it asks for what is simulated")
    elif row.key and server.is_set_whole(row.key):
        server.account.applied(flag.written, f"{row.key}, which --set says")
    else:
        server.account.refused(flag.written, row.why)


def _handle_renamed(flag: Flag, server: Server) -> None:
    """Handle an older name as the newer one; its line in the account says both."""
    renamed, items = RENAMED[flag.name], server.account.items
    now, before = renamed.flag(flag), len(items)
    _handle(now, server)
    for place, item in enumerate(items[before:], start=before):
        why = f"{item.why}; {now.name} after vLLM {renamed.until}"
        items[place] = replace(item, flag=flag.written, why=why)


def _honour(flag: Flag, row: Row, server: Server) -> None:
    if row.takes == "switch":
        server.set(row.key, flag.is_on, flag)
        return
    try:
        values: list[Any] = [row.reads(value) for value in flag.values]
    except ArgumentTypeError as error:
        server.account.refused(flag.written, str(error))
        return
    except ValueError:
        kind = getattr(row.reads, "__name__", "")
        server.account.refused(flag.written, f"invalid {kind} value: {cut(flag.value)!r}")
        return
    if row.choices and values[0] not in row.choices:
        known = ", ".join(row.choices)
        server.account.refused(flag.written, f"invalid choice (choose from {known})")
        return
    value = values if row.takes == "many" else values[0]
    none = flag.name == "--long-prefill-token-threshold" and value == 0
    server.set(row.key, None if none else value, flag)


def _drop_lone_experts(server: Server) -> None:
    """Take back expert parallelism of a server of one rank, which has all experts anyway."""
    alone = server.number("--tensor-parallel-size") * server.number("--data-parallel-size") == 1
    if alone and server.client.pop("enable_expert_parallel", None) is not None:
        items = server.account.items
        place = next(i for i, item in enumerate(items) if "enable-expert" in item.flag)
        del items[place]
        server.account.no_effect("--enable-expert-parallel", "one rank has all experts anyway")
