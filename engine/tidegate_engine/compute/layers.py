"""What model files are built from: linear layers, norms and embeddings, made from a checkpoint for one device.

A model file asks the loader for parts by tensor name and stays ignorant of files, dtypes, packing and devices. Where
several devices share the model each gets its share of every matrix (parallel/layers.py):

    device  checkpoint   activations  matrices               norms  embedding
    cpu     float32      fp32         fp32, order chosen     fp32   fp32
    cpu     16 bit       fp32         fp16, packed           fp32   in the mapped file
    cpu     any, int8    fp32         int8, packed           fp32   in the mapped file
    cuda    any          its dtype    its dtype              fp32   its dtype
"""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Self, TypeVar

import torch
import torch.nn.functional as F

from tidegate_core.storage import Precision, Quantization, Storage
from tidegate_engine.compute.linear import Linear, PlainLinear
from tidegate_engine.compute.linear_choice import LinearChoice
from tidegate_engine.compute.matrix import Matrix, StoredMatrix, Workshop, kept_whole
from tidegate_engine.compute.weights import Weights
from tidegate_engine.cpu_kernels import catalog
from tidegate_engine.parallel.group import DeviceGroup
from tidegate_engine.parallel.layers import GatheredLinear, SplitEmbedding, SummedLinear
from tidegate_engine.parallel.share import WHOLE

Layer = TypeVar("Layer")
STRETCH_ROWS = 1024  # products with more rows are hardly faster, a row

Embedding = Callable[[torch.Tensor], torch.Tensor]  # int64 token ids [tokens] -> activations [tokens, hidden_size]


