"""Common features of points of error bars, in words."""

from __future__ import annotations

from collections.abc import Sequence

from mist_sim.hardware.setting import Setting

ARCHITECTURES = {
    "ampere": "Ampere",
    "ada": "Ada",
    "hopper": "Hopper",
    "blackwell": "Blackwell",
    "blackwell-ultra": "Blackwell Ultra",
    "blackwell-rtx": "RTX Blackwell",
}
_PARALLEL = {"one": "one GPU", "NVLink": "NVLink", "spread": "spread experts"}


def words(setting: Setting, names: Sequence[str], *, with_source: bool = True) -> str:
    """Return some fields of a setting as a reader has them: "roofline, dense bf16, Hopper"."""
    source = f"{setting.source}, " if with_source else ""
    model = {"experts": "experts", "latent": "latent attention"}.get(setting.model, setting.model)
    kind = " ".join(
        word for name, word in (("model", model), ("weights", setting.weights)) if name in names
    )
    more = [ARCHITECTURES[setting.architecture]] if "architecture" in names else []
    more += [_PARALLEL[setting.parallel]] if "parallel" in names else []
    return source + ", ".join([kind or "all models", *more])
