"""Why a command about a cluster cannot answer: one class per exit code.

ClusterError
├── NoSuchObject  the pool or pod that was named is not there (exit 3)
└── NotAllowed    what was asked must not be done: the message says why (exit 2)
"""


class ClusterError(Exception):
    """Base: the cluster cannot be reached or refused (exit 1)."""

    exit_code = 1


class NoSuchObject(ClusterError):
    """A name is wrong, or the namespace."""

    exit_code = 3


class NotAllowed(ClusterError):
    """The user asks for something else."""

    exit_code = 2
