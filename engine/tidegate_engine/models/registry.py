"""Which class serves which architecture; what the checkpoint package calls SERVED."""

from collections.abc import Callable, Mapping

import torch

from tidegate_checkpoint.config_json import Json, why_not_served
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
    architecture = str(config["model_type"])
    if (reason := why_not_served(architecture)) is not None:
        raise UnsupportedCheckpoint(reason)
    return MODELS[architecture](config, loader, device)
