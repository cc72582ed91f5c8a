"""Finished runs that the tests of this folder use: vectors, and folders of images."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from labelwall import pipeline
from tests.experiment import tiny

COLOURS = {"cat": (200, 60, 30), "dog": (30, 60, 200)}
SIZE, EACH = 12, 12  # pixels a side; images of a class in each folder
IMAGES = """
data: {{source: folder, private: {0}/private, public: {0}/public, test: {0}/test, image_size: 12}}
budget: {{epsilon: 1000.0, delta: 1.0e-5}}
mechanism: {{k: 5, threshold: 0, sigma_screen: 3.0, sigma_vote: 3.0, sample_rate: 0.5}}
caps: {{asked: 20, answered: 20}}
rounds: [{{queries: 20}}]
student:
  {{backbone: small_cnn, objective: supervised, steps: 10, batch_labelled: 8, batch_unlabelled: 8,
   doubtful_folds: 0, augment: natural}}
threads: 1
workers: 1
"""


@pytest.fixture(scope="session")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vectors")
    tiny.write(folder)
    config = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(config.replace("data.npz", str(folder / "data.npz")))
    run(folder)
    return folder


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, rng = tmp_path_factory.mktemp("images"), np.random.default_rng(0)
    for split in ("private", "public", "test"):
        for name, colour in COLOURS.items():
            (folder / split / name).mkdir(parents=True)
            for number in range(EACH):
                pixels = rng.normal(colour, 70, (SIZE + number, SIZE, 3)).clip(0, 255)
                Image.fromarray(pixels.astype(np.uint8)).save(
                    folder / split / name / f"{number}.png"
                )
    (folder / "config.yaml").write_text(IMAGES.format(folder))
    run(folder)
    return folder


def run(folder: Path) -> None:
    config, out = str(folder / "config.yaml"), str(folder / "out")
    assert pipeline.main(["run", "--config", config, "--run_dir", out, "--quiet"]) == 0
