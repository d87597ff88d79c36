"""Parameters of models, here and in the models of an installed transformers, built without memory.

python -m conformance.parameters --python VENV/bin/python

They are the tensors of the checkpoints, by shape: parameters, and the bias by which routers choose.
vLLM loads the same tensors; layers of MTP and towers for images are left out.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from mist_sim.models import load_model
from mist_sim.models.model_loading import _catalog

MODELS = (
    "qwen3.5-27b",
    "qwen3.5-35b-a3b",
    "qwen3.5-397b-a17b",
    "qwen3.8-2.4t-a95b",
    "deepseek-v3",
    "deepseek-v3.2",
    "glm-5",
    "glm-5.2",
    "llama-4-scout-17b-16e-instruct",
    "llama-4-maverick-17b-128e-instruct",
    "gemma-4-26b-a4b",
    "gpt-oss-120b",
    "minimax-m2.7",
    "nemotron-h-56b-base-8k",
    "nemotron-3-nano-30b-a3b-bf16",
    "mimo-v2-flash",
    "qwen3-235b-a22b",
    "deepseek-v4-flash",
)

# what stands in a catalog entry beside the checkpoint's config, or says nothing about shapes
_LEFT_OUT = {"names", "source", "family", "base", "quantization_config", "torch_dtype", "dtype"}

_THERE = """
import json, logging, sys, warnings
warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)
import torch, transformers
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
found = {"version": transformers.__version__}
for name, config in json.load(sys.stdin).items():
    kind = config.pop("model_type")
    kind = kind if kind + "_text" not in CONFIG_MAPPING else kind + "_text"
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[kind](**config))
    biases = [each for key, each in model.named_buffers() if key.endswith("correction_bias")]
    found[name] = sum(each.numel() for each in [*model.parameters(), *biases])
print(json.dumps(found))
"""


def config_of(name: str) -> dict[str, Any]:
    """Return the config of a model's text part, as the catalog has it."""
    config = dict(_catalog()[name])
    text = {**config, **dict(config.pop("text_config", {}))}  # type: ignore[call-overload]
    text.pop("text_config", None)
    text.pop("vision_config", None)
    return {key: value for key, value in text.items() if key not in _LEFT_OUT}


def there(python: Path) -> dict[str, Any]:
    """Return the parameters by name in another Python's transformers, and its version."""
    asked = json.dumps({name: config_of(name) for name in MODELS})
    done = subprocess.run(
        [python, "-c", _THERE], input=asked, capture_output=True, text=True, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main(python: Annotated[Path, typer.Option(help="of an environment with transformers")]) -> None:
    """Print the parameters of each model here and there, as the rows of a table."""
    found = there(python)
    print(f"# parameters in transformers {found.pop('version')} (python -m conformance.parameters)")
    print("model,parameters")
    for name, number in found.items():
        print(f"{name},{number}")
        here = load_model(name).num_parameters
        if here != number:
            print(f"{name}: {here - number:+,} here", file=sys.stderr)


if __name__ == "__main__":
    typer.run(main)
