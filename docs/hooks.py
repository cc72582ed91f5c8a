"""Links of the pages to files that are no pages: shown as their paths. A reader is private, too."""

import logging
import re
from typing import Any

OUTSIDE = re.compile(
    r"\[([^\]]*)\]\((?:\.\./)?((?:configs|benchmarks|tests|LICENSE|CITATION)[^)]*)\)"
)
ELSEWHERE = re.compile(
    r"<(?:script|img|iframe|source|link(?![^>]*rel=.?canonical))\b[^>]*"
    r"\b(?:src|href)=[\"']?(?:https?:)?//[^> ]*"
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
    text = re.sub(r"\]\(([\w/.]+)\.ipynb", r"](\1.md", text)
    return text.replace("](docs/", "](").replace("](gallery)", "](gallery/index.md)")


def on_post_page(output: str, page: Any, **_: Any) -> None:
    """A warning, which fails the build, where a page loads anything from another server."""
    for found in ELSEWHERE.findall(output):
        logging.getLogger("mkdocs.hooks").warning("%s loads from elsewhere: %s", page.url, found)
