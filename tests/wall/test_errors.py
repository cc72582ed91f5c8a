"""The one line that a user sees."""

from __future__ import annotations

import pytest

from labelwall.wall.errors import LONGEST, InvalidInput


@pytest.mark.parametrize(
    "value", ["x" * 3_000_000, b"x" * 3_000_000, list(range(10**6)), {"a": "y" * 10**6}]
)
def test_a_long_value_is_cut(value: object) -> None:
    error = InvalidInput("data.root", "a folder", value, "Shorten it.")
    assert LONGEST < len(str(error)) < LONGEST + 80
    assert str(error).endswith("... Shorten it.") or "...." in str(error)
    assert error.found is value


@pytest.mark.parametrize("value", ["x" * LONGEST, 3, None, ["a"], "a\nb"])
def test_a_short_value_is_shown_as_it_is(value: object) -> None:
    assert str(InvalidInput("a", "b", value)) == f"`a` must be b. Found {value!r}."
