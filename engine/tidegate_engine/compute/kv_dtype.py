"""What a model's keys and values are kept in, as torch says it, and whether the device can read that.

Asked by the torch runner before anything is loaded, and when the KV pool is laid out.
"""

import torch

from tidegate_core.accelerator import Device
from tidegate_core.errors import BadLaunch
from tidegate_core.storage import KvDtype, Precision

FP8_CAPABILITY = (8, 9)  # Ada and Hopper: the first whose Triton kernels read e4m3
_8_BIT = {KvDtype.INT8: torch.int8, KvDtype.FP8: torch.float8_e4m3fn}


def check_kv_dtype(kv_dtype: KvDtype, device: Device, capability: tuple[int, int] | None) -> None:
    """`capability` of the GPU, None without one. Raises BadLaunch."""
    if kv_dtype is not KvDtype.FP8:
        return
    if device is Device.CPU:
        raise BadLaunch("--kv-dtype fp8 needs --device cuda; --kv-dtype int8 is as small and works on CPU too")
    if capability is not None and capability < FP8_CAPABILITY:
        raise BadLaunch(
            f"--kv-dtype fp8 needs a GPU of compute capability 8.9 (Ada, Hopper) or newer, this one has "
            f"{capability[0]}.{capability[1]}; --kv-dtype int8 is as small and works on it"
        )


def kv_torch_dtype(kv_dtype: KvDtype, device: Device, precision: Precision, model_dtype: torch.dtype) -> torch.dtype:
    """On CPU 16 bits mean fp16, which keeps more digits than bf16; on CUDA the cache has the model's dtype."""
    if kv_dtype is not KvDtype.AUTO:
        return _8_BIT[kv_dtype]
    if device is Device.CUDA:
        return model_dtype
    return torch.float32 if precision is Precision.BITS_32 else torch.float16
