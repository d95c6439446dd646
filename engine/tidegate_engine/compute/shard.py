"""What one device computes of a step: its share of the model with its share of the KV cache.

Of several devices each has a process with one of these; of one, the runner calls it directly.
"""

from collections.abc import Sequence
from typing import Self

import torch

from tidegate_core.launch import AttentionKind, EngineLaunch
from tidegate_engine.attention.base import Attention, choose_attention
from tidegate_engine.compute.kv_cache import KvCache, PagedStep
from tidegate_engine.compute.step_tensors import StepTensors, step_tensors
from tidegate_engine.compute.torch_loading import LoadedModel
from tidegate_engine.runner import ScheduledRow


class Shard:
    """Hidden states and logits; a model on one device is whole."""

    followers_bytes = 0

    def __init__(self, loaded: LoadedModel, cache: KvCache, attention: Attention) -> None:
        self.cache = cache
        self.device = loaded.device
        self.hidden_size = loaded.shape.hidden_size
        self.dtype = loaded.dtype
        self._model = loaded.model
        self._places = loaded.kv_groups.places(loaded.layer_windows)
        self._attention = attention

    @classmethod
    def of(cls, launch: EngineLaunch, loaded: LoadedModel, num_blocks: int) -> Self:
        """Allocates the KV pool. Raises MemoryError."""
        cache = loaded.kv_layout.allocate(num_blocks, loaded.device)
        kind = choose_attention(launch.attention, launch.device)
        return cls(loaded, cache, attention_for(kind, loaded.device, is_deterministic=launch.deterministic))

    def hidden(self, rows: Sequence[ScheduledRow]) -> torch.Tensor:
        """Of all tokens of the rows, [tokens, hidden_size]."""
        return self.hidden_of(step_tensors(rows, self.cache.block_size, self.device))

    def hidden_of(self, tensors: StepTensors) -> torch.Tensor:
        """The same of a step that is on the device already."""
        step = PagedStep(self.cache, self._places, tensors.attention, self._attention)
        return self._model.hidden(tensors.token_ids, tensors.positions, step)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """fp32 [rows, vocab_size]; of several devices only the first has them all."""
        return self._model.logits(hidden)


def attention_for(kind: AttentionKind, device: torch.device, *, is_deterministic: bool) -> Attention:
    """The implementation; Triton is imported only where it is used, since it needs a GPU or its interpreter."""
    if kind is AttentionKind.TRITON:
        from tidegate_engine.attention.triton import TritonAttention

        return TritonAttention(torch.cuda.get_device_properties(device).multi_processor_count)
    from tidegate_engine.attention import decodes, deterministic, reference

    if is_deterministic:
        return deterministic.attend
    return reference.attend if kind is AttentionKind.REFERENCE else decodes.attend
