"""Ready replicas that do not report their load: whether so many that the size is held, who, and what they answer. Pure.

scale.py asks. The words depend on all recent rounds together, so they stay while the situation does: a message that
changed with every scrape would be a status written at every scrape.
"""

from tidegate_core.samples import Round

MAX_SILENT_SHARE = 0.2


def has_metrics(recent: tuple[Round, ...]) -> bool | None:
    """One lost report is no news; none of the recent rounds complete is. None: no replica was ready to be asked."""
    asked = [each for each in recent if each.ready]
    if not asked:
        return None
    return any(len(each.ready) - len(each.samples) <= MAX_SILENT_SHARE * len(each.ready) for each in asked)


def silence(recent: tuple[Round, ...]) -> str:
    """Who of the ready replicas has reported in none of the rounds, with the first one's answer."""
    ready = max(recent, key=lambda each: each.time).ready
    heard = {name for each in recent for name in each.samples}
    silent = sorted(ready - heard)
    if not silent:
        return "more than a fifth of the ready replicas miss each round of GET /load; the pool keeps its size"
    name = silent[0]
    answer = min((each.failures[name] for each in recent if name in each.failures), default="no answer")
    do = "does" if len(silent) == 1 else "do"
    counted = f"{len(silent)} of {len(ready)} ready replicas {do} not report"
    return f"{name}: {answer} ({counted}); the pool keeps its size; see kubectl logs {name}"
