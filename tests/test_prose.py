"""The pages that a person reads, and the docstrings, are written in short plain sentences."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
EXTEND = ("backbone", "data_set", "extractor", "mechanism", "objective")
PAGES = (
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "docs/decisions.md",
    *(f"docs/extend/{name}.md" for name in EXTEND),
    "docs/guide.md",
    "docs/methods.md",
    "docs/pitfalls.md",
    "docs/privacy.md",
    "docs/results.md",
    "docs/scale.md",
    "docs/service.md",
    "docs/tutorial.md",
)
MEAN, LONGEST = 25, 35  # words
ITEM = re.compile(r"^(?:[-*]|\d+\.) +")


def prose(page: str) -> Iterator[str]:
    """The lines of a page without its code, tables, headings and pictures.

    A line with four blanks before it is code, unless it continues a list.
    """
    listed = fenced = False
    for line in page.splitlines():
        text = line.lstrip("> ")
        fenced ^= line.startswith("```")
        listed = bool(ITEM.match(text)) or (listed and (not text or line.startswith("  ")))
        code = re.match("(?:> )? {4}", line) and not listed
        if not (code or fenced or text.startswith(("| ", "|-", "#", "![", "```"))):
            yield ITEM.sub("\n", text)
        else:
            yield ""


def sentences(page: str) -> list[str]:
    """Each sentence of a page; code within it is one word, the target of a link is none."""
    text = re.sub(r"`[^`]+`", "code", "\n".join(prose(page)))
    text = re.sub(r"\]\([^)]*\)", "]", text)
    parts = [" ".join(part.split()) for part in re.split(r"\n\n", text)]
    found = [one for part in parts for one in re.split(r"(?<=[.!?])[*)\]\"]* +(?=\S)", part)]
    return [one for one in found if words(one)]


def words(sentence: str) -> list[str]:
    """The words: what has a letter or a digit."""
    return [word for word in sentence.split() if re.search(r"\w", word)]


@pytest.mark.parametrize("page", PAGES)
def test_sentences_are_short(page: str) -> None:
    found = sentences((REPOSITORY / page).read_text())
    assert len(found) > 10
    assert [s for s in found if len(words(s)) > LONGEST] == []
    assert sum(len(words(s)) for s in found) / len(found) <= MEAN


ROOMS = ("wall", "teacher", "student", "experiment")
BAD = ("Of", "Those", "As", "That", "The same", "From", "Where")  # a docstring's first word
FIRST = 25  # words of its first sentence


def docstrings(root: Path) -> Iterator[tuple[str, str]]:
    """The place and the text of each docstring of the product."""
    rooms = [path for room in ROOMS for path in sorted((root / room).rglob("*.py"))]
    for path in (root / "pipeline.py", *rooms):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node)
                name = getattr(node, "name", "")
                if text:
                    yield f"{path.relative_to(root)} {name}".strip(), text


def unclear(text: str) -> bool:
    """Whether a docstring begins with a word of BAD, or with a long sentence."""
    first = sentences(text.split("\n\n")[0])[0]
    return re.match(rf"(?:{'|'.join(BAD)})\b", first) is not None or len(words(first)) > FIRST


def test_docstrings_begin_plainly() -> None:
    assert [place for place, text in docstrings(REPOSITORY) if unclear(text)] == []


@pytest.mark.parametrize(
    ("page", "found"),
    [
        ("One two. Three `four five` six.", ["One two.", "Three code six."]),
        ("# No\n\n| a | b |\n\n    code = 1\n\nSee [this](a/b.md).", ["See [this]."]),
        ("- One.\n- Two\n  three.\n\n    Four.\n\nFive.", ["One.", "Two three.", "Four.", "Five."]),
        ("Costs 1.5 points, e.g.\n```\ncode\n```", ["Costs 1.5 points, e.g."]),
    ],
)
def test_sentences_are_found(page: str, found: list[str]) -> None:
    assert sentences(page) == found


@pytest.mark.parametrize(
    ("text", "bad"),
    [
        ("Of a round: its rows.", True),
        ("The same rows again.", True),
        ("Offers rows. Of these, some.", False),
        ("The sameness of rows.", False),
        ("Rows " + "of rows " * 13, True),
    ],
)
def test_an_unclear_docstring_is_found(text: str, bad: bool) -> None:
    assert unclear(text) == bad
