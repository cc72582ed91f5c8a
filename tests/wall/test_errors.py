"""The one line that a user sees."""

import pytest

from labelwall.wall.errors import LONGEST, LONGEST_TEXT, InvalidInput, LabelwallError


@pytest.mark.parametrize(
    "value", ["x" * 3_000_000, b"x" * 3_000_000, list(range(10**6)), {"a": "y" * 10**6}]
)
def test_a_long_value_is_cut(value):
    error = InvalidInput("data.root", "a folder", value, "Shorten it.")
    assert LONGEST < len(str(error)) < LONGEST + 80
    assert str(error).endswith("... Shorten it.") or "...." in str(error)
    assert error.found is value


@pytest.mark.parametrize("value", ["x" * LONGEST, 3, None, ["a"], "a\nb"])
def test_a_short_value_is_shown_as_it_is(value):
    assert str(InvalidInput("a", "b", value)) == f"`a` must be b. Found {value!r}."


def test_no_text_quotes_a_whole_file():
    text = f"Parser key data.root: Expected a str. Got value: {'x' * 2_800_000}"
    assert len(str(LabelwallError(text))) < LONGEST + 60
    assert str(LabelwallError(text)).endswith("xxx...")
    assert len(str(LabelwallError("a b " * 10**6))) == LONGEST_TEXT + 3
    path = "/".join(["folder"] * 25)
    assert str(LabelwallError(f"Found {path!r}.")) == f"Found {path!r}."
