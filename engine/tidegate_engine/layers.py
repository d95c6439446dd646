"""What model files are built from: linear layers, norms and embeddings, made from a checkpoint for one device.

A model file asks the loader for parts by tensor name and stays ignorant of files, dtypes, packing and devices:

    device  checkpoint   activations  matrices               norms  embedding
    cpu     float32      fp32         fp32, order chosen     fp32   fp32
    cpu     16 bit       fp32         fp16, packing chosen   fp32   in the mapped file
    cuda    any          its dtype    its dtype              fp32   its dtype
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
import torch.nn.functional as F

from tidegate_core.storage import Precision
from tidegate_engine.linear import Linear, PlainLinear
from tidegate_engine.linear_choice import LinearChoice
from tidegate_engine.weights import Weights

Layer = TypeVar("Layer")


Embedding = Callable[[torch.Tensor], torch.Tensor]  # int64 token ids [tokens] -> activations [tokens, hidden_size]


class LayerLoader:
    """Parts of one checkpoint, in the form the device computes with."""

    def __init__(
        self,
        weights: Weights,
        *,
        device: torch.device,
        dtype: torch.dtype,
        precision: Precision,
        choice: LinearChoice,
    ) -> None:
        """`dtype` is the activations'; `precision` says whether matrices may be rounded to 16 bits."""
        self._weights = weights
        self._names = frozenset(weights.names())
        self._device = device
        self._dtype = dtype
        self._precision = precision
        self._choice = choice

    def linear(self, *names: str) -> Linear:
        """One layer from the matrices of several, their outputs side by side: "…q_proj", "…k_proj", …"""
        stored = [self._weights.tensor(f"{name}.weight", self._matrix_dtype) for name in names]
        biases = [self.vector(f"{name}.bias") for name in names if f"{name}.bias" in self._names]
        return self._linear(torch.cat(stored), torch.cat(biases) if biases else None)

    def vector(self, name: str) -> torch.Tensor:
        """A norm's weight or a bias."""
        return self._weights.tensor(name, torch.float32).to(self._device)

    def embedding_and_head(self, embedding: str, head: str) -> tuple[Embedding, Linear]:
        """The head is the embedding's matrix where the checkpoint has none of its own: then it is held once.

        Where the head is packed, embedding rows are therefore looked up in the mapped file.
        """
        has_own_head = f"{head}.weight" in self._names
        if self._is_rounded:
            return self._weights.lookup(f"{embedding}.weight"), self.linear(head if has_own_head else embedding)
        table = self._weights.tensor(f"{embedding}.weight", self._matrix_dtype).to(self._device, copy=True)
        dtype = self._dtype
        return (
            lambda token_ids: F.embedding(token_ids, table).to(dtype),
            self.linear(head) if has_own_head else self._linear(table, None),
        )

    def each(self, make: Callable[[int], Layer], num_layers: int) -> tuple[Layer, ...]:
        """Layers side by side on threads: decoding and packing hold no interpreter lock."""
        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            return tuple(pool.map(make, range(num_layers)))

    @property
    def _is_rounded(self) -> bool:
        return self._device.type == "cpu" and self._precision is Precision.BITS_16

    @property
    def _matrix_dtype(self) -> torch.dtype:
        return torch.float16 if self._is_rounded else self._dtype

    def _linear(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        if self._is_rounded:
            return self._choice.rounded(weight, bias)
        if self._device.type == "cpu":
            return self._choice.exact(weight, bias)
        return PlainLinear(weight.to(self._device), None if bias is None else bias.to(self._dtype))


def rms_norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """Over the last dimension, in fp32; `weight` may have leading dimensions of its own (one row per head)."""
    return (F.rms_norm(x.float(), (x.shape[-1],), None, epsilon) * weight).to(x.dtype)
