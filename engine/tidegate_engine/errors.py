"""The engine's errors: one class per reaction, each message says what, which request and what to do.

EngineError
├── BadRequest   the request makes no sense (an empty prompt): the client corrects it (400)
├── BadGrammar   a schema, regex or grammar that cannot be compiled: the client corrects it (400)
├── GrammarFailed following a grammar became too costly in a step: this request ends, no other
├── NoToken      a row's logits are not numbers, or everything is forbidden: this request ends, no other
├── Refused      not accepted at the door, and counted by its `refusal`
│   ├── NeverFits        it could not run even alone: the client shortens it (400)
│   ├── QueueFull        too much load: the client comes back after retry_after_seconds (503)
│   ├── TenantOverShare  the queue is full and this tenant holds more than its share: it comes back later (429)
│   └── Draining         this engine takes no new requests: the client goes to another replica (503)
├── OutOfBlocks  the block pool was asked for more than it has: admission is wrong, our own bug
└── EngineFailed steps fail whatever is in them: the process has to be restarted
"""

from tidegate_engine.counters import Refusal


class EngineError(Exception):
    """Base of everything tidegate_engine raises on purpose."""


class BadRequest(EngineError):
    """A request that no engine could run."""


class NoToken(EngineError):
    """A row of a step that no token can be drawn for."""


class Refused(EngineError):
    """A request that was not accepted; `refusal` says why, as the metrics name it."""

    refusal: Refusal


class BadGrammar(EngineError):
    """A schema, regular expression or grammar that cannot be compiled within the limits."""


class GrammarFailed(EngineError):
    """A compiled grammar that cannot be followed any further."""


class NeverFits(Refused):
    """A request that needs more tokens or blocks than there will ever be."""

    refusal = Refusal.NEVER_FITS


class QueueFull(Refused):
    """Refused for lack of capacity; `retry_after_seconds` comes from the same forecast as the refusal."""

    def __init__(self, message: str, *, retry_after_seconds: float, refusal: Refusal) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds
        self.refusal = refusal


class TenantOverShare(Refused):
    """Refused for lack of capacity to a tenant that has had more than its share of it; others are still let in."""

    refusal = Refusal.TENANT_SHARE

    def __init__(self, message: str, *, retry_after_seconds: float) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class Draining(Refused):
    """Refused because this engine is about to go away."""

    refusal = Refusal.DRAINING

    def __init__(self, message: str, *, retry_after_seconds: float) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class OutOfBlocks(EngineError):
    """More KV blocks were asked for than are free."""


class EngineFailed(EngineError):
    """The runner fails for every request; only a new process helps."""
