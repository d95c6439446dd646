"""The operator's price list: what an hour of a device, a core or a node costs, by name. Pure; money is Decimal.

Names are those that nodes carry: an accelerator's product, a node's instance type, or the resource itself. cost.py
multiplies, price_file.py reads the file.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

import yaml

from tidegate_operator.errors import BadPrices

MOST = 10**9  # in whatever currency


@dataclass(frozen=True)
class PriceList:
    """Price of an hour by accelerator product, instance type or resource name."""

    per_hour: Mapping[str, Decimal]


def read_prices(text: str) -> PriceList:
    """A YAML mapping of names to decimal strings. Raises BadPrices naming the entry."""
    try:
        found = yaml.safe_load(text) or {}
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: a day that no month has
        raise BadPrices(f"not YAML: {error}") from error
    if not isinstance(found, dict):
        raise BadPrices("expected a mapping of names to prices of an hour")
    return PriceList({str(name): _price(str(name), value) for name, value in found.items()})


def _price(name: str, value: object) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise BadPrices(f"{name}: expected a decimal number, found a {type(value).__name__}")
    try:
        price = Decimal(str(value))
    except (InvalidOperation, ValueError) as error:
        raise BadPrices(f"{name}: {str(value)[:80]!r} is not a decimal number") from error
    if not price.is_finite() or not 0 <= price <= MOST:
        raise BadPrices(f"{name}: a price must be a number from 0 to {MOST:,}, not {str(value)[:80]!r}")
    return price
