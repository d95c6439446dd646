"""How an engine or inspection process ends: exit codes and the termination message, part of the launch contract.

The engine's process/exits.py writes them, the operator reads them in a pod's status and tells causes apart by them.
"""

from enum import IntEnum

from pydantic import BaseModel, ConfigDict, Field

TERMINATION_MESSAGE_PATH = "/dev/termination-log"
TERMINATION_MESSAGE_BYTES = 4096  # the kubelet keeps this much


class ExitCode(IntEnum):
    """Why an engine process ended. Values of 128 and above are the kernel's (137: killed, 143: SIGTERM not handled)."""

    OK = 0
    INTERNAL = 1
    BAD_ARGUMENTS = 2
    MODEL_UNREACHABLE = 3
    DOES_NOT_FIT = 4
    MODEL_UNSUPPORTED = 5
    ENGINE_STUCK = 6
    ACCESS_DENIED = 7  # the hub knows the model and does not give it to us: a person accepts terms or changes the token
    HUB_UNAVAILABLE = 8  # the hub throttles or does not answer: time helps
    DISK_FULL = 9  # the volume cannot take the model


class TerminationMessage(BaseModel):
    """Last words of an engine or inspection container, as JSON in TERMINATION_MESSAGE_PATH."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    reason: str = Field(max_length=64, description="CamelCase, usable as a condition reason")
    message: str = Field(description="what happened, to which object, what to do")
    retry_after_seconds: int | None = Field(default=None, description="how long the hub wants to be left alone")

    def encode(self) -> str:
        """JSON that fits the kubelet's limit, the message cut when it must be."""
        message = self.message
        while (
            len((text := self.model_copy(update={"message": message}).model_dump_json(exclude_none=True)).encode())
            > TERMINATION_MESSAGE_BYTES
        ):
            message = message[: len(message) * 3 // 4]
        return text
