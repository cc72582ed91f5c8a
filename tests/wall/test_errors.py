"""The one line that a user sees."""

import pickle

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


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (InvalidInput.needless("a.b", "it has c"), "Leave out `a.b`: it has c."),
        (InvalidInput.needless("a", "it has c", "Or d."), "Leave out `a`: it has c. Or d."),
        (InvalidInput.missing("a", "c needs it", "Or d."), "Give `a`: c needs it. Or d."),
        (InvalidInput("a", "b", 1, "Or d.", text="Not a."), "Not a. Or d."),
    ],
)
def test_what_has_to_be_left_out_or_given_is_said_with_the_reason(error, text):
    again = pickle.loads(pickle.dumps(error))
    assert str(error) == str(again) == text
    assert vars(error) == vars(again)


def test_no_text_quotes_a_whole_file():
    text = f"Parser key data.root: Expected a str. Got value: {'x' * 2_800_000}"
    assert len(str(LabelwallError(text))) < LONGEST + 60
    assert str(LabelwallError(text)).endswith("xxx...")
    assert len(str(LabelwallError("a b " * 10**6))) == LONGEST_TEXT + 3
    path = "/".join(["folder"] * 25)
    assert str(LabelwallError(f"Found {path!r}.")) == f"Found {path!r}."
