"""Bounds `multipleOf` in a schema before it is compiled. spec.py calls it.

The grammar library looks for a first number that fits digit by digit, through as many states as the divisor is large
(several of them: as their least common multiple is), and its limits do not hold it there: {"multipleOf": 99999999}
would keep a processor for minutes and gigabytes of memory.
"""

import json
import math
from decimal import Decimal

MAX_DIVISOR = 20_000  # a quarter of a second


def check_multiples(text: str) -> None:
    """Of the schema that `text` begins with. Raises ValueError; leaves what is no schema to the library to judge."""
    divisors: set[int] = set()

    def look(pairs: list[tuple[str, object]]) -> None:
        divisors.update(_digits(value) for name, value in pairs if name == "multipleOf" and _is_number(value))

    json.JSONDecoder(object_pairs_hook=look, parse_float=Decimal).raw_decode(text.lstrip())
    if math.lcm(*divisors) > MAX_DIVISOR:
        raise ValueError(
            f"the least common multiple of its 'multipleOf' is more than {MAX_DIVISOR} (places after the point count "
            "as digits), which takes too long to compile; leave some out"
        )


def _is_number(value: object) -> bool:
    return isinstance(value, int | Decimal) and Decimal(value).is_finite() and value != 0


def _digits(value: object) -> int:
    """0.25 is 25 hundredths."""
    assert isinstance(value, int | Decimal)
    exact = abs(Decimal(value))
    _, digits, exponent = exact.as_tuple()
    assert isinstance(exponent, int)
    if exponent >= 0:
        return int(exact) if exponent < len(str(MAX_DIVISOR)) else MAX_DIVISOR + 1
    return int("".join(map(str, digits))) or 1
