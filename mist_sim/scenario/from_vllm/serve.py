"""From `vllm serve ...` to a client of a scenario."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from mist_sim.errors import cut
from mist_sim.scenario.from_vllm.flags import Flag, flags_of
from mist_sim.scenario.from_vllm.handlers import drafts, generation, kernels, models, nodes
from mist_sim.scenario.from_vllm.server import Server, account_for, settle
from mist_sim.scenario.from_vllm.tables import ARITIES, RENAMED, SERVE, SHORT, marked
from mist_sim.scenario.from_vllm.wrappers.manifests import with_config


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
    flags = drafts.merged(flags)
    said = {flag.name: flag for flag in flags if not flag.fault}
    server = Server(said, variables, overrides, gpu, engine)
    _read_model(said, server)
    for flag in flags:
        if flag.fault:
            server.refused(flag.name, flag.fault)
        elif said[flag.name] is not flag:
            server.no_effect(flag, f"{flag.name} is given again behind it")
        elif flag.name == "--config" and not fault:
            server.applied(flag, "the keys of the file, as arguments")
        elif flag.name in RENAMED:
            _settle_renamed(flag, server)
        elif flag.name not in ("", "--model", "--config"):
            settle(SERVE[flag.name], flag, server)
    if fault:
        server.refused("--config", fault)
    _drop_lone_experts(server)
    nodes.exchanges(server)
    nodes.note_lanes(server)
    nodes.check_nodes(server)
    models.check_length(server)
    kernels.from_variables(server)
    generation.defaults(server)
    account_for(server, num_gpus=num_gpus)
    return server


def _read_model(said: Mapping[str, Flag], server: Server) -> None:
    loose = said[""].values if "" in said else ()
    if loose:
        models.model(loose[0], cut(loose[0]), server)
    for word in loose[1:]:
        server.refused(cut(word), "is no flag, and follows none that takes it; leave it out")
    if loose and "--model" in said:
        server.no_effect(said["--model"], "the model is given without a flag, too")
    elif "--model" in said:
        models.model(said["--model"].value, said["--model"].written, server)
    elif not loose:
        server.refused("", "the model is missing; write vllm serve MODEL ...")


def _settle_renamed(flag: Flag, server: Server) -> None:
    """Settle an older name as the newer one; its line in the account says both."""
    renamed, items = RENAMED[flag.name], server.items
    now, before = renamed.flag(flag), len(items)
    settle(SERVE[now.name], now, server)
    for place, item in enumerate(items[before:], start=before):
        why = f"{item.why}; {now.name} after vLLM {renamed.until}"
        items[place] = replace(item, flag=flag.written, why=why)


def _drop_lone_experts(server: Server) -> None:
    """Take back expert parallelism of a server of one rank, which has all experts anyway."""
    alone = server.number("--tensor-parallel-size") * server.number("--data-parallel-size") == 1
    if alone and server.client.pop("enable_expert_parallel", None) is not None:
        items = server.items
        del items[next(i for i, item in enumerate(items) if "enable-expert" in item.flag)]
        server.no_effect("--enable-expert-parallel", "one rank has all experts anyway")
