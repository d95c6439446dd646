"""Kubernetes quantities as integers, in both directions: "80Gi" <-> 85,899,345,920.

Format: https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/ . Whole bytes only; "1500m" of
memory is legal in Kubernetes and means 2 bytes (rounded up), as the API server's Value() does.
"""

import re
from decimal import Decimal
from math import ceil

from tidegate_core.errors import BadQuantity

_UNIT_BYTES = {
    "": Decimal(1),
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("0.001"),
    "k": Decimal(10**3),
    "M": Decimal(10**6),
    "G": Decimal(10**9),
    "T": Decimal(10**12),
    "P": Decimal(10**15),
    "E": Decimal(10**18),
    "Ki": Decimal(2**10),
    "Mi": Decimal(2**20),
    "Gi": Decimal(2**30),
    "Ti": Decimal(2**40),
    "Pi": Decimal(2**50),
    "Ei": Decimal(2**60),
}
PATTERN = r"^\+?([0-9]+(?:\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,2}|[KMGTPE]i|[numkMGTPE])?$"  # also the CRD's
_QUANTITY = re.compile(PATTERN)


def parse_quantity(text: str) -> Decimal:
    """The exact value of a quantity: "1500m" -> 1.5, "2Ki" -> 2048. Raises BadQuantity."""
    match = _QUANTITY.match(text.strip())
    if match is None:
        raise BadQuantity(f"'{text}' is not a quantity; write a number with a unit, such as 80Gi, 500Mi or 1.5")
    number, suffix = match[1], match[2] or ""
    if suffix in _UNIT_BYTES:
        return Decimal(number) * _UNIT_BYTES[suffix]
    return Decimal(number + suffix.lower())


def parse_bytes(text: str) -> int:
    """Bytes of a quantity, a fraction rounded up. Raises BadQuantity."""
    if _QUANTITY.match(text.strip()) is None:
        raise BadQuantity(f"'{text}' is not a size in bytes; write a number with a unit, such as 80Gi or 500Mi")
    return ceil(parse_quantity(text))


def format_bytes(num_bytes: int) -> str:
    """For people: 1,207,959,552 -> "1.12 GiB". Not meant to be parsed again; use format_quantity for manifests."""
    value = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.4g} {unit}"
        value /= 1024
    return f"{value:.4g} TiB"


def format_quantity(num_bytes: int) -> str:
    """For manifests: the canonical form, i.e. the largest binary unit that divides exactly, so that it round-trips."""
    for unit in ("Ei", "Pi", "Ti", "Gi", "Mi", "Ki"):
        scale = int(_UNIT_BYTES[unit])
        if num_bytes and num_bytes % scale == 0:
            return f"{num_bytes // scale}{unit}"
    return str(num_bytes)
