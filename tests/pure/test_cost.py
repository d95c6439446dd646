"""What replicas cost: by device, by core or by their share of a node, from the operator's price list."""

from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from pools import pod, pool
from tidegate_operator.api.status import CostStatus
from tidegate_operator.errors import BadPrices
from tidegate_operator.report.cost import Claim, Place, claim_of, cost_of, pool_cost, replica_price
from tidegate_operator.world.neighbours import Neighbourhood
from tidegate_operator.world.observed import Node, Observed
from tidegate_operator.world.price_file import PriceFile
from tidegate_operator.world.prices import PriceList, read_prices

H100 = "NVIDIA-H100-80GB-HBM3"
NODE = Place(
    {"nvidia.com/gpu.product": H100, "node.kubernetes.io/instance-type": "p5.48xlarge"},
    {"nvidia.com/gpu": "8", "cpu": "192"},
)
TWO = Claim("nvidia.com/gpu", Decimal(2))


@pytest.mark.parametrize(
    ("known", "per_hour", "basis"),
    [
        pytest.param({H100: "4.10", "p5.48xlarge": "98.32"}, "8.20", f"2 x {H100} at 4.1", id="the product first"),
        pytest.param({"p5.48xlarge": "98.32", "nvidia.com/gpu": "1"}, "24.58",
                     "2 of 8 nvidia.com/gpu of p5.48xlarge at 98.32", id="then a share of the node"),
        pytest.param({"nvidia.com/gpu": "2.50"}, "5.00", "2 x nvidia.com/gpu at 2.5", id="then the resource"),
    ],
)  # fmt: skip
def test_the_most_specific_price_counts(known: dict[str, str], per_hour: str, basis: str) -> None:
    price = replica_price(TWO, NODE, PriceList({name: Decimal(value) for name, value in known.items()}))
    assert (price.per_hour, price.basis) == (Decimal(per_hour), basis)


def test_a_cpu_replica_pays_for_its_cores_and_not_for_the_nodes_accelerators() -> None:
    cores = Claim("cpu", Decimal("1.5"))
    listed = PriceList({H100: Decimal(4), "cpu": Decimal("0.04")})
    assert replica_price(cores, NODE, listed).per_hour == Decimal("0.06")
    shared = replica_price(cores, NODE, PriceList({"p5.48xlarge": Decimal(96)}))
    assert shared.per_hour == Decimal("0.75")


def test_a_pools_cost_is_that_of_all_its_replicas_wherever_they_are() -> None:
    other = Place({}, {"nvidia.com/gpu": "8"})
    cost = pool_cost(TWO, [NODE, NODE, other], PriceList({H100: Decimal("4.10")}))
    assert cost == CostStatus(
        per_hour="16.4", basis=f"2 replicas: 2 x {H100} at 4.1; 1 replica without a price for nvidia.com/gpu"
    )


def test_without_a_price_list_or_a_price_there_is_no_cost() -> None:
    assert pool_cost(TWO, [NODE], None) is None
    assert pool_cost(TWO, [NODE], PriceList({"A10G": Decimal(1)})) is None
    assert pool_cost(TWO, [], PriceList({H100: Decimal(4)})) is None


def test_what_a_replica_claims_stands_in_its_template() -> None:
    container = {"resources": {"limits": {"cpu": "1500m", "memory": "4Gi", "nvidia.com/gpu": "2"}}}
    template = {"spec": {"containers": [{"name": "engine", **container}]}}
    assert claim_of(template, "nvidia.com/gpu") == TWO
    assert claim_of(template, "cpu") == Claim("cpu", Decimal("1.5"))


def test_pods_cost_from_their_node_to_their_end_also_where_nodes_may_not_be_read() -> None:
    template = {"spec": {"containers": [{"name": "engine", "resources": {"limits": {"nvidia.com/gpu": "2"}}}]}}
    pods = (
        pod("a", node="n1"), pod("b", node="n1", is_terminating=True), pod("c", node="n1", has_ended=True), pod("d"),
    )  # fmt: skip
    around = Neighbourhood(prices=PriceList({H100: Decimal(4), "nvidia.com/gpu": Decimal(1)}))
    observed = Observed(pods=pods, around=around, nodes=(Node("n1", NODE.labels, NODE.allocatable),))
    cost = cost_of(pool(), observed, template)
    assert cost is not None
    assert cost.per_hour == "16"
    blind = cost_of(pool(), replace(observed, nodes=None), template)
    assert blind is not None
    assert blind.per_hour == "4"
    selected = pool(pod={"nodeSelector": {"nvidia.com/gpu.product": H100}})
    assert cost_of(selected, replace(observed, nodes=None), template) == cost
    assert cost_of(pool(), observed, None) is None


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: [", "not YAML"),
        ("- a", "expected a mapping"),
        ("a: cheap", "a: 'cheap' is not a decimal number"),
        ("a: -1", "a: a price must be a number from 0 to"),
        ("a: .nan", "a: a price must be a number from 0 to"),
        ("a: 1e30", "a: a price must be a number from 0 to"),
        ("a: 1e999999999", "a: a price must be a number from 0 to"),
        ("a: true", "a: expected a decimal number, found a bool"),
        ("a: 2026-01-01", "a: expected a decimal number, found a date"),
        ("a: 2026-13-45", "not YAML"),
        ("a: 1" + "0" * 5000, "not YAML"),
        ("[" * 3000, "not YAML"),
        ("a: &a [1, 1]\nb: &b [*a, *a]\nc: [*b, *b]", "a: expected a decimal number, found a list"),
    ],
)
def test_a_wrong_price_list_is_refused_by_entry(text: str, sentence: str) -> None:
    with pytest.raises(BadPrices, match=sentence):
        read_prices(text)


def test_prices_are_read_exactly_and_an_empty_list_has_none() -> None:
    assert read_prices('nvidia.com/gpu: "0.10"\nA10G: 1.5').per_hour == {
        "nvidia.com/gpu": Decimal("0.10"), "A10G": Decimal("1.5"),
    }  # fmt: skip
    assert read_prices("").per_hour == {}


def test_the_price_file_may_come_change_break_and_go(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "prices.yaml"
    file = PriceFile(path)
    assert file.prices() is None
    path.write_text("a: 1")
    first = file.prices()
    assert first == PriceList({"a": Decimal(1)})
    path.write_text("a: cheap")
    assert [file.prices(), file.prices()] == [first, first]
    assert caplog.text.count("is not a decimal number") == 1
    path.unlink()
    assert file.prices() is None
