"""Certificates of one cluster: an authority of its own, leaves for components and users, and their kubeconfigs.

openssl makes them (5 ms each); every cluster throws its authority away with its folder.
"""

import base64
import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.errors import ClusterFailed

VALID_DAYS = 30
BLANK_CONFIG = "[req]\ndistinguished_name = none\n[none]\n"  # the machine's openssl.cnf would add extensions of its own
LEAF_EXTENSIONS = (
    "basicConstraints=critical,CA:FALSE",
    "keyUsage=critical,digitalSignature",
    "extendedKeyUsage=serverAuth,clientAuth",
)
AUTHORITY_EXTENSIONS = ("basicConstraints=critical,CA:TRUE", "keyUsage=critical,keyCertSign,cRLSign,digitalSignature")


@dataclass(frozen=True)
class Authority:
    """The certificate authority in `folder`; FILE.crt and FILE.key lie side by side there."""

    folder: Path

    @classmethod
    def create(cls, folder: Path) -> "Authority":
        folder.mkdir(mode=0o700)
        (folder / "openssl.cnf").write_text(BLANK_CONFIG)
        authority = cls(folder)
        authority._request("ca", "/CN=tidegate-local", AUTHORITY_EXTENSIONS, ())
        authority._service_account_keys()
        return authority

    @property
    def certificate(self) -> Path:
        return self.folder / "ca.crt"

    def issue(self, file: str, subject: str, alternative_names: str = "") -> None:
        """One leaf; `subject` as openssl writes it, O= being the user's groups and CN= the user."""
        names = (f"subjectAltName={alternative_names}",) if alternative_names else ()
        self._request(file, subject, (*LEAF_EXTENSIONS, *names), ("-CA", "ca.crt", "-CAkey", "ca.key"))

    def kubeconfig(self, file: str, server: str) -> str:
        """A kubeconfig for the leaf `file` with everything embedded (JSON, which is YAML)."""
        user = {
            "client-certificate-data": self._embedded(f"{file}.crt"),
            "client-key-data": self._embedded(f"{file}.key"),
        }
        return self._kubeconfig(user, server)

    def token_kubeconfig(self, token: str, server: str) -> str:
        """A kubeconfig for the holder of a bearer token."""
        return self._kubeconfig({"token": token}, server)

    def _kubeconfig(self, user: dict[str, str], server: str) -> str:
        cluster = {"server": server, "certificate-authority-data": self._embedded("ca.crt")}
        return json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "tidegate-local", "cluster": cluster}],
                "users": [{"name": "user", "user": user}],
                "contexts": [{"name": "tidegate-local", "context": {"cluster": "tidegate-local", "user": "user"}}],
                "current-context": "tidegate-local",
            }
        )

    def _embedded(self, file: str) -> str:
        return base64.b64encode((self.folder / file).read_bytes()).decode()

    def _request(self, file: str, subject: str, extensions: tuple[str, ...], signer: tuple[str, ...]) -> None:
        added = [part for extension in extensions for part in ("-addext", extension)]
        self._openssl(
            "req", "-x509", "-config", "openssl.cnf", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
            "-nodes", "-days", str(VALID_DAYS), "-subj", subject, "-keyout", f"{file}.key", "-out", f"{file}.crt",
            *signer, *added,
        )  # fmt: skip

    def _service_account_keys(self) -> None:
        self._openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", "sa.key")
        self._openssl("ec", "-in", "sa.key", "-pubout", "-out", "sa.pub")

    def _openssl(self, *arguments: str) -> None:
        done = subprocess.run(["openssl", *arguments], cwd=self.folder, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ClusterFailed(f"`openssl {' '.join(arguments)}` failed: {done.stderr.strip()}")


def write_private(path: Path, text: str) -> None:
    """A file that only its owner reads, from its first byte on."""
    path.touch(mode=0o600)
    path.write_text(text)
