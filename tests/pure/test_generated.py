"""Files that follow from Python are current: the CRD, its copy in the chart, the chart's roles, the API reference."""

from pathlib import Path

import pytest

from tidegate_operator.generated import generated_files, main

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", generated_files())
def test_a_committed_generated_file_is_current(name: str) -> None:
    on_disk = (ROOT / name).read_text() if (ROOT / name).exists() else ""
    assert on_disk == generated_files()[name], f"{name} is stale: run `make generate` and commit the result"


def test_generating_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    main(tmp_path)
    first = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    main(tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == first
    assert len(first) == len(generated_files())
