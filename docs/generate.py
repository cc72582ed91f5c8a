"""Pages that the code, the notebooks and the top level's files give."""

import base64
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import mkdocs_gen_files

from labelwall import pipeline
from labelwall.docs.hooks import PAGES
from labelwall.experiment.config.config import Config
from labelwall.experiment.config.settings import explained
from labelwall.student.student_config import StudentConfig
from labelwall.teacher.custody.groups import (
    BudgetConfig,
    CapsConfig,
    EvaluateConfig,
    RoundConfig,
)
from labelwall.teacher.mechanisms.registry import MECHANISMS
from labelwall.teacher.service.service_config import ServiceConfig
from labelwall.teacher.shards.scale_config import ScaleConfig
from labelwall.wall.datasets.data_config import DataConfig

TOP = Path(__file__).parents[1]
SECTIONS = {
    "": Config,
    "data": DataConfig,
    "budget": BudgetConfig,
    "caps": CapsConfig,
    "evaluate": EvaluateConfig,
    "rounds[]": RoundConfig,
    "student": StudentConfig,
    "scale": ScaleConfig,
    "service": ServiceConfig,
}
SURFACE = {  # the names of `import labelwall as lw`, and the members that are shown
    "fit": ("api", ()),
    "Data": ("data", ()),
    "plan": ("api", ()),
    "compare": ("api", ()),
    "load": ("model", ()),
    "Model": (
        "model",
        (
            *("predict", "predict_proba", "score", "update", "save_pretrained", "summary"),
            *("report_", "epsilon_", "delta_", "estimate_"),
        ),
    ),
    "audit": ("model", ()),
    "attack": ("attack", ()),
    "sklearn.LabelwallClassifier": ("sklearn", ("fit", "predict", "predict_proba")),
}
INSIDE = (
    "teacher.teacher.Teacher",
    "teacher.ledger.ledger.Ledger",
    "teacher.ledger.auditor",
    "teacher.accounting.accountant",
    "teacher.accounting.risk",
    "teacher.accounting.contest",
    "teacher.noise.sampler",
    "teacher.ledger.anchor",
    "teacher.ledger.individual_budgets",
    "teacher.baselines.private_classifiers",
    "teacher.mechanisms.base",
    "wall.messages",
    "wall.client",
    "student.train",
    "student.losses",
)


def table(prefix: str, kind: type) -> Iterator[str]:
    """The settings of one dataclass, as its docstring explains them."""
    known = explained(kind)
    yield "\n| setting | default | meaning |\n|---|---|---|\n"
    for entry in dataclasses.fields(kind):
        name = f"{prefix}.{entry.name}".strip(".")
        absent = entry.default is dataclasses.MISSING
        default = "" if absent else f"`{entry.default}`".replace("|", "\\|")
        meaning = known.get(entry.name, "").replace("|", "\\|")
        yield f"| `{name}` | {default} | {meaning} |\n"


with mkdocs_gen_files.open("reference/settings.md", "w") as page:
    page.write("# Settings\n\nEach is a key of the YAML file and a dotted option of the command.\n")
    for name, section in SECTIONS.items():
        page.write(f"\n## {name or 'Run'}\n")
        page.writelines(table(name, section))
    for kind, mechanism in MECHANISMS.items():
        page.write(f"\n## mechanism.kind: {kind}\n\n")
        page.write((mechanism.__doc__ or "").partition("\n")[0] + "\n")
        page.writelines(table("mechanism", mechanism))

with mkdocs_gen_files.open("reference/commands.md", "w") as page:
    page.write("# Commands\n\n`labelwall COMMAND --help` explains the options.\n")
    page.write("\n| command | does |\n|---|---|\n")
    for name, does in pipeline.COMMANDS.items():
        page.write(f"| `labelwall {name}` | {does} |\n")

with mkdocs_gen_files.open("reference/python.md", "w") as page:
    page.write("# Python\n\n`import labelwall as lw` has these names; the [guide](../guide.md")
    page.write("#work-in-python) and the [notebook](../first_steps.md) show them.\n")
    for name, (module, members) in SURFACE.items():
        place = f"labelwall.experiment.{module}.{name.removeprefix('sklearn.')}"
        shown = f"heading: lw.{name}, members: [{', '.join(members)}]"
        page.write(f"\n::: {place}\n    options: {{{shown}, show_bases: false}}\n")
    page.write("\n# Inside\n\nFor those who work on labelwall.\n")
    page.writelines(f"\n::: labelwall.{name}\n" for name in INSIDE)


PANDAS = (' border="1" class="dataframe"', "")  # so that the theme styles its tables


def fenced(text: str, language: str = "") -> str:
    return f"\n```{language}\n{text.rstrip()}\n```\n"


def picture(name: str, content: str, alt: str) -> str:
    """A link to a picture of a notebook, which becomes a file of the site."""
    with mkdocs_gen_files.open(name, "wb") as file:
        file.write(base64.b64decode(content))
    return f"\n![{alt}]({Path(name).name})\n"


def rendered(notebook: Path, place: str) -> Iterator[str]:
    """A notebook's cells and outputs as Markdown; its pictures become files beside ``place``."""
    heading = ""
    for number, cell in enumerate(json.loads(notebook.read_text())["cells"]):
        source = "".join(cell["source"])
        heading = heading or source.partition("\n")[0].lstrip("# ")
        yield f"\n{source}\n" if cell["cell_type"] == "markdown" else fenced(source, "python")
        for output in cell.get("outputs", ()):
            known = output.get("data", {})
            text = "".join(output.get("text", known.get("text/plain", "")))
            html = "".join(known.get("text/html", "")).replace(*PANDAS)
            if "image/png" in known:
                yield picture(f"{place}_{number}.png", known["image/png"], f"{heading}: picture")
            else:
                yield f"\n{html}\n" if html else fenced(text)


def card(notebook: Path) -> str:
    """A notebook's heading, first paragraph and last picture, which lead to its page."""
    cells = json.loads(notebook.read_text())["cells"]
    heading, words, *_ = "".join(cells[0]["source"]).removeprefix("# ").split("\n\n")
    last = [n for n, c in enumerate(cells) if "image/png" in json.dumps(c.get("outputs", ()))][-1]
    page, shown = f"{notebook.stem}.md", f"![{heading}]({notebook.stem}_{last}.png)"
    return f"-   **[{heading}]({page})**\n\n    [{shown}]({page})\n\n    {words}\n\n"


GALLERY = [
    TOP / "docs" / "gallery" / f"{name}.ipynb"
    for name in ("cells", "table", "texts", "attributes", "values", "custodians")
]
for notebook in [TOP / "docs" / "first_steps.ipynb", *GALLERY]:
    place = str(notebook.relative_to(TOP / "docs").with_suffix(""))
    with mkdocs_gen_files.open(f"{place}.md", "w") as page:
        page.write("---\nhide: [toc]\n---\n")  # there are no further headings
        page.writelines(rendered(notebook, place))

with mkdocs_gen_files.open("gallery/index.md", "a") as page:
    page.write('\n<div class="grid cards" markdown>\n\n')
    page.writelines(map(card, GALLERY))
    page.write("</div>\n")

for name, target in PAGES.items():
    with mkdocs_gen_files.open(target, "w") as page:
        page.write((TOP / name).read_text())
