"""How many devices of one node a replica takes: the fewest on which it fits, whatever the engine can do today.

`sizing.plan_replica` and `remedies` ask here. A split divides attention heads, so only numbers that divide them count;
fewer KV heads than devices are replicated (kv.py), and so is an MLA latent.
"""

from tidegate_core.estimate import Case, estimate
from tidegate_core.fit import MOST_DEVICES_SERVED

DEVICE_COUNTS = (1, 2, 4, 8)  # nodes have no more, and collectives are made for powers of two


def fewest_devices(case: Case) -> int | None:
    """None where not even the most are enough."""
    return next((num_devices for num_devices in DEVICE_COUNTS if estimate(case.on(num_devices)).fits), None)


def is_served(num_devices: int) -> bool:
    """Whether this version's engine can spread a replica over so many."""
    return num_devices <= MOST_DEVICES_SERVED
