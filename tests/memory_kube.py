"""A Kube in memory, with just enough of an API server to reconcile against: merges, versions, uids, owners.

For tests that must cut a run off at a very call; everything that depends on real semantics has a real API server.
"""

import copy
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

from tidegate_operator.errors import Conflict, Invalid, NotFound
from tidegate_operator.kube import Page
from tidegate_operator.labels import POOL_LABEL
from tidegate_operator.resources import EVENT, POOL, Manifest, Resource, resource_of
from tidegate_operator.world.cache import CACHED, Cache

Place = tuple[Resource, str, str]
T = TypeVar("T")


class MemoryKube:
    """`before` is called before each request with its name; what it raises is the request's end."""

    def __init__(self) -> None:
        self.objects: dict[Place, dict[str, Any]] = {}
        self.version = 0
        self.num_writes = 0
        self.before: Callable[[str], None] = lambda _: None

    def copy(self) -> "MemoryKube":
        other = MemoryKube()
        other.objects, other.version = copy.deepcopy(self.objects), self.version
        return other

    def fill(self, cache: Cache) -> None:
        """As lists and watches do."""
        for resource in CACHED:
            listed = {(namespace, name) for kind, namespace, name in self.objects if kind == resource}
            for key in listed:
                item = self.objects[resource, *key]
                if resource == POOL or POOL_LABEL in item["metadata"].get("labels", {}):
                    cache.put(resource, item)
            cache.keep_only(resource, None, listed, self.version)

    def of_kind(self, resource: Resource) -> list[dict[str, Any]]:
        return [item for (kind, _, _), item in self.objects.items() if kind == resource]

    def store(self, item: Manifest) -> dict[str, Any]:
        """Create or change; an unchanged object keeps its version."""
        place = _place(item)
        known = self.objects.get(place)
        if known is None:
            new = _merge({}, item)
            new["metadata"] |= {
                "uid": f"uid-{self.version}",
                "generation": 1,
                "creationTimestamp": "2026-11-29T11:00:00Z",
            }
        else:
            new = _merge(known, item)
            if new == known:
                return copy.deepcopy(known)
            if new.get("spec") != known.get("spec"):
                new["metadata"]["generation"] += 1
        self.version += 1
        new["metadata"]["resourceVersion"] = str(self.version)
        self.objects[place] = new
        return copy.deepcopy(new)

    def drop(self, place: Place) -> None:
        """With what it owns."""
        gone = self.objects.pop(place)
        self.version += 1
        for other, item in list(self.objects.items()):
            owners = {owner["uid"] for owner in item["metadata"].get("ownerReferences", ())}
            if gone["metadata"]["uid"] in owners and other in self.objects:
                self.drop(other)

    async def get(
        self, resource: Resource, namespace: str | None, name: str, *, max_age_seconds: float = 0.0
    ) -> Manifest | None:
        self.before("get")
        return copy.deepcopy(self.objects.get((resource, namespace or "", name)))

    async def list(
        self, resource: Resource, namespace: str | None, *, labels: str = "", fields: str = ""
    ) -> tuple[Manifest, ...]:
        self.before("list")
        name, _, value = labels.partition("=")
        return tuple(
            copy.deepcopy(item)
            for (kind, where, _), item in self.objects.items()
            if kind == resource
            and namespace in (None, where)
            and (not labels or item["metadata"].get("labels", {}).get(name) == value)
        )

    async def pages(
        self, resource: Resource, namespace: str | None, *, labels: str = "", fields: str = ""
    ) -> AsyncIterator[Page]:
        yield Page(await self.list(resource, namespace), self.version)

    async def apply(self, manifest: Manifest, *, is_rehearsal: bool = False) -> Manifest:
        if is_rehearsal:
            self.before("rehearse")
            return manifest
        return self._write("apply", lambda: self.store(manifest))

    async def patch(self, resource: Resource, namespace: str, name: str, patch: Manifest) -> Manifest:
        def write() -> Manifest:
            known = self.objects.get((resource, namespace, name))
            if known is None:
                raise NotFound(name)
            if patch.get("metadata", {}).get("uid", known["metadata"]["uid"]) != known["metadata"]["uid"]:
                raise Invalid("metadata.uid")
            metadata = {**patch.get("metadata", {}), "namespace": namespace, "name": name}
            return self.store({**patch, "apiVersion": known["apiVersion"], "kind": known["kind"], "metadata": metadata})

        return self._write("patch", write)

    async def delete(self, resource: Resource, namespace: str, name: str, uid: str) -> Manifest | None:
        def write() -> None:
            known = self.objects.get((resource, namespace, name))
            if known is not None and known["metadata"]["uid"] == uid:
                self.drop((resource, namespace, name))

        return self._write("delete", write)

    async def patch_status(self, pool: Manifest) -> Manifest:
        def write() -> Manifest:
            known = self.objects[_place(pool)]
            self.version += 1
            known |= {"status": copy.deepcopy(pool["status"])}  # one manager owns all of it
            known["metadata"]["resourceVersion"] = str(self.version)
            return copy.deepcopy(known)

        return self._write("status", write)

    async def create(self, manifest: Manifest) -> Manifest:
        def write() -> Manifest:
            if _place(manifest) in self.objects:
                raise Conflict("exists")
            return self.store(manifest)

        return self._write(f"create {manifest['kind']}", write)

    def _write(self, name: str, write: Callable[[], T]) -> T:
        self.before(name)
        self.num_writes += name != f"create {EVENT.kind}"
        return write()


def _place(item: Manifest) -> Place:
    return resource_of(item), item["metadata"]["namespace"], item["metadata"]["name"]


def _merge(known: Any, new: Any) -> Any:
    """As a merge patch: nulls take away, lists are replaced."""
    if not isinstance(new, dict):
        return copy.deepcopy(new)
    merged = dict(known) if isinstance(known, dict) else {}
    for name, value in new.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = _merge(merged.get(name), value)
    return merged
