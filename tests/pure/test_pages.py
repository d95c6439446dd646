"""The project's pages find each other: the README lists all of them, and no link between them leads nowhere."""

import re
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("docs", "charts", "examples")
PAGES = [*ROOT.glob("*.md"), *chain.from_iterable(sorted((ROOT / folder).rglob("*.md")) for folder in FOLDERS)]
LINK = re.compile(r"\]\(([^)\s]+)\)")


def anchors(page: Path) -> set[str]:
    """Of its headings, as they are made by whoever shows Markdown."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_readme_lists_every_page() -> None:
    listed = (ROOT / "README.md").read_text().partition("## Read on")[2]
    assert [page.name for page in sorted((ROOT / "docs").glob("*.md")) if f"(docs/{page.name})" not in listed] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_link_leads_nowhere(page: Path) -> None:
    lost = []
    for link in LINK.findall(page.read_text()):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if "://" in link or (target.exists() and (not anchor or anchor in anchors(target))):
            continue
        lost.append(link)
    assert lost == []
