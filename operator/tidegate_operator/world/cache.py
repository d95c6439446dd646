"""What the API server has told us of pools and their children, so that a reconcile costs it no reads. No I/O.

    watches (kopf) ──────▶ ┌───────┐ ◀────── answers to our own writes
    lists (lookout.py) ──▶ │ Cache │ ──────▶ observe, through CachedKube
                           └───────┘

The three sources overlap in time, so the order in which they arrive means nothing: only a higher resourceVersion
replaces what is known. A deletion is remembered with its version, so that a late answer brings nothing back. Objects
are kept as JSON text: a fifth of the memory of dicts, and no reader can change what another reads.
"""

import json
from collections import OrderedDict, defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from tidegate_operator.labels import POOL_LABEL
from tidegate_operator.resources import CHILDREN, POD, POOL, Key, Manifest, Resource

CACHED = (POOL, *CHILDREN, POD)
MAX_REMEMBERED_DELETIONS = 10_000
Versions = tuple[tuple[str, int], ...]  # uid and resourceVersion of each


class Entry(NamedTuple):
    """One object."""

    uid: str
    version: int
    pool: str  # the pool it belongs to, by its label
    text: bytes


class Cache:
    """Objects of the kinds in CACHED. Use it from one event loop."""

    def __init__(self) -> None:
        self._entries: dict[Resource, dict[Key, Entry]] = {each: {} for each in CACHED}
        self._of_pool: dict[tuple[Resource, Key], set[str]] = defaultdict(set)  # names of a pool's objects
        self._gone: OrderedDict[str, int] = OrderedDict()  # uid -> version of its deletion

    def put(self, resource: Resource, item: Manifest) -> bool:
        """Whether it was news."""
        metadata = item["metadata"]
        key, uid, version = _key(item), metadata["uid"], int(metadata["resourceVersion"])
        known = self._entries[resource].get(key)
        if version <= self._gone.get(uid, -1) or (known is not None and version <= known.version):
            return False
        self._drop(resource, key)
        text = json.dumps(_slim(resource, item), separators=(",", ":")).encode()
        entry = Entry(uid, version, _pool_of(resource, item), text)
        self._entries[resource][key] = entry
        self._of_pool[resource, (key[0], entry.pool)].add(key[1])
        return True

    def remove(self, resource: Resource, item: Manifest) -> bool:
        """The object is gone, or has no label of ours any more, as of its version. Whether it was news."""
        uid, version = item["metadata"]["uid"], int(item["metadata"]["resourceVersion"])
        self._remember_gone(uid, version)
        known = self._entries[resource].get(_key(item))
        if known is None or known.uid != uid or known.version > version:
            return False
        self._drop(resource, _key(item))
        return True

    def keep_only(self, resource: Resource, namespace: str | None, listed: set[Key], version: int) -> set[Key]:
        """A whole list as of `version` names all there is; keys of the pools that lose something by it."""
        lost = {
            key: entry
            for key, entry in self._entries[resource].items()
            if key not in listed and entry.version <= version and namespace in (None, key[0])
        }
        for key, entry in lost.items():
            self._remember_gone(entry.uid, version)
            self._drop(resource, key)
        return {(key[0], entry.pool) for key, entry in lost.items()}

    def get(self, resource: Resource, namespace: str, name: str) -> Manifest | None:
        entry = self._entries[resource].get((namespace, name))
        return None if entry is None else _read(entry)

    def of_pool(self, resource: Resource, namespace: str, pool: str) -> tuple[Manifest, ...]:
        """Objects that carry the pool's label, by name."""
        return tuple(map(_read, self._labelled(resource, (namespace, pool))))

    def versions(self, key: Key) -> Versions:
        """Of a pool and of what carries its label: the same as long as nothing of it comes, changes or goes."""
        return tuple((each.uid, each.version) for resource in CACHED for each in self._labelled(resource, key))

    def keys(self, resource: Resource) -> Iterable[Key]:
        return self._entries[resource].keys()

    def num_bytes(self) -> int:
        """Of text."""
        return sum(len(entry.text) for entries in self._entries.values() for entry in entries.values())

    def _labelled(self, resource: Resource, pool: Key) -> list[Entry]:
        """By name."""
        entries = self._entries[resource]
        return [entries[pool[0], name] for name in sorted(self._of_pool.get((resource, pool), ()))]

    def _drop(self, resource: Resource, key: Key) -> None:
        if (entry := self._entries[resource].pop(key, None)) is None:
            return
        place = resource, (key[0], entry.pool)
        self._of_pool[place].discard(key[1])
        if not self._of_pool[place]:
            del self._of_pool[place]

    def _remember_gone(self, uid: str, version: int) -> None:
        self._gone[uid] = max(version, self._gone.pop(uid, -1))
        if len(self._gone) > MAX_REMEMBERED_DELETIONS:
            self._gone.popitem(last=False)


def pool_key(resource: Resource, item: Manifest) -> Key | None:
    """The pool that an object is, or belongs to."""
    pool = _pool_of(resource, item)
    return (item["metadata"]["namespace"], pool) if pool else None  # anybody can write an empty label


def owns_replicas(entry: Manifest) -> bool:
    """An entry of managedFields that says who wrote a pool's spec.replicas."""
    return "f:replicas" in entry.get("fieldsV1", {}).get("f:spec", {})


def _pool_of(resource: Resource, item: Manifest) -> str:
    metadata = item["metadata"]
    return str(metadata["name"] if resource == POOL else metadata.get("labels", {}).get(POOL_LABEL, ""))


def slim(item: Manifest) -> Manifest:
    """Without managedFields, up to half of the text of an object, which nobody reads."""
    metadata = {name: value for name, value in item["metadata"].items() if name != "managedFields"}
    return {**item, "metadata": metadata}


def _slim(resource: Resource, item: Manifest) -> Manifest:
    """Of pools the part of managedFields that observe.py reads stays."""
    managed = item["metadata"].get("managedFields", ()) if resource == POOL else ()
    kept = [each for each in managed if owns_replicas(each)]
    thin = slim(item)
    return {**thin, "metadata": {**thin["metadata"], "managedFields": kept}} if kept else thin


def _key(item: Manifest) -> Key:
    return item["metadata"]["namespace"], item["metadata"]["name"]


def _read(entry: Entry) -> Manifest:
    found: Manifest = json.loads(entry.text)
    return found
