"""The READMEs lead where they say."""

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
READMES = sorted(
    each
    for folder in (".", ".github", "sweeplab", "studies", "dashboards", "tests")
    for each in (REPOSITORY / folder).glob(
        {".": "README.md", ".github": "*.md"}.get(folder, "**/README.md")
    )
)
LONGEST = 150


@pytest.mark.parametrize("readme", READMES, ids=lambda each: str(each.relative_to(REPOSITORY)))
def test_every_link_leads_to_a_file(readme):
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", readme.read_text("utf-8"))
    assert not [
        link for link in links if "://" not in link and not (readme.parent / link).exists()
    ]


@pytest.mark.parametrize("readme", READMES, ids=lambda each: str(each.relative_to(REPOSITORY)))
def test_every_file_of_the_package_that_is_named_exists(readme):
    named = re.findall(
        r"`((?:sweeplab|tests|studies|dashboards)/[\w/.-]+\.(?:py|yaml|md))`",
        readme.read_text("utf-8"),
    )
    assert not [each for each in named if not (REPOSITORY / each).exists()]


def test_every_protection_is_tested_where_it_says():
    section = (
        (REPOSITORY / "studies" / "README.md")
        .read_text("utf-8")
        .partition("## What is protected")[2]
    )
    rows = [
        line
        for line in section.partition("Not protected:")[0].splitlines()
        if line.startswith("| ")
    ][1:]
    assert len(rows) > 15
    for row in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", row.split(" | ")[-1])
        assert named, row
        for file, function in named:
            assert f"def {function or 'test'}" in (REPOSITORY / file).read_text("utf-8"), (
                f"{file}::{function}"
            )


def test_the_readme_is_short():
    assert len((REPOSITORY / "README.md").read_text("utf-8").splitlines()) <= LONGEST


def test_what_the_contributing_guide_names_is_defined_there():
    guide = (REPOSITORY / ".github" / "CONTRIBUTING.md").read_text("utf-8")
    places = re.findall(r"`(sweeplab/[\w/]+\.py)`,? [^`|]*`([A-Za-z_.]+)`", guide)
    assert len(places) >= 5
    for file, name in places:
        last = name.rpartition(".")[2]
        assert re.search(rf"\b{last}\b", (REPOSITORY / file).read_text("utf-8")), (file, name)
