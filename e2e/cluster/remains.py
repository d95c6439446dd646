"""What a dead cluster leaves on the machine, removed: its folder.

Called by the supervisor at the end, and by whoever claims a slot whose supervisor was killed.
"""

import shutil
from pathlib import Path


def remove_remains(folder: Path) -> None:
    """Nothing of the cluster may run any more."""
    if folder.exists():
        shutil.rmtree(folder)
