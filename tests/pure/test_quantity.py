"""Quantities mean what Kubernetes means by them, in both directions."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate_core.errors import BadQuantity
from tidegate_core.quantity import format_bytes, format_quantity, parse_bytes, parse_quantity


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("80Gi", 85_899_345_920),
        ("500Mi", 524_288_000),
        ("1.5Gi", 1_610_612_736),
        (".5Ki", 512),
        ("5.", 5),
        ("+3k", 3000),
        ("2E", 2 * 10**18),
        ("2E3", 2000),
        ("2e3", 2000),
        ("25e-1", Decimal("2.5")),
        ("1Ei", 2**60),
        ("1500m", Decimal("1.5")),
        ("250u", Decimal("0.00025")),
        (" 4Gi ", 2**32),
    ],
)
def test_a_quantity_has_the_value_kubernetes_gives_it(text: str, value: int | Decimal) -> None:
    assert parse_quantity(text) == value


def test_fractions_of_a_byte_are_rounded_up() -> None:
    assert parse_bytes("1500m") == 2
    assert parse_bytes("1.0000001Gi") == 2**30 + 108


@pytest.mark.parametrize(
    "text", ["", "Gi", "-1Gi", "1GB", "1 Gi", "1gi", "1Ki2", "0x10", "1e100", "nan", "٣Gi", "1..5"]
)
def test_what_is_not_a_quantity_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(BadQuantity, match="such as 80Gi"):
        parse_quantity(text)


@given(st.integers(0, 2**70))
def test_formatting_and_parsing_bytes_is_the_identity(num_bytes: int) -> None:
    assert parse_bytes(format_quantity(num_bytes)) == num_bytes


@given(st.integers(1, 2**20), st.sampled_from(["Ki", "Mi", "Gi", "Ti"]))
def test_the_canonical_form_uses_the_largest_unit_that_divides(number: int, unit: str) -> None:
    num_bytes = parse_bytes(f"{number}{unit}")
    canonical = format_quantity(num_bytes)
    assert int(canonical.rstrip("EPTGMKi")) <= number
    assert format_quantity(parse_bytes(canonical)) == canonical


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (147_456, "144 KiB"), (1_207_959_552, "1.125 GiB"), (2**44, "16 TiB")],
)
def test_people_read_binary_units_with_four_digits(num_bytes: int, text: str) -> None:
    assert format_bytes(num_bytes) == text
