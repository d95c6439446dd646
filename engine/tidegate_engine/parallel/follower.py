"""What the process of a device but the first does: obeys one command after the other. See commands.py and leader.py."""

import torch

from tidegate_core.accelerator import Device
from tidegate_engine.compute.shard import Shard
from tidegate_engine.compute.torch_loading import LoadedModel, load
from tidegate_engine.parallel.commands import Allocate, Allocated, Load, Loaded, Logits, Step
from tidegate_engine.parallel.group import DeviceGroup, join
from tidegate_engine.parallel.share import Share
from tidegate_engine.process import garbage
from tidegate_engine.process.process_memory import private_bytes


class Follower:
    """Nothing comes back from what all compute together: the collectives inside are all there is to say."""

    def __init__(self, share: Share) -> None:
        self._share = share
        self._load: Load | None = None
        self._group: DeviceGroup | None = None
        self._loaded: LoadedModel | None = None
        self._shard: Shard | None = None

    def obey(self, command: object) -> Loaded | Allocated | None:
        """The report, where there is one."""
        match command:
            case Step():
                self._computes(command)
            case Logits():
                self._gives_logits(command)
            case Load():
                return self._loads(command)
            case Allocate():
                return self._allocates(command)
            case _:
                raise TypeError(f"no command: {command!r}")
        return None

    def _loads(self, command: Load) -> Loaded:
        """A model that was there before makes room first."""
        self._shard = self._loaded = None
        if command.launch.device is Device.CUDA:
            torch.cuda.set_device(self._share.rank)
        self._load = command
        self._group = join(self._share, command.launch.device, command.rendezvous)
        loaded = self._loaded = load(command.launch, command.path, command.memory_bytes, self._group)
        return Loaded(loaded.target.memory_bytes, loaded.used_bytes)

    def _allocates(self, command: Allocate) -> Allocated:
        assert self._load is not None
        assert self._loaded is not None
        self._shard = Shard.of(self._load.launch, self._loaded, command.num_blocks)
        garbage.settle()
        return Allocated(private_bytes() + self._shard.cache.pending_bytes)

    @torch.inference_mode()
    def _computes(self, command: Step) -> None:
        assert self._shard is not None
        self._shard.hidden_of(command.on(self._shard.device))

    @torch.inference_mode()
    def _gives_logits(self, command: Logits) -> None:
        assert self._shard is not None
        assert self._group is not None
        shape = (command.num_rows, self._shard.hidden_size)
        rows = torch.empty(shape, dtype=self._shard.dtype, device=self._shard.device)
        self._shard.logits(self._group.told(rows))
