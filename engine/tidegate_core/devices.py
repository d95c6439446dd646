"""Over how many devices of one node a replica may be spread, and what a device of each number is like.

`sizing.plan_replica` takes the fewest that fit. A split divides attention heads, so only numbers that divide them
count; fewer KV heads than devices are replicated (kv.py), and so is an MLA latent.
"""

from dataclasses import dataclass, replace
from typing import Self

from tidegate_core.accelerator import Device
from tidegate_core.fit import DEVICE_COUNTS, Target


@dataclass(frozen=True)
class Spread:
    """What there is to choose from."""

    targets: tuple[Target, ...]  # one for each number of devices that can be joined, fewest first
    asked: Target | None = None  # somebody has chosen already
    most: int | None = None  # devices that one node has; None: no node is known

    @classmethod
    def of(cls, target: Target, num_devices: int | None = None) -> Self:
        """Over devices of one kind, wherever there are some. A CPU pod is one device."""
        counts = (1,) if target.device == Device.CPU else DEVICE_COUNTS
        asked = None if num_devices is None else replace(target, tensor_parallel=num_devices)
        return cls(tuple(replace(target, tensor_parallel=count) for count in counts), asked)

    @property
    def there(self) -> tuple[Target, ...]:
        """Those for which a node has enough devices."""
        return tuple(target for target in self.targets if self.has_room_for(target))

    def has_room_for(self, target: Target) -> bool:
        """Whether some node has so many devices, as far as nodes are known."""
        return self.most is None or target.tensor_parallel <= self.most

    def may_wait_for(self, target: Target) -> bool:
        """Whether a node with so many may be on its way: somebody says so, and devices of the kind can be joined."""
        return target == self.asked and target.tensor_parallel <= self.targets[-1].tensor_parallel
