"""Tags of container images: which version of vLLM they hold, and whose defaults are nearest.

Source: the tags of vllm/vllm-openai on Docker Hub are vLLM's versions, v0.19.0.
"""

from __future__ import annotations

import re

from mist_sim.scenario.engines.engine_version import LATEST, OLDEST
from mist_sim.scenario.engines.version_names import spelt
from mist_sim.scenario.from_vllm.account import Account

_TAG = re.compile(r"v?(\d+)\.(\d+)(?:\.\w+)*(?:[-_].*)?")
_OFFICIAL = ("vllm/vllm-openai", "vllm/vllm-openai-rocm")
_OLDEST = (0, 8)  # the first version in which v1 is the default


def engine_of(image: str, account: Account) -> str | None:
    """Return the engine version that an image's tag names, noting assumptions.

    None if the tag names no version, or an unknown one.
    """
    name, _, tag = image.rpartition("/")[2].partition(":")
    place = image.partition("@")[0].removesuffix(f":{tag}" if tag else "")
    found = _TAG.fullmatch(tag)
    if not place.endswith(_OFFICIAL) or found is None:
        account.no_effect(f"image {name}:{tag}" if tag else f"image {name}", _no_version(tag))
        return None
    asked = (int(found[1]), int(found[2]))
    if asked < _OLDEST:
        account.refused(
            f"image {name}:{tag}",
            "versions before 0.8 have another engine, v0; instead: --engine vllm-0.10, whose "
            "scheduler is v1's",
        )
        return None
    nearest = min(max(asked, (0, OLDEST)), (0, LATEST))
    engine = spelt(re.split("[-_]", tag)[0] if nearest == asked else f"vllm-0.{nearest[1]}")
    if nearest == asked:
        account.applied(f"image {name}:{tag}", f"engine: {engine}")
    else:
        account.taken(
            f"image {name}:{tag}",
            f"engine: {engine}, of the known ones the nearest; --engine says another",
        )
    return engine


def _no_version(tag: str) -> str:
    what = f"the tag {tag} names" if tag else "without a tag it names"
    return f"{what} no version of vLLM; --engine says it"
