"""The pool's last verdicts about the heads of lines, so that it is not asked again in every step what it just refused.

A verdict holds until somebody starts or ends, or until the step at which it may be another. The scheduler keeps them.
"""

from typing import NamedTuple

from tidegate_engine.request import Request, ServiceClass


class Refusal(NamedTuple):
    """Of the head of a line."""

    request_id: str
    is_partial: bool
    until_step: int


class Refusals:
    """At most one for each service class."""

    def __init__(self) -> None:
        self._by_class: dict[ServiceClass, Refusal] = {}

    def still_hold(self, head: Request, step: int, *, is_partial: bool) -> bool:
        refusal = self._by_class.get(head.terms.service_class)
        return refusal is not None and refusal[:2] == (head.request_id, is_partial) and step < refusal.until_step

    def note(self, head: Request, until_step: int, *, is_partial: bool) -> None:
        self._by_class[head.terms.service_class] = Refusal(head.request_id, is_partial, until_step)

    def forget(self, changed: Request) -> None:
        """It starts, decodes or ends. Spot requests do not matter to guaranteed ones."""
        if self._by_class:
            self._by_class.pop(ServiceClass.SPOT, None)
            if not changed.is_spot:
                self._by_class.pop(ServiceClass.GUARANTEED, None)
