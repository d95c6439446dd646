"""Events of a pool, written so that repeats become a series instead of a flood.

The recorder knows what it wrote since it started: the same reason with the same words is a count on the first Event.
reconcile.py hands it the notes of plan.py and notes.py.
"""

from collections import OrderedDict
from datetime import datetime
from hashlib import sha256

from tidegate_operator.api.v1alpha1 import InferencePool
from tidegate_operator.decisions.notes import Note
from tidegate_operator.errors import NotFound
from tidegate_operator.kube import Kube
from tidegate_operator.resources import EVENT, POOL, Manifest

MAX_NOTE_CHARACTERS = 1000  # the API server accepts 1 kB
MAX_REMEMBERED = 1000
CONTROLLER = "tidegate.dev/operator"


class EventRecorder:
    """Writes notes as events.k8s.io Events."""

    def __init__(self, kube: Kube, instance: str) -> None:
        self._kube = kube
        self._instance = instance
        self._told: OrderedDict[str, tuple[str, int]] = OrderedDict()  # what was said -> Event name, how often

    async def record(self, pool: InferencePool, note: Note, now: datetime) -> None:
        told = _digest(pool, note)
        name, count = self._told.pop(told, (f"{pool.metadata.name}.{told}{int(now.timestamp()):x}", 0))
        self._told[told] = (name, count + 1)
        if len(self._told) > MAX_REMEMBERED:
            self._told.popitem(last=False)
        if count and await self._count(pool, name, count + 1, now):
            return
        await self._kube.create(event(pool, note, name, self._instance, now))

    async def _count(self, pool: InferencePool, name: str, count: int, now: datetime) -> bool:
        """False when the first Event has expired."""
        series = {"series": {"count": count, "lastObservedTime": _micro_time(now)}}
        try:
            await self._kube.patch(EVENT, pool.metadata.namespace, name, series)
        except NotFound:
            return False
        return True


def _digest(pool: InferencePool, note: Note) -> str:
    words = f"{pool.metadata.uid} {note.kind} {note.reason} {note.message}"
    return sha256(words.encode()).hexdigest()[:12]


def event(pool: InferencePool, note: Note, name: str, instance: str, now: datetime) -> Manifest:
    regarding = {
        "apiVersion": POOL.api_version, "kind": POOL.kind, "name": pool.metadata.name,
        "namespace": pool.metadata.namespace, "uid": pool.metadata.uid,
    }  # fmt: skip
    return {
        "apiVersion": EVENT.api_version,
        "kind": EVENT.kind,
        "metadata": {"name": name, "namespace": pool.metadata.namespace},
        "eventTime": _micro_time(now),
        "reportingController": CONTROLLER,
        "reportingInstance": instance[:128],
        "action": "Reconcile",
        "reason": str(note.reason),
        "type": note.kind,
        "regarding": regarding,
        "note": note.message[:MAX_NOTE_CHARACTERS],
    }


def _micro_time(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
