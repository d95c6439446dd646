"""Writes the chart's dashboard: `python -m observability [ROOT]`, part of `make generate`."""

import sys
from pathlib import Path

from observability.dashboard import dashboard_json

DASHBOARD_FILE = Path("charts/tidegate/files/dashboard.json")

if __name__ == "__main__":
    root = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    (root / DASHBOARD_FILE).write_text(dashboard_json(), encoding="utf-8")
