"""How long a replica that leaves may go on answering: the user's word, or what its requests were seen to take. Pure.

Learned values enter with a new template only, so that none of them ever restarts a pod; scaling down reads them from
the template that the pods have.
"""

from collections.abc import Iterable
from math import ceil

from tidegate_core.telemetry import LoadReport
from tidegate_operator.api.v1alpha1 import InferencePool

DEFAULT_SECONDS = 120
LONGEST_SECONDS = 3600
MARGIN = 1.25  # the slowest request in a hundred may begin the moment the drain does


def drain_seconds(pool: InferencePool, loads: Iterable[LoadReport]) -> int:
    """For a template rendered now. Waiting is part of it: what was accepted is answered."""
    if pool.spec.drain.timeout_seconds is not None:
        return pool.spec.drain.timeout_seconds
    seen = [load.request_p99_seconds for load in loads if load.request_p99_seconds is not None]
    learned = ceil(max(seen, default=0.0) * MARGIN)
    return min(max(DEFAULT_SECONDS, learned), LONGEST_SECONDS)
