"""What a pool's manifest would do in a cluster, were it applied now: room, rollout, time and money. Pure.

The operator's own decisions are asked, with what it would see; planning.py reads that.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

from tidegate_operator.api.spec import RolloutStrategy
from tidegate_operator.api.v1alpha1 import InferencePool
from tidegate_operator.decisions.revisions import TemplateRevision, inputs_hash, stored_revisions
from tidegate_operator.decisions.rollout import choose_strategy, num_accelerators
from tidegate_operator.report.cost import Place, claim_of, replica_price
from tidegate_operator.sizing.capacity import candidates, free_accelerators, num_held, shortage
from tidegate_operator.world.containers import main_container
from tidegate_operator.world.observed import Node, Observed
from tidegate_operator.world.prices import PriceList
from tidegate_operator.world.quota import room


@dataclass(frozen=True)
class Change:
    """What becomes of the replicas there are."""

    num_replaced: int  # 0: none, or there are none
    is_new: bool
    strategy: RolloutStrategy | None = None  # of a replacement
    reason: str = ""

    def __str__(self) -> str:
        if self.is_new:
            return "a new pool: nothing is replaced"
        if self.strategy is None:
            return "no replica restarts"
        replicas = "1 replica is" if self.num_replaced == 1 else f"{self.num_replaced} replicas are"
        return f"{replicas} replaced, {self.strategy}: {self.reason}"


@dataclass(frozen=True)
class ColdStart:
    """From a replica's creation until it serves."""

    most_seconds: int  # then the kubelet gives up
    p90_seconds: int | None  # measured on this pool
    num_measured: int

    def __str__(self) -> str:
        if self.p90_seconds is None:
            return f"not measured yet; given up after {self.most_seconds} s"
        return f"{self.p90_seconds} s (p90 of {self.num_measured} measured)"


@dataclass(frozen=True)
class Cost:
    """Of an hour, by a price list."""

    of_replica: Decimal
    of_fewest: Decimal
    of_most: Decimal
    basis: str

    def __str__(self) -> str:
        between = f"{self.of_fewest:.2f}" + (f" to {self.of_most:.2f}" if self.of_most != self.of_fewest else "")
        return f"{between} an hour; a replica {self.of_replica:.2f} ({self.basis})"


@dataclass(frozen=True)
class Prospect:
    """The answer."""

    resource: str
    free: Mapping[str, int] | None  # devices by node; None: the nodes may not be read, or devices do not count
    shortage: str
    quota: str  # what a quota says against one more replica
    change: Change
    cold_start: ColdStart
    cost: Cost | None

    @property
    def room(self) -> str:
        if self.shortage or self.free is None:
            return self.shortage
        nodes = [f"{number} on {name}" for name, number in sorted(self.free.items()) if number]
        return f"{self.resource} free: {', '.join(nodes)}"

    @property
    def warnings(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.shortage, self.quota)))

    @property
    def rows(self) -> tuple[tuple[str, str], ...]:
        """Name and sentence, for people."""
        cost = str(self.cost) if self.cost else ""
        rows = (
            ("room", self.room),
            ("rollout", str(self.change)),
            ("cold start", str(self.cold_start)),
            ("cost", cost),
        )
        return tuple((name, said) for name, said in rows if said)

    def to_document(self) -> dict[str, object]:
        """JSON; money as decimal strings."""
        change, start, cost = self.change, self.cold_start, self.cost
        amounts = None if cost is None else (str(cost.of_replica), str(cost.of_fewest), str(cost.of_most), cost.basis)
        return {
            "freeByNode": self.free,
            "shortage": self.shortage,
            "quota": self.quota,
            "rollout": {
                "isNew": change.is_new,
                "replaced": change.num_replaced,
                "strategy": change.strategy,
                "reason": change.reason,
            },
            "coldStart": {
                "p90Seconds": start.p90_seconds,
                "measured": start.num_measured,
                "mostSeconds": start.most_seconds,
            },
            "costPerHour": amounts and dict(zip(("replica", "fewest", "most", "basis"), amounts, strict=True)),
        }


def foresee(
    pool: InferencePool,
    live: InferencePool | None,
    template: TemplateRevision,
    observed: Observed,
    prices: PriceList | None,
) -> Prospect:
    """`live` is the pool as it is stored, if it is; `template` what its replicas would be made from."""
    resource, usable = pool.spec.accelerator.resource, candidates(pool, observed.nodes or ())
    counts = observed.nodes is not None and not pool.spec.accelerator.is_cpu
    allowed = room(observed.quotas, template.template)
    most = allowed.most_replicas(num_held(observed.pods))
    return Prospect(
        resource=resource,
        free=free_accelerators(usable, resource) if counts else None,
        shortage=shortage(usable, resource, num_accelerators(template.template, resource)) if counts else "",
        quota=allowed.why if most is not None and most < pool.spec.starting_replicas else "",
        change=_change(pool, live, template, observed),
        cold_start=_cold_start(live, template),
        cost=None if prices is None else _cost(pool, template, usable, prices),
    )


def _change(pool: InferencePool, live: InferencePool | None, template: TemplateRevision, observed: Observed) -> Change:
    stored = stored_revisions(observed)
    if live is None or not stored:
        return Change(0, is_new=True)
    num_replicas = num_held(observed.pods)
    if stored[-1].inputs == inputs_hash(pool) or not num_replicas:
        return Change(0, is_new=False)
    strategy, reason = choose_strategy(pool, template.template, observed)
    return Change(num_replicas, is_new=False, strategy=strategy, reason=reason)


def _cold_start(live: InferencePool | None, template: TemplateRevision) -> ColdStart:
    probe = main_container(template.template)["startupProbe"]
    most = probe["failureThreshold"] * probe["periodSeconds"]
    measured = live.status.cold_start if live else None
    if measured is None:
        return ColdStart(most, None, 0)
    return ColdStart(most, measured.p90_seconds, len(measured.measured))


def _cost(pool: InferencePool, template: TemplateRevision, nodes: tuple[Node, ...], prices: PriceList) -> Cost | None:
    """On the dearest node that may run it: a plan should not promise too little."""
    claim = claim_of(template.template, pool.spec.accelerator.resource)
    places = [Place(node.labels, node.allocatable) for node in nodes] or [Place(pool.spec.pod.node_selector, {})]
    found = [price for price in (replica_price(claim, place, prices) for place in places) if price.per_hour is not None]
    if not found:
        return None
    price = max(found, key=lambda each: each.per_hour or Decimal(0))
    low, high = (pool.spec.starting_replicas,) * 2 if pool.spec.scaling.mode == "Manual" else pool.spec.bounds
    each = price.per_hour or Decimal(0)
    return Cost(each, low * each, high * each, price.basis)
