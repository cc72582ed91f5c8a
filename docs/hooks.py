"""Links of the pages to files that are no pages: shown as their paths."""

import re
from typing import Any

OUTSIDE = re.compile(
    r"\[([^\]]*)\]\((?:\.\./)?((?:configs|benchmarks|tests|LICENSE|CITATION)[^)]*)\)"
)
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}


def on_page_markdown(markdown: str, **_: Any) -> str:
    """The page's text with links that work on the site."""
    text = OUTSIDE.sub(r"`\2`", markdown)
    for name, page in PAGES.items():
        text = re.sub(rf"\]\((?:\.\./)?{re.escape(name)}", f"]({page}", text)
    return text.replace("](docs/", "](").replace("](first_steps.ipynb", "](first_steps.md")
