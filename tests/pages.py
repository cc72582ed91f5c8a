"""Examples of pages, for tests that run them."""

import re

from tests.programs import REPOSITORY


def example(section: str, most: int) -> str:
    """The one Python example of a section of CONTRIBUTING.md, of at most so many lines."""
    page = (REPOSITORY / "CONTRIBUTING.md").read_text()
    _, found, rest = page.partition(f"## {section}\n")
    assert found
    (code,) = re.findall(r"```python\n(.*?)```", rest.partition("\n## ")[0], re.S)
    assert len(code.splitlines()) <= most
    return f"from __future__ import annotations\n{code}"
