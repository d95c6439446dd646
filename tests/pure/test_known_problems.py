"""The table of known problems names tests that exist, so that it cannot rot. They are read, not imported."""

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from collected_problems import COLLECTED

ROOT = Path(__file__).parents[2]
REFERENCE = re.compile(r"[\w.-]+/[\w.-]+(#\d+| docs on [\w -]+)")
HEADS = ("| reported as", "|---")
TEST = re.compile(r"`((?:tests|e2e)/[\w/]+\.py)::(test_\w+)`")


class Problem(NamedTuple):
    """One row."""

    references: tuple[str, ...]
    problem: str
    answer: str
    tests: tuple[tuple[str, str], ...]


def read_row(line: str) -> Problem:
    """Raises AssertionError for a row that is not written as the others are."""
    _, references, problem, answer, tests, _ = (cell.strip() for cell in line.split("|"))
    named = tuple(references.split(", "))
    assert all(REFERENCE.fullmatch(each) for each in named), references
    found = TEST.findall(tests)
    spelt = "<br>".join(f"`{path}::{name}`" for path, name in found)
    assert found, f"{references}: no test holds it"
    assert len(found) == len(set(found)), f"{references}: a test twice"
    assert spelt == tests, f"{references}: not only tests: {tests}"
    return Problem(named, problem, answer, tuple(found))


def table() -> list[Problem]:
    lines = (ROOT / "docs" / "known-problems.md").read_text().splitlines()
    return [read_row(line) for line in lines if line.startswith("|") and not line.startswith(HEADS)]


@cache
def names_of_tests(path: str) -> frozenset[str]:
    file = ROOT / path
    if not file.is_file():
        return frozenset()
    nodes = ast.walk(ast.parse(file.read_text()))
    return frozenset(node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def test_every_test_of_the_table_exists() -> None:
    missing = [f"{path}::{name}" for row in table() for path, name in row.tests if name not in names_of_tests(path)]
    assert not missing, f"rename them in docs/known-problems.md too: {missing}"


def test_every_problem_that_was_collected_has_its_row() -> None:
    problems = [line.strip() for group in COLLECTED.values() for line in group.strip().splitlines()]
    assert len(problems) == len(set(problems)) == 96
    answered = {each for row in table() for each in row.references}
    missing = [each for problem in problems for each in problem.split(", ") if each not in answered]
    assert not missing, f"docs/known-problems.md needs a row for {missing}"


def test_every_problem_stands_in_one_row_with_one_sentence_each() -> None:
    rows = table()
    references = [each for row in rows for each in row.references]
    assert len(rows) > 50
    assert sorted(set(references)) == sorted(references)
    for row in rows:
        for sentence in (row.problem, row.answer):
            assert sentence.endswith("."), sentence
            assert ". " not in sentence, sentence


@pytest.mark.parametrize(
    "line",
    [
        "| a/b#1 | Problem. | Answer. | `tests/pure/test_x.py` |",
        "| a/b#1 | Problem. | Answer. | |",
        "| a/b#1 | Problem. | Answer. | `tests/pure/x.py::test_y`<br>`tests/pure/x.py::test_y` |",
        "| a/b#1 and others | Problem. | Answer. | `tests/pure/test_x.py::test_y` |",
    ],
    ids=["a file alone", "no test", "a test twice", "no reference"],
)
def test_a_row_that_holds_nothing_is_noticed(line: str) -> None:
    with pytest.raises(AssertionError):
        read_row(line)
