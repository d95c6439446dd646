"""What replicas cost by a price list: per accelerator, per core, or as a share of a node. Pure; money is Decimal.

    the node's product label ─▶ the node's instance type, shared ─▶ the resource itself      first that has a price

status.py publishes it for the pods there are, the command line for a pool that is planned.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal

from tidegate_core.quantity import parse_quantity
from tidegate_operator.api.spec import CPU_RESOURCE
from tidegate_operator.api.status import CostStatus
from tidegate_operator.api.v1alpha1 import InferencePool
from tidegate_operator.resources import Manifest
from tidegate_operator.sizing.devices import PRODUCT_LABEL
from tidegate_operator.world.containers import main_container
from tidegate_operator.world.observed import Observed
from tidegate_operator.world.prices import PriceList

INSTANCE_TYPE_LABEL = "node.kubernetes.io/instance-type"
_CENTS = Decimal("0.0001")
_MAX_KEYS_SAID = 3


@dataclass(frozen=True)
class Claim:
    """What one replica takes: `amount` devices of `resource`, or cores where that is `cpu`."""

    resource: str
    amount: Decimal


@dataclass(frozen=True)
class Place:
    """The node of a replica; without one, what the pool's node selector says about it."""

    labels: Mapping[str, str]
    allocatable: Mapping[str, str]


@dataclass(frozen=True)
class Price:
    """An hour of one replica, and where that comes from; None: none of `keys` is in the list."""

    per_hour: Decimal | None
    basis: str
    keys: tuple[str, ...]


def claim_of(template: Manifest, resource: str) -> Claim:
    """Of the engine container of a pod template."""
    limits, requests = (main_container(template).get("resources", {}).get(each, {}) for each in ("limits", "requests"))
    return Claim(resource, Decimal(parse_quantity(limits.get(resource) or requests.get(resource) or "0")))


def replica_price(claim: Claim, place: Place, prices: PriceList) -> Price:
    """Of one replica there."""
    product = "" if claim.resource == CPU_RESOURCE else place.labels.get(PRODUCT_LABEL, "")
    instance = place.labels.get(INSTANCE_TYPE_LABEL, "")
    keys = tuple(key for key in (product, instance, claim.resource) if key)
    for key in keys:
        each = prices.per_hour.get(key)
        if each is None:
            continue
        if key != instance:
            return Price(claim.amount * each, f"{_number(claim.amount)} x {key} at {_number(each)}", keys)
        if whole := Decimal(parse_quantity(place.allocatable.get(claim.resource, "0"))):
            share = f"{_number(claim.amount)} of {_number(whole)} {claim.resource}"
            return Price(claim.amount / whole * each, f"{share} of {key} at {_number(each)}", keys)
    return Price(None, "", keys)


def cost_of(pool: InferencePool, observed: Observed, template: Manifest | None) -> CostStatus | None:
    """Of the pods that have a node: they hold what they claim until they have ended."""
    if template is None:
        return None
    nodes = {node.name: Place(node.labels, node.allocatable) for node in observed.nodes or ()}
    unknown = Place(pool.spec.pod.node_selector, {})
    places = [nodes.get(pod.node, unknown) for pod in observed.pods if pod.node and not pod.has_ended]
    return pool_cost(claim_of(template, pool.spec.accelerator.resource), places, observed.around.prices)


def pool_cost(claim: Claim, places: Iterable[Place], prices: PriceList | None) -> CostStatus | None:
    """Of all replicas that exist, wherever each is; None where none of them has a price."""
    if prices is None:
        return None
    found = Counter(replica_price(claim, place, prices) for place in places)
    priced = {price: number for price, number in found.items() if price.per_hour is not None}
    if not priced:
        return None
    total = sum((number * price.per_hour for price, number in priced.items() if price.per_hour), Decimal(0))
    said = sorted(f"{_replicas(number)}: {price.basis}" for price, number in priced.items())
    if missing := sum(found.values()) - sum(priced.values()):
        keys = sorted({key for price in found if price.per_hour is None for key in price.keys})[:_MAX_KEYS_SAID]
        said.append(f"{_replicas(missing)} without a price for {' or '.join(keys)}")
    return CostStatus(per_hour=_number(total), basis="; ".join(said)[:1024])


def _replicas(number: int) -> str:
    return "1 replica" if number == 1 else f"{number} replicas"


def _number(value: Decimal) -> str:
    """Without trailing zeros and exponents."""
    text = f"{value.quantize(_CENTS):f}"
    return text.rstrip("0").rstrip(".")
