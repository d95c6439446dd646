"""The operator's errors: one class per reaction, each message says what, which object and what to do.

OperatorError
├── KubeError        the API server refused or could not be reached: the key is tried again with backoff
│   ├── Unreachable      no answer: connection refused, reset, timed out
│   ├── BadRequest       400, 413, 415: our own manifest is malformed
│   ├── Unauthorized     401: the credentials expired
│   ├── Forbidden        403: a rule is missing from the role, or an admission plugin or quota said no
│   ├── NotFound         404
│   ├── Conflict         409: another writer was faster, or the object exists already
│   ├── Gone             410: a list token expired
│   ├── Invalid          422: the server's schema or a policy refuses the object; retrying alone will not help
│   ├── TooManyRequests  429: the key comes back when the server says
│   └── ServerFault      500 and above
├── NotLeading       another operator may lead by now: nothing is written and no engine told, the process ends
├── EngineUnreachable an engine did not answer its admin port: its sample is missing
├── BadPrices        the price list cannot be used: the one before stays in force
├── UnreadablePool   a stored pool is not what our CRD allows: another CRD is installed, a person is needed
└── BadRevision      a stored ControllerRevision cannot be read: it is treated as absent and rendered anew
"""


class OperatorError(Exception):
    """Base of everything tidegate_operator raises on purpose."""


class KubeError(OperatorError):
    """A request to the API server failed; `status` is the HTTP status, None when there was no answer."""

    def __init__(
        self, message: str, status: int | None = None, reason: str = "", retry_after_seconds: float = 0.0
    ) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.retry_after_seconds = retry_after_seconds


class Unreachable(KubeError):
    """No answer from the API server."""


class BadRequest(KubeError):
    """HTTP 400, 413 or 415."""


class Unauthorized(KubeError):
    """HTTP 401."""


class Forbidden(KubeError):
    """HTTP 403."""


class NotFound(KubeError):
    """HTTP 404."""


class Conflict(KubeError):
    """HTTP 409."""


class Gone(KubeError):
    """HTTP 410."""


class Invalid(KubeError):
    """HTTP 422."""


class TooManyRequests(KubeError):
    """HTTP 429."""


class ServerFault(KubeError):
    """HTTP 500 and above."""


class NotLeading(OperatorError):
    """This operator does not hold the lease."""


class EngineUnreachable(OperatorError):
    """An engine's admin port gave no usable answer."""


class BadPrices(OperatorError):
    """The mounted price list is not a mapping of names to decimal numbers."""


class UnreadablePool(OperatorError):
    """A stored InferencePool is not one of the schema we know."""


class BadRevision(OperatorError):
    """A ControllerRevision of ours does not hold what we wrote."""
