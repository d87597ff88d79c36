"""GPUs that a manifest asks for by the labels of nodes.

Sources: `PodSpec.nodeSelector` and `NodeSelectorTerm` of the Kubernetes API; NVIDIA's GPU feature
discovery for the label of the product; `nodeSelectorTerms` of vLLM's production stack.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from mist_sim.errors import ScenarioError
from mist_sim.hardware import load_gpu
from mist_sim.scenario.from_vllm.wrappers.command import Command, Surroundings

_PRODUCT = "nvidia.com/gpu.product"
_FLAG = f"nodeSelector.{_PRODUCT}"
_BRAND = re.compile("^(NVIDIA-)?(GeForce-)?", re.IGNORECASE)
_TERMS = "nodeSelectorTerms"
_REQUIRED = ("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", _TERMS)


def labels_of(part: Mapping[str, Any]) -> dict[str, str]:
    """Return the labels that the nodes of a pod must have; several values of one with commas."""
    selector = part.get("nodeSelector")
    found = dict(selector) if isinstance(selector, dict) else {}
    return {str(key): str(value) for key, value in {**found, **dict(_affinity(part))}.items()}


def _affinity(part: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the labels that a part's one term asks for."""
    terms: Any = part
    for key in _REQUIRED:
        terms = terms.get(key) if isinstance(terms, dict) else None
    terms = terms or part.get(_TERMS)
    term = terms[0] if isinstance(terms, list) and len(terms) == 1 else None
    asked = term.get("matchExpressions") if isinstance(term, dict) else None
    for each in asked if isinstance(asked, list) else ():
        values = each.get("values") if isinstance(each, dict) else None
        if isinstance(values, list) and each.get("operator") == "In":
            yield str(each.get("key")), ",".join(map(str, values))


def note_labels(labels: Mapping[str, str], around: Surroundings) -> None:
    """Note the labels of a pod's nodes, and the GPU that one of them names."""
    for key, value in labels.items():
        if key == _PRODUCT:
            note_product(_FLAG, value, around)
        else:
            why = "which nodes they are changes no time; --gpu says which GPUs they have"
            around.account.no_effect(f"nodeSelector.{key}", why)


def note_product(flag: str, product: str, around: Surroundings) -> None:
    """Note the GPU of a node's label `nvidia.com/gpu.product`, such as NVIDIA-A100-SXM4-80GB.

    flag: the key that says it.
    """
    if not product:
        return
    try:
        around.gpu = load_gpu(_BRAND.sub("", product)).name
    except ScenarioError:
        around.account.assumed(f"{flag} {product}", "no such GPU is known; --gpu says which")
    else:
        around.account.applied(f"{flag} {product}", "clients.gpu")


def overrule_gpu(command: Command, gpu: str) -> None:
    """Note that --gpu says the GPU; refused where the labels of the nodes say another."""
    command.around.overrule(("requestGPUType",), "--gpu says which")
    is_read = any(
        item.flag.startswith(f"{_FLAG} ") and item.verdict == "applied"
        for item in command.around.items
    )
    if is_read and not _is_of(gpu, command.gpu):
        why = f"that is {command.gpu}, and --gpu says {gpu}; leave one of them out"
        command.around.overrule((_FLAG,), why, verdict="refused")
    else:
        command.around.overrule((_FLAG,), "--gpu says which")


def _is_of(gpu: str, name: str) -> bool:
    """Whether a GPU is that of a name, or made from it; an unknown one is told of elsewhere."""
    try:
        return load_gpu(gpu).based_on == name
    except ScenarioError:
        return True
