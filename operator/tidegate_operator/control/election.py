"""I/O: who of several operators writes. A Lease of coordination.k8s.io, as Kubernetes' own controllers elect.

    standby ── the record is free, or unchanged for its own duration ──▶ leading ── not renewed in time ──▶ lost
       ▲                                                                    │
       └──────────── release: the holder is emptied on a graceful end ◀─────┘

Clocks of machines are never compared: a record is as old as this process has seen it unchanged, by its own monotonic
clock. A leader counts from the moment it asked, not from the answer, and stops before anybody else may begin. Two that
write at once are told apart by the resourceVersion. Whoever lost the lease ends; it is started again as standby.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from tidegate_operator.errors import Conflict, KubeError, NotFound, NotLeading
from tidegate_operator.kube import Kube
from tidegate_operator.resources import LEASE, Manifest

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LeaseTiming:
    """In seconds; deadline < duration is what keeps two leaders apart."""

    duration_seconds: float = 15.0
    renew_deadline_seconds: float = 10.0
    retry_seconds: float = 2.0


@dataclass
class Elector:
    """`acquire`, then `keep` until it returns; `release` at the end."""

    kube: Kube
    namespace: str
    name: str
    identity: str
    timing: LeaseTiming = LeaseTiming()
    clock: Callable[[], float] = time.monotonic
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    _seen: Manifest = field(default_factory=dict, init=False)  # the spec as it was when it last changed
    _seen_at: float = field(default=float("-inf"), init=False)
    _leads_until: float = field(default=float("-inf"), init=False)

    @property
    def is_leading(self) -> bool:
        """Nobody else leads yet, whatever has become of the API server."""
        return self.clock() < self._leads_until

    def require(self) -> None:
        """Before every write, to the API server and to engines alike. Raises NotLeading."""
        if not self.is_leading:
            raise NotLeading("another operator may lead by now, so this one writes nothing")

    async def acquire(self) -> None:
        """Returns once this operator leads."""
        while True:
            if await self._try():
                break
            await asyncio.sleep(self.timing.retry_seconds)
        _log.info("%s leads", self.identity)

    async def keep(self) -> None:
        """Renews; returns when the lease is lost."""
        while self.is_leading:
            await asyncio.sleep(min(self.timing.retry_seconds, max(0.0, self._leads_until - self.clock())))
            await self._try()
        _log.error("%s lost the lease %s/%s", self.identity, self.namespace, self.name)

    async def release(self) -> None:
        """The next one need not wait for the lease to run out. Nothing is written from now on."""
        held, self._leads_until = self.is_leading, float("-inf")
        if not held:
            return
        try:
            lease = await self.kube.get(LEASE, self.namespace, self.name)
            if lease is not None and lease["spec"].get("holderIdentity") == self.identity:
                await self._write(lease, {"holderIdentity": "", "leaseDurationSeconds": 1})
        except KubeError as error:
            _log.warning("the lease runs out by itself: %s", error)

    async def _try(self) -> bool:
        """One attempt to get or renew the lease, cut off where it would be too late."""
        left = self._leads_until - self.clock()
        try:
            async with asyncio.timeout(left if left > 0 else self.timing.renew_deadline_seconds):
                return await self._try_once()
        except Conflict:
            _log.debug("another operator was faster")
        except (KubeError, TimeoutError) as error:
            _log.warning("lease %s/%s: %s", self.namespace, self.name, error or "no answer in time")
        return False

    async def _try_once(self) -> bool:
        asked_at = self.clock()
        lease = await self.kube.get(LEASE, self.namespace, self.name)
        spec: Manifest = {} if lease is None else lease.get("spec", {})
        holder = spec.get("holderIdentity", "")
        if holder not in ("", self.identity, self._seen.get("holderIdentity")):
            _log.info("%s holds the lease %s/%s: standing by", holder, self.namespace, self.name)
        if spec != self._seen:
            self._seen, self._seen_at = spec, asked_at
        if holder not in ("", self.identity) and not self._has_run_out(spec):
            self._leads_until = float("-inf")  # somebody else may have it now
            return False
        await (self._create() if lease is None else self._write(lease, self._record(spec)))
        self._leads_until = asked_at + self.timing.renew_deadline_seconds
        return True

    def _has_run_out(self, spec: Manifest) -> bool:
        return self.clock() - self._seen_at >= float(spec.get("leaseDurationSeconds", self.timing.duration_seconds))

    def _record(self, spec: Manifest) -> Manifest:
        now = self.now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        is_ours = spec.get("holderIdentity") == self.identity
        return {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": max(1, round(self.timing.duration_seconds)),
            "acquireTime": spec.get("acquireTime", now) if is_ours else now,
            "renewTime": now,
            "leaseTransitions": spec.get("leaseTransitions", 0) + (0 if is_ours else 1),
        }

    async def _create(self) -> None:
        metadata = {"namespace": self.namespace, "name": self.name}
        record = {**self._record({}), "leaseTransitions": 0}
        await self.kube.create({
            "apiVersion": LEASE.api_version, "kind": LEASE.kind, "metadata": metadata, "spec": record
        })  # fmt: skip

    async def _write(self, lease: Manifest, spec: Manifest) -> None:
        """Conflict when anybody wrote meanwhile; NotFound counts as that."""
        lock = {"metadata": {"resourceVersion": lease["metadata"]["resourceVersion"]}, "spec": spec}
        try:
            await self.kube.patch(LEASE, self.namespace, self.name, lock)
        except NotFound as error:
            raise Conflict(str(error)) from error
