"""What devices tell each other while they compute: sums of what each has a part of, and logits for the first.

torch.distributed's collectives: gloo between processes on CPU, NCCL between GPUs. Every device calls the same ones in
the same order, or all wait for ever: what must be called when is in leader.py and follower.py.
"""

import os
from collections.abc import MutableMapping
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F

from tidegate_core.accelerator import Device
from tidegate_engine.parallel.share import Share

# Far longer than any step: whoever watches the processes ends them sooner (crew.py, patience.py).
TIMEOUT = timedelta(minutes=30)
BACKENDS = {Device.CPU: "gloo", Device.CUDA: "nccl"}


class DeviceGroup:
    """One device's way to the others."""

    def __init__(self, share: Share) -> None:
        self.share = share

    def summed(self, part: torch.Tensor) -> torch.Tensor:
        """The sum over all devices, in place of this one's part."""
        whole = part.contiguous()
        dist.all_reduce(whole)
        return whole

    def told(self, rows: torch.Tensor) -> torch.Tensor:
        """The first device's rows, in place of this one's."""
        whole = rows.contiguous()
        dist.broadcast(whole, src=0)
        return whole

    def gathered(self, part: torch.Tensor, num_columns: int) -> torch.Tensor:
        """On the first device the columns of all, side by side; elsewhere the part. Parts are Share.part's."""
        most = -(-num_columns // self.share.size)
        own = F.pad(part, (0, most - part.shape[1])).contiguous()
        if self.share.rank > 0:
            dist.gather(own, dst=0)
            return part
        parts = [torch.empty_like(own) for _ in range(self.share.size)]
        dist.gather(own, parts)
        shares = (Share(rank, self.share.size).part(num_columns) for rank in range(self.share.size))
        return torch.cat([each[:, : own.stop - own.start] for each, own in zip(parts, shares, strict=True)], 1)


def join(share: Share, device: Device, rendezvous: Path) -> DeviceGroup:
    """Waits for the others, who meet at the same path; once a process, later it finds itself among them."""
    if not dist.is_initialized():
        stay_on_this_machine(os.environ)
        store = dist.FileStore(str(rendezvous), share.size)  # type: ignore[attr-defined]  # torch names it in no list
        dist.init_process_group(BACKENDS[device], store=store, rank=share.rank, world_size=share.size, timeout=TIMEOUT)
    return DeviceGroup(share)


def stay_on_this_machine(environment: MutableMapping[str, str]) -> None:
    """Devices of one node need no other network than its own, and nobody else is to reach their ports."""
    environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
    environment.setdefault("NCCL_SOCKET_IFNAME", "lo")


def leave() -> None:
    """Undoes join()."""
    if dist.is_initialized():
        dist.destroy_process_group()
