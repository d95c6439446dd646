"""The catalogue knows GPUs by the names people and node labels use, and says what to do about others."""

import pytest

from tidegate_core.accelerator import CATALOGUE, find_accelerator
from tidegate_core.errors import UnknownAccelerator

GIB = 2**30


@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("Tesla-T4", "T4"),
        ("NVIDIA-L4", "L4"),
        ("NVIDIA-L40S", "L40S"),
        ("NVIDIA-A10G", "A10G"),
        ("NVIDIA-A100-SXM4-40GB", "A100-40GB"),
        ("NVIDIA-A100-SXM4-80GB", "A100-80GB"),
        ("NVIDIA-A100-PCIE-40GB", "A100-40GB"),
        ("NVIDIA-H100-80GB-HBM3", "H100-80GB"),
        ("NVIDIA-H100-PCIe", "H100-PCIe"),
        ("NVIDIA-H200", "H200"),
        ("NVIDIA-B200", "B200"),
        ("NVIDIA-GeForce-RTX-4090", "RTX-4090"),
        ("NVIDIA-RTX-6000-Ada-Generation", "RTX-6000-Ada"),
        ("Tesla-V100-SXM2-16GB", "V100-16GB"),
        ("AMD-Instinct-MI300X-OAM", "MI300X"),
        ("rtx 4090", "RTX-4090"),
        ("a100 80gb", "A100-80GB"),
        ("h100", "H100-80GB"),
    ],
)
def test_a_product_label_or_a_casual_name_finds_its_gpu(label: str, name: str) -> None:
    assert find_accelerator(label).name == name


def test_memory_is_what_the_driver_reports_not_what_the_name_says() -> None:
    assert find_accelerator("H100").memory_bytes == 81_559 * 2**20
    assert find_accelerator("L4").memory_bytes < 24 * GIB


def test_a_mig_slice_has_its_share_of_memory_and_bandwidth() -> None:
    whole = find_accelerator("NVIDIA-A100-SXM4-80GB")
    slice_ = find_accelerator("NVIDIA-A100-SXM4-80GB-MIG-1g.10gb")
    assert slice_.memory_bytes == int(9.5 * GIB)
    assert slice_.bandwidth == pytest.approx(whole.bandwidth * slice_.memory_bytes / whole.memory_bytes)
    assert find_accelerator("NVIDIA-A100-SXM4-80GB-MIG-7g.80gb").memory_bytes <= whole.memory_bytes


def test_a_time_sliced_gpu_is_refused_since_no_label_tells_its_memory() -> None:
    with pytest.raises(UnknownAccelerator, match=r"time-slicing.*accelerator\.memory"):
        find_accelerator("NVIDIA-A100-SXM4-80GB-SHARED")


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("A100", "did you mean A100-40GB or A100-80GB"),
        ("V100", "did you mean V100-16GB or V100-32GB"),
        ("H1000", "did you mean H100"),
        ("RTX-4099", "did you mean RTX-4090"),
        ("abacus", "give the memory instead"),
        ("", "give the memory instead"),
        ("nvidia", "give the memory instead"),
    ],
)
def test_an_unknown_or_ambiguous_name_gets_a_suggestion(name: str, suggestion: str) -> None:
    with pytest.raises(UnknownAccelerator, match=suggestion):
        find_accelerator(name)


def test_no_two_gpus_share_a_name() -> None:
    names = [name.lower() for gpu in CATALOGUE for name in (gpu.name, *gpu.aliases)]
    assert len(names) == len(set(names))
    assert all(find_accelerator(name).name == gpu.name for gpu in CATALOGUE for name in (gpu.name, *gpu.aliases))


def test_memory_and_bandwidth_are_plausible() -> None:
    for gpu in CATALOGUE:
        assert 15 * GIB <= gpu.memory_bytes <= 200 * GIB, gpu
        assert 300e9 <= gpu.bandwidth <= 8000e9, gpu
