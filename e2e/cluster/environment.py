"""The environment that our processes get: no way leads from it to a cluster that is not ours.

kubectl and Kubernetes clients read KUBECONFIG, and HTTP clients read proxy variables; both are taken out, and
kubeconfigs are always named explicitly.
"""

from collections.abc import Mapping

FOREIGN = frozenset({"KUBECONFIG", "KUBERC", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"})
SYSTEM_FOLDERS = "/usr/local/sbin:/usr/sbin:/sbin"  # ip, nft and runc live there, and users often lack them on PATH


def clean_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` without kube contexts and proxies, and with the folders of system tools on PATH."""
    kept = {name: value for name, value in environ.items() if name.upper() not in FOREIGN}
    kept["PATH"] = f"{environ.get('PATH', '/usr/bin:/bin')}:/usr/local/go/bin:{SYSTEM_FOLDERS}"
    return kept
