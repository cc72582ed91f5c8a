"""A run folder as `run` leaves it, short of the training, and its page as a browser reads it."""

import json
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import safetensors.numpy

from labelwall.experiment.config.config import Config
from labelwall.experiment.config.groups import BudgetConfig, CapsConfig, RoundConfig
from labelwall.experiment.config.settings import to_yaml
from labelwall.experiment.report.report import write_report
from labelwall.experiment.run.run_folder import RunFolder, write_file
from labelwall.student.config import StudentConfig
from labelwall.student.model import Privacy, StudentInfo, pack
from labelwall.teacher.accounting.accountant import certificates, certified_epsilon
from labelwall.teacher.accounting.conversion import round_up
from labelwall.teacher.ledger.ledger import Ledger
from labelwall.teacher.mechanisms.votes import PrivateKnn
from labelwall.wall.datasets.config import DataConfig
from labelwall.wall.label_kinds import label_space
from labelwall.wall.messages import ABSTAINED, Outcome
from tests.ledgers import identity, use_extractor

# Only text, whatever a browser or a plotting library may think
CLASSES = ["cat", "$\\dog 犬", "<b>owl</b>"]
ASKED, PUBLIC, SIDE = 12, 40, 8


def write_arrays(path: Path, *, images: bool = True) -> None:
    rng = np.random.default_rng(1)
    shape = (SIDE, SIDE, 3) if images else (5,)
    arrays = {}
    for split, n in (("private", 30), ("public", PUBLIC), ("test", 9)):
        x = rng.integers(0, 256, (n, *shape), dtype=np.uint8)
        arrays[f"{split}_x"] = x if images else x.astype(np.float32)
        arrays[f"{split}_y"] = np.arange(n) % len(CLASSES)
    np.savez(path, **arrays)


def make_config(tmp_path: Path, data: Path) -> Config:
    return Config(
        data=DataConfig(source="arrays", path=str(data), classes=CLASSES),
        rounds=[RoundConfig(queries=ASKED), RoundConfig(queries=ASKED)],
        budget=BudgetConfig(epsilon=1.0, delta=1e-5),
        mechanism=PrivateKnn(sigma_screen=75.0, sigma_vote=25.0),  # CVPR20's MNIST parameters
        caps=CapsConfig(asked=2 * ASKED, answered=15),
        student=StudentConfig(backbone="small_cnn"),
        custodian_dir=str(tmp_path / "somewhere-of-the-custodian"),
        anchor=str(tmp_path / "anchor-of-the-custodian"),
        ledger="postgresql://custodian@database-of-the-custodian/ledgers?schema=digits",
    )


def release(ledger: Ledger, number: int, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Charge and record round ``number``.

    Every third query is abstained on; the others get a class until the cap.
    """
    use_extractor(ledger)
    names = [identity(f"{number}-{row}") for row in rows.tolist()]
    screening = ledger.charge(0, "screen", names)
    bits = {name: int(at % 3 != 0) for at, name in enumerate(names)}
    ledger.record(screening, bits)
    votes = ledger.charge(0, "aggregate", [name for name in names if bits[name]])
    answers = {name: (at + number) % len(CLASSES) for at, name in enumerate(votes.granted)}
    ledger.record(votes, answers)
    labels = np.array([answers.get(name, ABSTAINED) for name in names])
    refused = [Outcome.CAP_REACHED if bits[name] else Outcome.ABSTAINED for name in names]
    outcomes = np.where(labels != ABSTAINED, Outcome.ANSWERED, refused)
    return labels, outcomes.astype(np.uint8)


def write_round(folder: RunFolder, ledger: Ledger, number: int) -> dict:
    rows = np.random.default_rng(number).permutation(PUBLIC)[:ASKED]
    labels, outcomes = release(ledger, number, rows)
    folder.save_answers(number, rows, labels, outcomes)
    metrics = {
        "asked": ASKED,
        "answered": int((outcomes == Outcome.ANSWERED).sum()),
        "abstained": int((outcomes == Outcome.ABSTAINED).sum()),
        "cap_reached": int((outcomes == Outcome.CAP_REACHED).sum()),
        "label_accuracy": [0.9375, None][number - 1],
        "student_accuracy": [0.8125, 0.8875][number - 1],
        "epsilon_reading": 0.05 * number,
        "extractor": ["hog", "small_cnn"][number - 1],
        "ledger_head": ledger.state.head,
        "confusion": [[3, 0, 0], [1, 2, 0], [0, 0, 3]],
        "calibration_error": 0.0421,
        "seconds": 1.5,
    }
    (folder.round(number) / "metrics.json").write_text(json.dumps(metrics))
    return metrics


def finished_run(tmp_path: Path, *, unsafe: bool = False, images: bool = True) -> Path:
    write_arrays(tmp_path / "data.npz", images=images)
    config, folder = make_config(tmp_path, tmp_path / "data.npz"), RunFolder(tmp_path / "run")
    folder.create()
    write_file(folder.config, to_yaml(config))
    plan = config.plan()
    path = tmp_path / "live.sqlite"
    ledger = Ledger.create(path, dataset="a-random-uuid", plan=plan, unsafe=unsafe)
    rounds = [write_round(folder, ledger, number) for number in (1, 2)]
    ledger.export(folder.ledger)
    summary = {
        "epsilon": None if unsafe else round_up(certified_epsilon(plan)),
        "delta": plan.delta,
        "unsafe": unsafe,
        "certificates": {name: round_up(c.epsilon) for name, c in certificates(plan).items()},
        "best_round": 2,
        "public_rows": PUBLIC,
        "date": "2026-11-23",
        "test_accuracy": rounds[-1]["student_accuracy"],
        "rounds": rounds,
        "dataset": ledger.state.dataset,
        "ledger_head": ledger.state.head,
        "seed": 0,
    }
    folder.summary.write_text(json.dumps(summary))
    shape, statistics = (SIDE, SIDE, 3) if images else (5,), (0.5,) * (3 if images else 0)
    guarantee = "tight", "anyone", summary["ledger_head"], summary["dataset"]
    privacy = Privacy(summary["epsilon"], plan.delta, *guarantee)
    labels = label_space("class", CLASSES, [])
    info = StudentInfo("small_cnn", shape, statistics, statistics, labels, privacy)
    folder.student.write_bytes(pack(info, safetensors.numpy.save({"head.bias": np.zeros(3)})))
    return folder.path


class Page(HTMLParser):
    """Visible text, and every attribute that makes a browser fetch or run something."""

    VOID = ("meta", "img", "br")

    def __init__(self, html: str) -> None:
        super().__init__()
        self.text, self.links, self.images, self.scripts, self._open = "", [], [], 0, []
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


def config_of(run_dir: Path) -> Config:
    return make_config(run_dir.parent, run_dir.parent / "data.npz")


def change(path: Path, **fields: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
