"""Whose kernels an engine's steps take: the scenario's, or those that its version chooses."""

from __future__ import annotations

from mist_sim.clients import EngineConfig
from mist_sim.errors import ScenarioError
from mist_sim.hardware import Cluster
from mist_sim.hardware.kernel_choice import KernelChoice, deployment_of
from mist_sim.hardware.predictors import PipelinePredictor, RooflinePredictor
from mist_sim.hardware.setting import Borrowed, Setting
from mist_sim.models import ModelSpec
from mist_sim.models.attention_backends import check_attention_backend
from mist_sim.models.expert_padding import is_padded
from mist_sim.models.moe_backends import check_moe_backend, expert_format
from mist_sim.scenario.engines.engine_version import ATTENTION, EXPERTS
from mist_sim.scenario.engines.version_names import version_of

_CHECKS = {"moe_backend": check_moe_backend, "attention_backend": check_attention_backend}


def kernel_choice(config: EngineConfig, model: ModelSpec, cluster: Cluster) -> KernelChoice:
    """Return the back ends of an engine. Raises ScenarioError for one that does not suit it."""
    gpu, version = cluster.gpu, version_of(config.engine)
    for name, check in _CHECKS.items():
        asked = getattr(config, name)
        if asked is not None:
            try:
                check(asked, model, gpu.name, gpu.architecture)
            except ValueError as error:
                raise ScenarioError(str(error)) from None
    stored = expert_format(model)
    experts = (
        version.default(f"{EXPERTS}{stored}").of(deployment_of(model, cluster)) if stored else None
    )
    attention = version.default(ATTENTION).of(model, gpu.architecture)
    return KernelChoice(config.moe_backend or experts, config.attention_backend or attention)


def times_kernels(config: EngineConfig, model: ModelSpec, predictor: PipelinePredictor) -> bool:
    """Return whether a predictor times kernels by back end.

    Raises ScenarioError for a named back end where it does not. The kernel of MXFP4 experts counts
    all the same: it pads weights in memory.
    """
    if isinstance(predictor.ranks[0], RooflinePredictor):
        return True
    asked = [name for name in _CHECKS if getattr(config, name) is not None]
    if is_padded(model):
        asked = [name for name in asked if name != "moe_backend"]
    if asked:
        raise ScenarioError(
            f"{asked[0]} must be null with this predictor, whose times are those of the kernels "
            f"that were measured, got {getattr(config, asked[0])}; predictor: {{type: roofline}} "
            "has kernels by back end"
        )
    return False


def unlike_timed(
    config: EngineConfig,
    choice: KernelChoice,
    setting: Setting | Borrowed | None,
    model: ModelSpec,
    cluster: Cluster,
) -> Setting | Borrowed | None:
    """Return a setting, or why nothing is known of it where no such kernels were timed.

    Without figures of a back end those of the usual one hold.
    """
    if not isinstance(setting, Setting):
        return setting
    if setting.source == "roofline":
        why = choice.untimed(model, cluster)
    else:
        why = f"experts by {config.moe_backend}" if config.moe_backend else ""
    return Borrowed(f"not known: {why}") if why else setting
