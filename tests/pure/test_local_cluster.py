"""What can be said about local clusters without starting one: slots, environment, images, locks."""

import json
import os
import re
import tarfile
from pathlib import Path

import pytest

from e2e.cluster.environment import clean_environment
from e2e.cluster.errors import MissingTool, NoFreeSlot
from e2e.cluster.go_toolchain import parse_version
from e2e.cluster.node import NodeSpec
from e2e.cluster.oci import Blob, Image, open_layer, write_archive
from e2e.cluster.paths import REPOSITORY
from e2e.cluster.requirements import Tool, require
from e2e.cluster.slots import abandoned, claim, is_held
from e2e.cluster.spec import ClusterSpec, Network
from e2e.cluster.volumes import HostVolume, manifests


def test_a_claimed_slot_is_not_given_twice(tmp_path: Path) -> None:
    first, second = claim(tmp_path, "net", range(200, 202)), claim(tmp_path, "net", range(200, 202))
    assert (first.number, second.number) == (200, 201)
    with pytest.raises(NoFreeSlot, match="net"):
        claim(tmp_path, "net", range(200, 202))
    first.release()
    assert claim(tmp_path, "net", range(200, 202)).number == 200


def test_only_folders_that_nobody_holds_are_abandoned(tmp_path: Path) -> None:
    held, dead = claim(tmp_path, "net", [200]), claim(tmp_path, "net", [201])
    held.folder.mkdir()
    dead.folder.mkdir()
    dead.release()
    found = abandoned(tmp_path, "net")
    assert [slot.number for slot in found] == [201]
    assert is_held(held.folder)
    for slot in found:
        slot.release()
    assert not is_held(dead.folder)


def test_no_kube_context_and_no_proxy_gets_through() -> None:
    environ = {"KUBECONFIG": "/home/me/.kube/prod", "https_proxy": "http://proxy", "NO_PROXY": "*", "LANG": "C"}
    assert set(clean_environment(environ)) == {"LANG", "PATH"}


def test_a_spec_survives_its_file(tmp_path: Path) -> None:
    network = Network(207)
    spec = ClusterSpec("net-207", tmp_path, tmp_path / "kube", network.api, 6443, network.services, network)
    spec.write()
    assert ClusterSpec.read(tmp_path) == spec
    assert spec.url == "https://10.207.0.1:6443"


def test_gpu_labels_are_there_when_asked_for() -> None:
    assert NodeSpec().labels() == ""
    labels = NodeSpec(num_gpus=2, gpu_product="NVIDIA-A100-SXM4-40GB", gpu_memory_mib=40_960).labels().split(",")
    assert labels == [
        "nvidia.com/gpu.count=2",
        "nvidia.com/gpu.product=NVIDIA-A100-SXM4-40GB",
        "nvidia.com/gpu.memory=40960",
    ]


def test_a_missing_tool_is_named_with_the_command_that_installs_it() -> None:
    with pytest.raises(MissingTool, match="apt-get install --no-install-recommends -y no-such-package"):
        require((Tool("no-such-command", "no-such-package"),), may_install=False)


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ("go version go1.26.8 linux/amd64", (1, 26, 8)),
        ("go version go1.27 linux/arm64", (1, 27)),
        ("go 1.26.8", (1, 26, 8)),
    ],
)
def test_go_versions_are_compared_as_numbers(line: str, version: tuple[int, ...]) -> None:
    assert parse_version(line) == version


def test_equal_trees_give_equal_layers(tmp_path: Path) -> None:
    digests: list[str] = []
    for name in ("one", "two"):
        tree = tmp_path / name / "package"
        tree.mkdir(parents=True)
        (tree / "module.py").write_text("x = 1\n")
        os.utime(tree / "module.py", (len(digests), len(digests)))
        with open_layer(tmp_path / f"{name}.tar") as layer:
            layer.tree(tree.parent, "/app", lambda _: True, keep_times=False)
        digests.append(Blob.of_file(tmp_path / f"{name}.tar").digest)
    assert digests[0] == digests[1]


def test_an_archive_holds_what_its_manifest_names_but_for_base_layers(tmp_path: Path) -> None:
    base, top = layer_of(tmp_path, "base"), layer_of(tmp_path, "top")
    write_archive(tmp_path / "archive.tar", [Image("localhost/thing:1", (base.as_base(), top))])
    files = contents(tmp_path / "archive.tar")
    (described,) = json.loads(files["index.json"])["manifests"]
    manifest = json.loads(files[blob_name(described["digest"])])
    assert described["annotations"]["io.containerd.image.name"] == "localhost/thing:1"
    assert [layer["digest"] for layer in manifest["layers"]] == [base.digest, top.digest]
    assert blob_name(top.digest) in files
    assert blob_name(base.digest) not in files


def layer_of(folder: Path, name: str) -> Blob:
    with open_layer(folder / name) as layer:
        layer.text(f"etc/{name}", name)
    return Blob.of_file(folder / name)


def contents(archive: Path) -> dict[str, bytes]:
    with tarfile.open(archive) as tar:
        return {member.name: file.read() for member in tar if (file := tar.extractfile(member))}


def blob_name(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def test_volumes_of_two_namespaces_do_not_collide(tmp_path: Path) -> None:
    lists = [json.loads(manifests([HostVolume(namespace, "venv", tmp_path)])) for namespace in ("a", "b")]
    names = [
        item["metadata"]["name"] for items in lists for item in items["items"] if item["kind"] == "PersistentVolume"
    ]
    assert names == ["a-venv", "b-venv"]


def test_the_operator_lock_is_part_of_the_whole_lock() -> None:
    def pins(file: str) -> set[str]:
        return set(re.findall(r"^([a-z0-9.-]+==\S+)", (REPOSITORY / file).read_text(), re.MULTILINE))

    operator = pins("requirements-operator.lock")
    assert operator
    assert operator <= pins("requirements.lock"), "run `make lock`"
    assert not any(pin.startswith(("torch==", "triton==")) for pin in operator)
