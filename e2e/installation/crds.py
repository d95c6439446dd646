"""Waiting for resources to be served. `kubectl wait` fails on a CRD that has no conditions yet, so it is asked here."""

from functools import partial

from e2e.cluster.access import ApiAccess
from e2e.installation.polling import wait_for
from tidegate_operator.api.base import CRD_NAME

ESTABLISHED_SECONDS = 30.0


def wait_for_crds(access: ApiAccess, *names: str) -> None:
    """Until the API server serves all of them; without names: pools."""
    for name in names or (CRD_NAME,):
        wait_for(f"CRD {name} is established", partial(_is_established, access, name), ESTABLISHED_SECONDS)


def _is_established(access: ApiAccess, name: str) -> bool:
    crd = access.requests.find(f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}") or {}
    conditions = crd.get("status", {}).get("conditions") or ()  # null at first
    return any((each["type"], each["status"]) == ("Established", "True") for each in conditions)
