"""Examples of pages, for tests that run them."""

import re

from tests.programs import REPOSITORY


def example(name: str, most: int) -> str:
    """The one Python example of a page of docs/extend, of at most so many lines."""
    page = (REPOSITORY / "docs" / "extend" / f"{name}.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.S)
    assert len(code.splitlines()) <= most
    return f"from __future__ import annotations\n{code}"
