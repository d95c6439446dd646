"""Everything that a cluster gets from us, as `make audit` hands it to a checker: every pod is restricted."""

from pathlib import Path

import yaml

from audited import audited, write
from restricted import violations


def test_every_pod_of_chart_and_pools_is_restricted_and_only_the_operator_has_a_token(tmp_path: Path) -> None:
    write(tmp_path, audited())
    documents = [each for path in tmp_path.iterdir() for each in yaml.safe_load_all(path.read_text())]
    pods = {
        f"{each['kind']} {each['metadata']['name']}": each["spec"]["template"]["spec"]
        for each in documents
        if each["kind"] in ("Deployment", "Job")
    }
    assert {name: violations(pod) for name, pod in pods.items() if violations(pod)} == {}
    assert {name for name, pod in pods.items() if pod["automountServiceAccountToken"]} == {"Deployment tidegate"}
    assert {name.partition(" ")[0] for name in pods} == {"Deployment", "Job"}
    assert all(each["kind"] != "Secret" or each["metadata"]["name"] == "tidegate-drain-token" for each in documents)