class LayerLoader:
    """Parts of one checkpoint, in the form the device computes with. Closed when the model is built."""

    def __init__(
        self,
        weights: Weights,
        *,
        device: torch.device,
        dtype: torch.dtype,
        storage: Storage,
        choice: LinearChoice,
        group: DeviceGroup | None = None,
    ) -> None:
        """`dtype` is the activations'; `storage` says what matrices may be rounded to; `group`: several devices."""
        self.share = group.share if group else WHOLE
        self._group = group
        self._weights = weights
        self._names = frozenset(weights.names())
        self._device = device
        self._dtype = dtype
        self._choice = choice
        self._make_packed: Callable[[Matrix, torch.Tensor | None], Linear] | None = None
        if device.type == "cpu" and storage.quantization is Quantization.INT8:
            self._make_packed = choice.quantised
        elif device.type == "cpu" and storage.precision is Precision.BITS_16:
            self._make_packed = choice.rounded
        self._workshop = Workshop(torch.float32 if self._make_packed else dtype)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._workshop.close()

    def linear(self, *names: str) -> Linear:
        """One layer from the matrices of several, their outputs side by side: "…gate_proj", "…up_proj"."""
        return self._below({name: self.share.part(self._num_outputs(name)) for name in names})

    def heads(self, head_dim: int, *names: str) -> Linear:
        """The same for outputs that are attention heads, which are not cut: "…q_proj", "…k_proj", "…v_proj"."""
        heads = {name: self.share.heads(self._num_outputs(name) // head_dim) for name in names}
        return self._below({name: slice(of.start * head_dim, of.stop * head_dim) for name, of in heads.items()})

    def summed(self, name: str) -> Linear:
        """A layer whose inputs are the outputs of one of the above: each device has some, the bias is added once."""
        if self._group is None:
            return self.linear(name)
        num_outputs, num_inputs = self._weights.shape(f"{name}.weight")
        matrix = self._matrix({name: slice(0, num_outputs)}, self.share.part(num_inputs))
        has_bias = f"{name}.bias" in self._names and self.share.rank == 0
        bias = self.vector(f"{name}.bias") if has_bias else None
        return SummedLinear(self._made(matrix, bias), self._group)

    def vector(self, name: str) -> torch.Tensor:
        """A norm's weight or a bias."""
        return self._weights.tensor(name, torch.float32).to(self._device)

    def embedding_and_head(self, embedding: str, head: str) -> tuple[Embedding, Linear]:
        """The head is the embedding's matrix where the checkpoint has none of its own: then it is held once.

        Where the head is packed, embedding rows are therefore looked up in the mapped file.
        """
        has_own_head = f"{head}.weight" in self._names
        if self._make_packed:
            lookup = self._weights.lookup(f"{embedding}.weight")
            return lookup, self._gathered(self.linear(head if has_own_head else embedding), embedding)
        table = self._kept(self._matrix({embedding: self.share.part(self._num_outputs(embedding))}))
        layer = self.linear(head) if has_own_head else self._plain(table, None)
        return self._looked_up(table, embedding), self._gathered(layer, embedding)

    def each(self, make: Callable[[int], Layer], num_layers: int) -> tuple[Layer, ...]:
        """Layers side by side: decoding and packing hold no interpreter lock."""
        with ThreadPoolExecutor(self._workshop.num_threads, thread_name_prefix="layers") as pool:
            return tuple(pool.map(make, range(num_layers)))

    def _num_outputs(self, name: str) -> int:
        return self._weights.shape(f"{name}.weight")[0]

    def _below(self, rows: Mapping[str, slice]) -> Linear:
        """These rows of each matrix, one below the other, and of their biases."""
        biases = [self.vector(f"{name}.bias")[of] for name, of in rows.items() if f"{name}.bias" in self._names]
        return self._made(self._matrix(rows), torch.cat(biases) if biases else None)

    def _made(self, matrix: Matrix, bias: torch.Tensor | None) -> Linear:
        return self._make_packed(matrix, bias) if self._make_packed else self._plain(self._kept(matrix), bias)

    def _matrix(self, rows: Mapping[str, slice], columns: slice | None = None) -> Matrix:
        named = {f"{name}.weight": of for name, of in rows.items()}
        return StoredMatrix(self._weights, named, self._workshop, columns)

    def _looked_up(self, table: torch.Tensor, embedding: str) -> Embedding:
        dtype = self._dtype
        if self._group is None:
            return lambda token_ids: F.embedding(token_ids, table).to(dtype)
        return SplitEmbedding(table, self.share.part(self._num_outputs(embedding)).start, dtype, self._group)

    def _gathered(self, head: Linear, embedding: str) -> Linear:
        return GatheredLinear(head, self._group, self._num_outputs(embedding)) if self._group else head

    def _kept(self, matrix: Matrix) -> torch.Tensor:
        return kept_whole(matrix, self._dtype, self._device)

    def _plain(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        if self._device.type == "cpu":
            return self._choice.exact(weight, bias)
        return PlainLinear(weight, None if bias is None else bias.to(self._dtype))


def rms_norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """Over the last dimension, in fp32; `weight` may have leading dimensions of its own (one row per head)."""
    if x.is_cuda:  # one kernel there; on CPU it takes the plain steps, only slower
        return (F.rms_norm(x.float(), (x.shape[-1],), None, epsilon) * weight).to(x.dtype)
    kernel = catalog.rms_norm()
    if kernel is not None and x.dtype is torch.float32 and x.stride(-1) == 1:
        return kernel(x, weight, epsilon)
    return plain_rms_norm(x, weight, epsilon)


def plain_rms_norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """The same in steps that exist everywhere."""
    wide = x.float()
    scale = wide.square().mean(-1, keepdim=True).add_(epsilon).rsqrt_()
    return (wide * scale).mul_(weight).to(x.dtype)


def in_stretches(feed_forward: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """The widest rows of a step, between gate, up and down, exist for STRETCH_ROWS tokens at a time.

    Twice a token's width and once more, since the product with down copies what it reads into one piece.
    """
    if x.shape[0] <= STRETCH_ROWS:  # len() of a tensor takes longer
        return feed_forward(x)
    result = torch.empty_like(x)
    for start in range(0, len(x), STRETCH_ROWS):
        stretch = slice(start, start + STRETCH_ROWS)
        result[stretch] = feed_forward(x[stretch])
    return result


def gated_silu(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up of rows that hold gate and up side by side, computed in place of gate.

    They are the widest rows of a step: a copy of them would be what its peak is made of.
    """
    kernel = None if gate_up.is_cuda or gate_up.dtype is not torch.float32 else catalog.gated_silu()
    return plain_gated_silu(gate_up) if kernel is None else kernel(gate_up)


def gated_gelu(gate_up: torch.Tensor) -> torch.Tensor:
    """The same with the approximate gelu."""
    kernel = None if gate_up.is_cuda or gate_up.dtype is not torch.float32 else catalog.gated_gelu()
    return plain_gated_gelu(gate_up) if kernel is None else kernel(gate_up)


def plain_gated_silu(gate_up: torch.Tensor) -> torch.Tensor:
    """In steps that exist everywhere, as below."""
    gate, up = gate_up.chunk(2, -1)
    return F.silu(gate, inplace=True).mul_(up)


def plain_gated_gelu(gate_up: torch.Tensor) -> torch.Tensor:
    gate, up = gate_up.chunk(2, -1)
    return torch.ops.aten.gelu_(gate, approximate="tanh").mul_(up)  # type: ignore[no-any-return]  # torch types no ops
