"""Devices that engines run on, and a catalogue of GPUs: memory as the driver reports it, and memory bandwidth.

`tidegate plan --gpu NAME` and the operator, by the node label `nvidia.com/gpu.product`, look GPUs up here. Memory is
the total that `nvidia-smi` or `rocm-smi` prints, less than the marketing size; bandwidth is the data sheet's.
"""

import re
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum

from tidegate_core.errors import UnknownAccelerator

_MIB = 2**20
_GB_PER_SECOND = 10**9


class Device(StrEnum):
    """Where tensors live."""

    CPU = "cpu"
    CUDA = "cuda"


@dataclass(frozen=True)
class Accelerator:
    """One kind of GPU, or a slice of one."""

    name: str
    memory_bytes: int
    bandwidth: int  # bytes a second
    aliases: tuple[str, ...] = ()


def _gpu(name: str, memory_mib: int, gb_per_second: int, *aliases: str) -> Accelerator:
    return Accelerator(name, memory_mib * _MIB, gb_per_second * _GB_PER_SECOND, aliases)


# Aliases are what people write and what the product label says, vendor words and punctuation aside. Where ECC can be
# switched, the memory is that with ECC, which is less.
CATALOGUE = (
    _gpu("T4", 15_360, 320),
    _gpu("V100-16GB", 16_384, 900, "V100-SXM2-16GB", "V100-PCIE-16GB"),
    _gpu("V100-32GB", 32_768, 900, "V100-SXM2-32GB", "V100-SXM3-32GB", "V100-PCIE-32GB"),
    _gpu("RTX-3090", 24_576, 936),
    _gpu("RTX-4090", 24_564, 1_008),
    _gpu("RTX-5090", 32_607, 1_792),
    _gpu("RTX-A6000", 46_068, 768, "A6000"),
    _gpu("RTX-6000-Ada", 46_068, 960, "RTX-6000-Ada-Generation"),
    _gpu("L4", 23_034, 300),
    _gpu("L40", 46_068, 864),
    _gpu("L40S", 46_068, 864),
    _gpu("A10", 23_028, 600),
    _gpu("A10G", 23_028, 600),
    _gpu("A30", 24_576, 933),
    _gpu("A40", 46_068, 696),
    _gpu("A100-40GB", 40_960, 1_555, "A100-SXM4-40GB", "A100-PCIE-40GB"),
    _gpu("A100-80GB-PCIe", 81_920, 1_935, "A100-PCIE-80GB"),
    _gpu("A100-80GB", 81_920, 2_039, "A100-SXM4-80GB", "A100-SXM-80GB"),
    _gpu("H100-PCIe", 81_559, 2_000, "H100-80GB-PCIe"),
    _gpu("H100-80GB", 81_559, 3_350, "H100", "H100-80GB-HBM3", "H100-SXM5-80GB", "H100-SXM"),
    _gpu("H100-NVL", 95_830, 3_938),
    _gpu("GH200-96GB", 97_871, 4_000, "GH200", "GH200-480GB"),
    _gpu("H200", 143_771, 4_800, "H200-SXM", "H200-141GB"),
    _gpu("B200", 183_359, 8_000),
    _gpu("MI300X", 196_592, 5_300, "Instinct-MI300X", "Instinct-MI300X-OAM"),
)

_VENDOR_WORDS = frozenset({"nvidia", "tesla", "geforce", "amd"})
_MIG = re.compile(r"^(?P<product>.+?)-MIG-(?P<compute>\d)g\.(?P<gigabytes>\d+)gb(?:\.me|\+me)?$", re.IGNORECASE)
_MIG_PROFILE = re.compile(r"^\d+g\.(?P<gigabytes>\d+)gb", re.IGNORECASE)
_MIG_USABLE_SHARE = 0.95  # a 10gb slice reports 9.5 GiB, a 40gb slice 39.5 GiB


def find_accelerator(name: str) -> Accelerator:
    """By name, alias or `nvidia.com/gpu.product` value, case and punctuation aside.

    MIG slices ("NVIDIA-A100-SXM4-80GB-MIG-1g.10gb") get their share of memory and bandwidth. Raises UnknownAccelerator,
    also for products shared by time-slicing, whose memory no label tells.
    """
    if name.upper().endswith("-SHARED"):
        raise UnknownAccelerator(
            f"'{name}' is shared between pods by time-slicing, so its label does not say how much memory one pod has; "
            "give the memory instead (accelerator.memory, or --gpu-memory)"
        )
    if slice_ := _MIG.match(name):
        return _mig_slice(name, find_accelerator(slice_["product"]), int(slice_["gigabytes"]))
    found = _BY_KEY.get(_key(name))
    if found is None:
        raise UnknownAccelerator(f"'{name}' is not in the catalogue of GPUs; {_suggestion(name)}")
    return found


def mig_slice_bytes(profile: str) -> int:
    """Memory of a slice by its profile alone: "1g.10gb". Raises UnknownAccelerator."""
    match = _MIG_PROFILE.match(profile)
    if match is None:
        raise UnknownAccelerator(f"'{profile}' is no profile of a GPU slice, such as 1g.10gb")
    return int(int(match["gigabytes"]) * 2**30 * _MIG_USABLE_SHARE)


def _mig_slice(name: str, whole: Accelerator, gigabytes: int) -> Accelerator:
    memory_bytes = min(mig_slice_bytes(f"1g.{gigabytes}gb"), whole.memory_bytes)
    return Accelerator(name, memory_bytes, whole.bandwidth * memory_bytes // whole.memory_bytes)


def _key(name: str) -> str:
    words = re.findall(r"[a-z0-9]+", name.lower())
    return "".join(word for word in words if word not in _VENDOR_WORDS)


_BY_KEY = {_key(name): gpu for gpu in CATALOGUE for name in (gpu.name, *gpu.aliases)}


def _suggestion(name: str) -> str:
    key = _key(name)
    begins_alike = [gpu.name for gpu in CATALOGUE if key and _key(gpu.name).startswith(key)]
    close = [_BY_KEY[match].name for match in get_close_matches(key, _BY_KEY, n=3, cutoff=0.6)]
    if names := list(dict.fromkeys(begins_alike or close)):
        return f"did you mean {' or '.join(names)}? Otherwise give the memory (accelerator.memory, or --gpu-memory)"
    known = ", ".join(gpu.name for gpu in CATALOGUE)
    return f"give the memory instead (accelerator.memory, or --gpu-memory), or one of {known}"
