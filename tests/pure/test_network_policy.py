"""The NetworkPolicy of a pool: who reaches which port, and that it comes and goes with the operator's settings."""

from dataclasses import replace

from pools import NOW, SETTINGS, carried_out, pool, settled
from tidegate_operator.decisions.planning import plan
from tidegate_operator.manifests.network_policy import Peers
from tidegate_operator.resources import Manifest
from tidegate_operator.world.observed import Observed

OPERATOR: Manifest = {
    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "tidegate"}},
    "podSelector": {"matchLabels": {"app.kubernetes.io/component": "operator"}},
}
GATEWAY: Manifest = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "gateways"}}}
GUARDED = replace(SETTINGS, peers=Peers(admin=(OPERATOR,)))


def policies(children: tuple[Manifest, ...]) -> list[Manifest]:
    return [each for each in children if each["kind"] == "NetworkPolicy"]


def test_everybody_reaches_the_api_and_only_named_peers_the_admin_port() -> None:
    (policy,) = policies(settled(settings=GUARDED).children)
    api, admin = policy["spec"]["ingress"]
    assert api == {"ports": [{"protocol": "TCP", "port": 8000}]}
    assert admin == {"ports": [{"protocol": "TCP", "port": 8001}], "from": [OPERATOR]}
    assert policy["spec"]["policyTypes"] == ["Ingress"], "what engines may reach is not ours to say"


def test_where_clients_are_named_nobody_else_reaches_the_api() -> None:
    (policy,) = policies(settled(settings=replace(SETTINGS, peers=Peers((OPERATOR,), (GATEWAY,)))).children)
    assert policy["spec"]["ingress"][0] == {"ports": [{"protocol": "TCP", "port": 8000}], "from": [GATEWAY]}


def test_it_is_about_the_pods_that_the_deployment_keeps_and_leaves_with_the_pool() -> None:
    children = settled(settings=GUARDED).children
    (policy,) = policies(children)
    (deployment,) = (each for each in children if each["kind"] == "Deployment")
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= deployment["spec"]["selector"]["matchLabels"].items()
    assert policy["metadata"]["ownerReferences"] == deployment["metadata"]["ownerReferences"]


def test_it_is_there_before_the_first_pod_is() -> None:
    first = plan(pool(), Observed(), GUARDED, NOW)
    assert [each["kind"] for each in first.apply] == ["NetworkPolicy", "Job"]
    (policy, job) = first.apply
    labels = job["spec"]["template"]["metadata"]["labels"]
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= labels.items()


def test_without_peers_there_is_none_and_one_of_before_is_removed() -> None:
    assert policies(settled().children) == []
    guarded = settled(settings=GUARDED)
    steps = plan(pool(), guarded, SETTINGS, NOW)
    assert [each["kind"] for each in steps.delete] == ["NetworkPolicy"]
    assert plan(pool(), carried_out(guarded, steps), SETTINGS, NOW).is_satisfied


def test_turning_it_on_rolls_nothing() -> None:
    before = settled()
    steps = plan(pool(), before, GUARDED, NOW)
    assert [each["kind"] for each in steps.apply] == ["NetworkPolicy"]
    assert plan(pool(), carried_out(before, steps), GUARDED, NOW).is_satisfied
