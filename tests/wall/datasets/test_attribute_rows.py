"""Rows with attributes: Fashion-MNIST's table, attributes.csv of one's own folders, arrays, CelebA
in miniature."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torchvision.datasets import CelebA

from labelwall.teacher.records.inspect import preview
from labelwall.teacher.records.sources import open_records, stream_records
from labelwall.wall.datasets import published
from labelwall.wall.datasets.published_names import (
    CLOTHES,
    CLOTHES_ATTRIBUTES,
    FACES_ATTRIBUTES,
)
from labelwall.wall.datasets.sources import DataConfig, describe, read_public
from labelwall.wall.errors import InvalidInput, MissingData
from labelwall.wall.labels.attributes import AttributeLabels, unpack
from tests.wall.datasets.test_published import write_idx

# --- Fashion-MNIST


def test_fashion_mnists_attributes_name_its_classes() -> None:
    assert {name for having in CLOTHES_ATTRIBUTES.values() for name in having} == set(CLOTHES)


def test_fashion_mnist_has_its_classes_attributes_on_both_sides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(published, "MNIST_PUBLIC", 4)
    rng = np.random.default_rng(0)
    labels = {"train": rng.integers(0, 10, 9), "t10k": rng.integers(0, 10, 8)}
    for name, chosen in labels.items():
        folder = tmp_path / "FashionMNIST" / "raw"
        write_idx(folder / f"{name}-images-idx3-ubyte", rng.integers(0, 256, (len(chosen), 28, 28)))
        write_idx(folder / f"{name}-labels-idx1-ubyte", chosen)
    config = DataConfig("fashion_mnist", labels="attributes", root=str(tmp_path), download=False)
    task, public = describe(config), read_public(config)
    assert task.labels == AttributeLabels(tuple(CLOTHES_ATTRIBUTES))

    def of(classes: np.ndarray) -> list[list[int]]:
        return [
            [int(CLOTHES[c] in having) for having in CLOTHES_ATTRIBUTES.values()] for c in classes
        ]

    assert public.labels is not None
    assert public.labels.tolist() == of(labels["t10k"][:4])
    assert public.test_labels.tolist() == of(labels["t10k"][4:])
    assert unpack(open_records(config, task).labels, 10).tolist() == of(labels["train"])


# --- one's own folders


CSV = "path,round,red\ncat/0.png,1,1\ncat/1.png,0,1\ndog/0.png, 1 ,-1\n"


@pytest.fixture
def folders(image_folders: dict[str, str]) -> dict[str, str]:
    """The image folders with three listed images each; the others of public and test are gone."""
    for split, path in image_folders.items():
        (Path(path) / "attributes.csv").write_text(CSV)
        if split != "private":
            for image in Path(path).rglob("*.png"):
                if f"{image.parent.name}/{image.name}" not in CSV:
                    image.unlink()
    return image_folders


def test_folders_have_their_tables_attributes(folders: dict[str, str]) -> None:
    config = DataConfig("folder", labels="attributes", image_size=8, **folders)
    task, public = describe(config), read_public(config)
    assert task.labels == AttributeLabels(("round", "red"))
    assert public.labels is not None
    blue = public.inputs[..., 2].mean(axis=(1, 2)) > public.inputs[..., 0].mean(axis=(1, 2))
    np.testing.assert_array_equal(public.labels[:, 1], ~blue)
    assert sorted(public.test_labels.tolist()) == [[0, 1], [1, 0], [1, 1]]
    records = open_records(config, task)
    # The nine images without a line are no records
    assert sorted(records.labels.tolist()) == [
        1,
        2,
        3,
    ]
    shown = preview(config)
    assert (shown.rows, shown.usable, shown.by_class) == (12, 3, (("round", 2), ("red", 2)))


def test_a_private_line_that_can_not_be_read_drops_its_row_and_raises_nothing(
    folders: dict[str, str],
) -> None:
    table = Path(folders["private"]) / "attributes.csv"
    lines = [
        b"path,red,x,round",
        b"cat/0.png,1,\xff,1",
        b"cat/1.png,2,0,1",
        b"cat/2.png,1",
        b'"cat',
        b"dog/0.png,0,9,1",
    ]
    table.write_bytes(b"\n".join(lines))
    config = DataConfig("folder", labels="attributes", image_size=8, **folders)
    records = open_records(config, describe(config))
    # Columns by name; dog/0: round, not red; cat/0: both
    assert sorted(records.labels.tolist()) == [
        1,
        3,
    ]


def test_tables_that_do_not_fit_are_refused(folders: dict[str, str]) -> None:
    config = DataConfig("folder", labels="attributes", image_size=8, **folders)
    task = describe(config)
    (Path(folders["private"]) / "attributes.csv").write_text("path,red\n")
    with pytest.raises(InvalidInput, match="round"):
        open_records(config, task)
    (Path(folders["private"]) / "attributes.csv").unlink()
    with pytest.raises(MissingData, match=r"data\.private"):
        open_records(config, task)
    (Path(folders["public"]) / "attributes.csv").unlink()
    assert read_public(config).labels is None
    (Path(folders["test"]) / "attributes.csv").write_text(CSV.replace("dog/0.png", "dog/9.png"))
    with pytest.raises(InvalidInput, match=r"data\.test"):
        read_public(config)
    (Path(folders["test"]) / "attributes.csv").write_text("path,red,red\n")
    with pytest.raises(InvalidInput, match=r"attributes\.csv"):
        describe(config)


# --- arrays


def write_npz(path: Path, **changed: np.ndarray) -> DataConfig:
    rng = np.random.default_rng(0)
    arrays = {
        f"{split}_x": rng.normal(size=(6, 3)).astype(np.float32)
        for split in ("private", "public", "test")
    }
    arrays |= {f"{split}_y": rng.integers(0, 2, (6, 4)) for split in ("private", "public", "test")}
    np.savez(path, **(arrays | changed))
    return DataConfig("arrays", labels="attributes", path=str(path))


def test_arrays_hold_a_column_for_each_attribute(tmp_path: Path) -> None:
    private = np.array(
        [[0, 1, 1, 0], [1, 1, 1, 1], [0, 0, 0, 2], [0, 0, 0, 0], [0, 0, 0, 1], [1, 0, 0, 0]]
    )
    config = write_npz(tmp_path / "data.npz", private_y=private)
    task, public = describe(config), read_public(config)
    assert task.labels == AttributeLabels(("0", "1", "2", "3"))
    assert public.test_labels.shape == (6, 4)
    # The row with a 2 is gone
    assert open_records(config, task).labels.tolist() == [
        6,
        15,
        0,
        8,
        1,
    ]


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("test_y", np.zeros(6, dtype=np.int64)),
        ("test_y", np.full((6, 4), 3)),
        ("test_y", np.zeros((6, 1), dtype=np.int64)),
        ("public_y", np.zeros((5, 4), dtype=np.int64)),
        ("private_y", np.zeros((6, 5), dtype=np.int64)),
        ("private_y", np.zeros(6, dtype=np.int64)),
    ],
)
def test_arrays_of_another_form_are_refused_by_name(
    tmp_path: Path, name: str, wrong: np.ndarray
) -> None:
    config = write_npz(tmp_path / "data.npz", **{name: wrong})

    def read() -> None:
        read_public(config)
        open_records(config, describe(config))

    with pytest.raises(InvalidInput, match=name):
        read()


# --- CelebA


def write_celeba(root: Path) -> np.ndarray:
    """Six faces in torchvision's layout, two of each split; returns their attributes, int64 [6,
    40]."""
    folder, bits = root / "celeba", np.random.default_rng(0).integers(0, 2, (6, 40))
    (folder / "img_align_celeba").mkdir(parents=True)
    names = [f"{number:06d}.jpg" for number in range(1, 7)]
    for number, name in enumerate(names):
        Image.new("RGB", (178, 218), (40 * number, 0, 0)).save(folder / "img_align_celeba" / name)

    def listed(file: str, header: list[str], values: list[str]) -> None:
        lines = [f"{name} {value}" for name, value in zip(names, values, strict=True)]
        (folder / file).write_text("\n".join([*header, *lines]) + "\n")

    signs = [" ".join(" 1" if bit else "-1" for bit in row) for row in bits]
    listed("list_attr_celeba.txt", ["6", " ".join(FACES_ATTRIBUTES) + " "], signs)
    listed("list_eval_partition.txt", [], ["0", "0", "1", "1", "2", "2"])
    listed("identity_CelebA.txt", [], ["1"] * 6)
    listed("list_bbox_celeba.txt", ["6", "x y w h"], ["0 0 9 9"] * 6)
    listed("list_landmarks_align_celeba.txt", ["6", "a b"], ["1 2"] * 6)
    return bits


def test_celebas_splits_and_attributes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened
) -> None:
    """Its files' checksums are those of the real ones, which are not at hand: left out here, and
    nothing else is."""
    bits = write_celeba(tmp_path)
    monkeypatch.setattr(CelebA, "file_list", [(a, None, c) for a, _, c in CelebA.file_list])
    config = DataConfig(
        "celeba", labels="attributes", root=str(tmp_path), download=False, image_size=16
    )
    task = describe(config)
    assert (task.num_classes, task.input_shape, task.labels.names) == (
        40,
        (16, 16, 3),
        FACES_ATTRIBUTES,
    )
    with opened() as paths:
        public = read_public(config)
    assert public.inputs.shape == public.test_inputs.shape == (2, 16, 16, 3)
    assert public.labels is not None
    np.testing.assert_array_equal(np.vstack([public.labels, public.test_labels]), bits[2:])
    assert not any(path.endswith(("000001.jpg", "000002.jpg")) for path in paths)
    records = open_records(config, task)
    np.testing.assert_array_equal(unpack(records.labels, 40), bits[:2])
    assert records.ids.tolist() == [1, 2]
    assert records.inputs[:, 8, 8, 0].tolist() == pytest.approx([0, 40], abs=3)
    blocks = list(stream_records(config, task, 1))
    assert [(found, total) for found, total, _ in blocks] == [(1, 2), (2, 2)]
    for name in ("inputs", "labels", "ids"):
        parts = [getattr(block, name) for _, _, block in blocks]
        np.testing.assert_array_equal(np.concatenate(parts), getattr(records, name))


def test_celeba_without_its_files_is_one_clear_error(tmp_path: Path) -> None:
    config = DataConfig("celeba", labels="attributes", root=str(tmp_path), download=False)
    with pytest.raises(MissingData, match="celeba"):
        read_public(config)


@pytest.mark.realdata
def test_fashion_mnists_real_attributes(realdata_root: Path) -> None:
    config = DataConfig(
        "fashion_mnist", labels="attributes", root=str(realdata_root), download=False
    )
    public = read_public(config)
    assert public.test_labels.shape == (5000, 10)
    # 27 entries of the table, classes of about one size
    assert public.test_labels.mean() == pytest.approx(0.27, abs=0.005)
