"""Decision records: their form, and the index in docs/adr/README.md."""

import re
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "adr"
RECORDS = sorted(FOLDER.glob("[0-9]*.md"))
STATUSES = {"Accepted", "Amended", "Superseded"}
AREAS = {"engine", "kernels", "gateway", "actors", "protocol", "models", "operations"}
SECTIONS = ("Context", "Decision", "Measured", "Tried and rejected", "Consequences")
OPTIONAL = {"Measured", "Tried and rejected"}


class Entry(NamedTuple):
    """The facts on which a record's own text and its row in the index must agree."""

    number: int
    title: str
    file: str
    status: str


def slug(title: str) -> str:
    """Return the title as it appears in a file name."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def entry(record: Path) -> Entry:
    """Read the first lines of a record. Fails if they have another form."""
    head = re.match(r"# (\d+)\. (.+)\n\nStatus: (\w+)", record.read_text())
    assert head, f"{record.name} must begin with '# NUMBER. TITLE', an empty line and 'Status: ...'"
    return Entry(int(head[1]), head[2], record.name, head[3])


def index() -> list[tuple[Entry, str, str]]:
    """Return the rows of the index table: the entry, its summary and its area."""
    rows = []
    for line in (FOLDER / "README.md").read_text().splitlines():
        if re.match(r"\| \d", line):
            number, link, summary, status, area = line.strip("| ").split(" | ")
            target = re.fullmatch(r"\[(.+)\]\((.+)\)", link)
            assert target, f"decision {number} must be a link in the index"
            rows.append((Entry(int(number), target[1], target[2], status), summary, area))
    return rows


def test_the_index_lists_every_record_in_order_of_numbers() -> None:
    assert [row for row, _, _ in index()] == [entry(record) for record in RECORDS]


def test_every_row_of_the_index_has_a_summary_of_one_sentence_a_status_and_an_area() -> None:
    for row, summary, area in index():
        assert summary.endswith("."), row.title
        assert len(summary) <= 120, row.title
        assert row.status in STATUSES, row.title
        assert area in AREAS, row.title


def test_numbers_are_unique() -> None:
    numbers = [entry(record).number for record in RECORDS]
    assert len(set(numbers)) == len(numbers)


def test_the_numbers_that_are_missing_are_named() -> None:
    numbers = {entry(record).number for record in RECORDS}
    text = re.sub(r"\s+", " ", (FOLDER / "README.md").read_text())
    (named,) = re.findall(r"Numbers never change; ([\d, and]+) were never used\.", text)
    assert [int(number) for number in re.findall(r"\d+", named)] == sorted({*range(1, max(numbers))} - numbers)


@pytest.mark.parametrize(
    ("title", "expected"),
    [
        ("A lost link ends the incarnation; there is no reconnection", "a-lost-link-ends-the-incarnation-there-is-no"),
        ("int8 and int4 weights", "int8-and-int4-weights"),
        ("SCHED_BATCH (again)", "sched-batch-again"),
    ],
)
def test_a_slug_has_words_and_hyphens_only(title: str, expected: str) -> None:
    assert slug(title).startswith(expected)
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", slug(title))


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.stem[:4])
def test_a_file_is_named_by_number_and_title(record: Path) -> None:
    found = entry(record)
    assert record.name == f"{found.number:04d}-{slug(found.title)}.md"


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.stem[:4])
def test_a_record_has_the_usual_sections_in_order(record: Path) -> None:
    sections = re.findall(r"^## (.+)$", record.read_text(), flags=re.MULTILINE)
    assert [name for name in SECTIONS if name not in OPTIONAL or name in sections] == sections


def test_a_record_that_is_no_longer_in_force_as_written_names_the_later_one() -> None:
    for record in RECORDS:
        found = entry(record)
        if found.status != "Accepted":
            line = record.read_text().split("\n\n")[1]
            later = [int(number) for number in re.findall(r"\]\((\d{4})-", line)]
            assert any(number > found.number for number in later), f"{record.name}: link the later decision"


def test_a_link_that_gives_a_number_leads_to_the_record_of_that_number() -> None:
    for page in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]:
        for label, number in re.findall(r"\[(?:decision\s+)?(\d+)\]\((?:\S*adr/)?(\d{4})-", page.read_text()):
            assert int(label) == int(number), f"{page.name}: [{label}] leads to {number}"


def test_every_record_that_a_source_comment_names_exists() -> None:
    numbers = {entry(record).number for record in RECORDS}
    packages = ("protocol", "actors", "gateway", "workers", "cli", "models", "bench", "tests")
    named = [
        (file, int(number))
        for package in packages
        for file in (ROOT / package).rglob("*.py")
        for number in re.findall(r"docs/adr/(\d{4})", file.read_text())
    ]
    assert named
    for file, number in named:
        assert number in numbers, f"{file.relative_to(ROOT)} names decision {number}"
