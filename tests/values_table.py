"""The table of a chart's values as its README shows it: paths and defaults from values.yaml, words from the schema.

`PYTHONPATH=tests python -m values_table charts/tidegate` prints it.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

Schema = dict[str, Any]  # JSON Schema is free-form


def values_table(chart: Path) -> str:
    """Markdown, a row for each value that can be set."""
    values = yaml.safe_load((chart / "values.yaml").read_text())
    schema = json.loads((chart / "values.schema.json").read_text())
    rows = [f"| `{path}` | {_spell(default)} | {said} |" for path, default, said in _rows(values, schema, "")]
    return "\n".join(["| value | default | meaning |", "|---|---|---|", *rows])


def _rows(values: dict[str, Any], schema: Schema, prefix: str) -> Iterator[tuple[str, object, str]]:
    for name, default in values.items():
        node = schema["properties"][name]
        if isinstance(default, dict) and default and "properties" in node and name != "resources":
            yield from _rows(default, node, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", default, node["description"]


def _spell(default: object) -> str:
    return "" if default in ("", [], {}) else f"`{json.dumps(default)}`"


if __name__ == "__main__":
    print(values_table(Path(sys.argv[1])))
