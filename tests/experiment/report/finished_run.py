"""A finished run of two rounds, and its page as a browser reads it."""

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np

from labelwall.experiment.config.config import Config
from labelwall.experiment.report.report import write_report
from labelwall.experiment.whole_run import run
from labelwall.student.student_config import StudentConfig
from labelwall.teacher.custody.groups import BudgetConfig, CapsConfig, RoundConfig
from labelwall.teacher.mechanisms.votes import PrivateKnn
from labelwall.teacher.noise.entropy import SystemEntropy
from labelwall.wall.console import Console
from labelwall.wall.datasets.data_config import DataConfig
from tests.seeded_noise import SeededNoise

# Only text, whatever a browser or a plotting library may think
CLASSES = ["cat", "$\\dog 犬", "<b>owl</b>"]
ASKED, PUBLIC, SIDE = 12, 40, 12


def finished_run(folder: Path, *, unsafe: bool = False) -> Path:
    """The run's folder, beside its data.npz; places of the custodian's have telling names."""
    rng, arrays = np.random.default_rng(1), dict[str, Any]()
    for split, n in (("private", 60), ("public", PUBLIC), ("test", 9)):
        arrays[f"{split}_x"] = rng.integers(0, 256, (n, SIDE, SIDE, 3), dtype=np.uint8)
        arrays[f"{split}_y"] = np.arange(n) % len(CLASSES)
    np.savez(folder / "data.npz", **arrays)
    config = Config(
        data=DataConfig(source="arrays", path=str(folder / "data.npz"), classes=CLASSES),
        rounds=[RoundConfig(queries=ASKED), RoundConfig(queries=ASKED)],
        budget=BudgetConfig(epsilon=1000.0, delta=1e-5),
        mechanism=PrivateKnn(k=7, threshold=3, sigma_screen=2.0, sigma_vote=1.0, sample_rate=0.5),
        caps=CapsConfig(asked=2 * ASKED, answered=10),
        student=StudentConfig(
            backbone="small_cnn",
            objective="supervised",
            steps=5,
            batch_labelled=8,
            batch_unlabelled=8,
            doubtful_folds=0,
        ),
        custodian_dir=str(folder / "somewhere-of-the-custodian"),
        anchor=str(folder / "anchor-of-the-custodian"),
        threads=1,
        workers=1,
    )
    entropy = SeededNoise(1) if unsafe else SystemEntropy()
    run(config, folder / "run", entropy=entropy, console=Console(quiet=True))
    return folder / "run"


class Page(HTMLParser):
    """Visible text, and every attribute that makes a browser fetch or run something."""

    VOID = ("meta", "img", "br")

    def __init__(self, html: str) -> None:
        super().__init__()
        self.text, self.links, self.images = "", list[str](), list[str]()
        self.scripts, self._open = 0, list[str]()
        self.feed(html)
        self.text = " ".join(self.text.split())
        assert not self._open, f"not closed: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self._open.append(tag)
        self.scripts += tag in ("script", "iframe", "object", "link")
        for name, value in attrs:
            if name in ("src", "href", "srcset", "data", "action", "poster"):
                (self.images if tag == "img" else self.links).append(value or "")
            assert not name.startswith("on")

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open[-1:] != ["style"]:
            self.text += f" {data}"


def page_of(run_dir: Path) -> Page:
    write_report(run_dir)
    return page_in(run_dir)


def page_in(run_dir: Path) -> Page:
    return Page((run_dir / "report.html").read_text())


def change(path: Path, **fields: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def change_round(run_dir: Path, number: int, **fields: object) -> None:
    """Change what summary.json says of a round."""
    path = run_dir / "summary.json"
    rounds = json.loads(path.read_text())["rounds"]
    rounds[number - 1] |= fields
    change(path, rounds=rounds)
