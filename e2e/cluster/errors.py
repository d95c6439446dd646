"""The errors of local clusters: one class per reaction.

ClusterError
├── MissingTool     the machine lacks a program: install it with the command in the message
├── BuildFailed     the Kubernetes components did not compile: read the compiler's lines
├── ClusterFailed   a cluster did not come up or broke: read the log lines in the message
├── NoFreeSlot      too many clusters run side by side: take one down
├── KubectlFailed   the API server refused, or kubectl could not reach it
└── ApiRefused      the same of a request without kubectl
"""


class ClusterError(Exception):
    """Base of everything that a local cluster raises on purpose."""


class MissingTool(ClusterError):
    """A program that clusters need is not installed and could not be installed."""


class BuildFailed(ClusterError):
    """go build ended with an error."""


class ClusterFailed(ClusterError):
    """A component ended, or something was not ready in time."""


class NoFreeSlot(ClusterError):
    """Every slot is taken by a running cluster."""


class KubectlFailed(ClusterError):
    """kubectl ended with an error; the message holds its words."""


class ApiRefused(ClusterError):
    """A request was refused with this HTTP status, or got no answer (None); the message holds the server's words."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status
