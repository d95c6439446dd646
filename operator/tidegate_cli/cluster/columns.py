"""Text as kubectl prints it: columns under headings, ages, amounts. Pure."""

from collections.abc import Sequence
from datetime import datetime, timedelta

GAP = "   "
NOTHING = "-"


def columns(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Left-aligned; the last column is as long as it wants."""
    table = [tuple(headings), *map(tuple, rows)]
    widths = [max(len(row[index]) for row in table) for index in range(len(headings))]
    lines = (GAP.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table)
    return "\n".join(lines)


def age(since: datetime, now: datetime) -> str:
    """In the largest two units that matter: 40s, 5m, 3h20m, 12d."""
    seconds = max(0, int((now - since) / timedelta(seconds=1)))
    if seconds < 120:
        return f"{seconds}s"
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if minutes < 60:
        return f"{minutes}m"
    if hours < 24:
        return f"{hours}h{minutes % 60}m" if minutes % 60 else f"{hours}h"
    return f"{days}d"


def share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f}%" if whole else NOTHING


def section(title: str, body: str) -> str:
    """Nothing where there is nothing to say."""
    return f"{title}\n" + "\n".join(f"  {line}" for line in body.splitlines()) if body else ""
