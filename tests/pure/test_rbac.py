"""The role: enough for every resource in the table, nothing that reads secrets or grants more rights."""

from tidegate_operator.rbac import CLUSTER_RULES, NAMESPACED_RULES, manifest
from tidegate_operator.resources import (
    CHILDREN,
    CONFIG_MAP,
    CONTROLLER_REVISION,
    JOB,
    NETWORK_POLICY,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    POD_DISRUPTION_BUDGET,
    POOL,
)


def test_every_child_can_be_watched_and_applied_and_only_what_runs_out_can_be_removed() -> None:
    granted = {rule.resource: set(rule.verbs) for rule in NAMESPACED_RULES if not rule.subresource}
    for child in CHILDREN:
        is_removed = child in (
            CONTROLLER_REVISION, CONFIG_MAP, JOB, NETWORK_POLICY, POD_DISRUPTION_BUDGET, PERSISTENT_VOLUME_CLAIM,
        )  # fmt: skip
        assert granted[child] == {"get", "list", "watch", "create", "patch"} | ({"delete"} if is_removed else set())


def test_the_users_object_is_never_written() -> None:
    verbs = {rule.subresource: set(rule.verbs) for rule in NAMESPACED_RULES if rule.resource == POOL}
    assert verbs[""] == {"list", "watch"}
    assert verbs["status"] == {"patch"}


def test_pods_are_labelled_and_dead_ones_removed_but_none_is_made() -> None:
    (pods,) = (rule for rule in NAMESPACED_RULES if rule.resource == POD)
    assert set(pods.verbs) == {"list", "watch", "patch", "delete"}


def test_no_rule_is_a_wildcard_reads_secrets_or_grants_rights() -> None:
    for rule in manifest((*NAMESPACED_RULES, *CLUSTER_RULES)):
        assert "*" not in str(rule)
        assert not {"secrets", "roles", "clusterroles", "rolebindings"} & set(rule["resources"])
        assert not {"escalate", "bind", "impersonate", "deletecollection"} & set(rule["verbs"])


def test_only_nodes_are_read_beyond_namespaces() -> None:
    assert manifest(CLUSTER_RULES) == [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]}]
