"""Which class serves which architecture; the only list of what the engine can run."""

from collections.abc import Callable, Mapping

import torch

from tidegate_checkpoint.config_json import Json
from tidegate_checkpoint.errors import UnsupportedCheckpoint
from tidegate_engine.compute.layers import LayerLoader
from tidegate_engine.models.base import Model
from tidegate_engine.models.gemma3 import Gemma3
from tidegate_engine.models.llama import Llama

MODELS: Mapping[str, Callable[[Json, LayerLoader, torch.device], Model]] = {
    "llama": Llama,
    "mistral": Llama,
    "qwen2": Llama,
    "qwen3": Llama,
    "gemma3_text": Gemma3,
}


def load_model(config: Json, loader: LayerLoader, device: torch.device) -> Model:
    """Raises UnsupportedCheckpoint, also for architectures that can be sized but not run."""
    make = MODELS.get(str(config["model_type"]))
    if make is None:
        raise UnsupportedCheckpoint(
            f"model_type '{config['model_type']}' can be sized but not served; served are {', '.join(MODELS)}"
        )
    return make(config, loader, device)
