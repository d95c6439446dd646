"""What somebody else made under a name of ours stays as it is, and the pool says so; what is ours is put right."""

import asyncio
from typing import Any

import pytest

from memory_kube import MemoryKube
from pools import UID, pool
from tidegate_operator.apply import apply
from tidegate_operator.decisions.plan import Plan, Refusal
from tidegate_operator.manifests.network_policy import Peers, network_policies
from tidegate_operator.resources import NETWORK_POLICY
from tidegate_operator.world.cache import Cache
from tidegate_operator.world.cached_kube import CachedKube

(WANTED,) = network_policies(pool(), Peers(admin=({"podSelector": {}},)))
PLACE = (NETWORK_POLICY, "team", "chat-pods")


def applied(**metadata: Any) -> tuple[tuple[Refusal, ...], Any]:
    """Over a policy of that name which no watch of ours tells of: the answer, and what is there afterwards."""
    kube = MemoryKube()
    known = {"name": "chat-pods", "namespace": "team", **metadata}
    kube.store({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": known, "spec": {"a": "b"}})
    refusals = asyncio.run(apply(CachedKube(kube, Cache()), None, Plan("team", apply=(WANTED,))))  # type: ignore[arg-type]
    return refusals, kube.objects[PLACE]["spec"]


@pytest.mark.parametrize("metadata", [{}, {"labels": {"app": "chat"}}, {"ownerReferences": [{"uid": "theirs"}]}])
def test_a_child_that_somebody_else_has_made_is_not_taken_over(metadata: dict[str, Any]) -> None:
    refusals, spec = applied(**metadata)
    assert [each.title for each in refusals] == ["NetworkPolicy chat-pods"]
    assert "belongs to somebody else; rename the pool, or delete it" in refusals[0].message
    assert spec == {"a": "b"}


@pytest.mark.parametrize("metadata", [{"labels": {"tidegate.dev/pool": "chat"}}, {"ownerReferences": [{"uid": UID}]}])
def test_a_child_of_ours_whose_label_or_owner_a_person_took_away_is_put_right(metadata: dict[str, Any]) -> None:
    refusals, spec = applied(**metadata)
    assert refusals == ()
    assert "podSelector" in spec
