"""Image folders of one's own, with or without a metadata.csv, and the decoding of images."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from labelwall.experiment.config.own import own_settings
from labelwall.teacher.records.inspect import preview
from labelwall.teacher.records.private_records import ingest_more, open_records
from labelwall.teacher.records.source import require_form
from labelwall.wall.datasets import image_labels
from labelwall.wall.datasets.data_config import DataConfig, Task
from labelwall.wall.datasets.folders import stable_hash
from labelwall.wall.datasets.readers import decode, read_images
from labelwall.wall.datasets.sources import describe, facts, read_public
from labelwall.wall.errors import InvalidInput, MissingData
from labelwall.wall.label_kinds import AttributeLabels, ClassLabels


@pytest.mark.parametrize("channels", [1, 3])
def test_folders_are_decoded_to_the_task(image_folders, channels):
    config = DataConfig(source="folder", image_size=8, channels=channels, **image_folders)
    progress: list[tuple[int, int]] = []
    task = describe(config)
    public = read_public(config, lambda done, total: progress.append((done, total)))
    assert progress == [(12, 12), (12, 12)]  # public, then test
    assert task == Task(ClassLabels(("cat", "dog")), (8, 8, channels))
    assert public.inputs.shape == public.test_inputs.shape == (12, 8, 8, channels)
    assert public.inputs.dtype == np.uint8
    assert public.labels is not None
    if channels == 3:  # dogs are blue
        blue = (public.inputs[..., 2] > public.inputs[..., 0]).all(axis=(1, 2))
        assert (blue == (public.labels == 1)).all()
    assert sorted(public.test_labels.tolist()) == [0] * 6 + [1] * 6
    assert public.labels.tolist() != sorted(public.labels.tolist())  # the order mixes the classes
    Image.new("RGB", (12, 10)).save(Path(image_folders["public"]) / "anything.png")
    labels = read_public(config).labels
    assert labels is not None
    assert sorted(labels.tolist())[:2] == [-1, 0]  # in no class folder


def test_damaged_public_images_are_named_at_once(image_folders):
    for split, name in (("public", "dog/3.png"), ("public", "cat/1.png"), ("test", "cat/2.png")):
        damaged = Path(image_folders[split]) / name
        damaged.write_bytes(damaged.read_bytes()[:45])
    with pytest.raises(InvalidInput, match=r"dog/3\.png") as caught:
        read_public(DataConfig(source="folder", **image_folders))
    assert all(name in str(caught.value) for name in ("public/cat/1.png", "test/cat/2.png"))
    assert len(str(caught.value).splitlines()) == 1


def test_given_classes_fix_the_order_and_refuse_other_test_folders(image_folders):
    task = describe(DataConfig(source="folder", classes=["dog", "emu", "cat"], **image_folders))
    assert task.labels.names == ("dog", "emu", "cat")
    with pytest.raises(InvalidInput, match=r"data\.test.*cat"):
        describe(DataConfig(source="folder", classes=["dog", "emu"], **image_folders))


@pytest.mark.parametrize("field", ["public", "test"])
def test_a_missing_or_empty_public_folder_is_one_clear_error(image_folders, field, tmp_path):
    (tmp_path / "empty").mkdir()
    for place, error in (("nowhere", MissingData), ("empty", InvalidInput)):
        folders = image_folders | {field: str(tmp_path / place)}
        with pytest.raises(error, match=f"data.{field}"):
            read_public(DataConfig(source="folder", **folders))


# --- an image


def test_sixteen_bit_greys_are_scaled_not_clipped(tmp_path):
    ramp = np.tile(np.linspace(0, 65535, 16).astype(np.uint16), (16, 1))
    Image.fromarray(ramp).save(tmp_path / "ramp.png")
    pixels = decode(tmp_path / "ramp.png", (16, 16), 1)
    assert pixels is not None
    np.testing.assert_array_equal(pixels[0, :, 0], ramp[0] // 257)


def test_images_are_turned_upright_and_cut_to_the_central_square(tmp_path):
    pixels = np.zeros((8, 24), dtype=np.uint8)
    pixels[:, 8:16] = 100  # the middle third: bright upper half, dark lower half
    pixels[:4, 8:16] = 200
    exif = Image.Exif()
    exif[0x0112] = 3  # stored upside down
    Image.fromarray(pixels).save(tmp_path / "a.png", exif=exif)
    decoded = decode(tmp_path / "a.png", (8, 8), 1)
    assert decoded is not None
    upright = np.repeat([100, 200], 4)[:, None] * np.ones((1, 8))
    np.testing.assert_array_equal(decoded[..., 0], upright)


def test_only_listed_formats_are_decoded(tmp_path):
    Image.new("RGB", (4, 4)).save(tmp_path / "icon.png", format="ICO", sizes=[(4, 4)])
    os.mkfifo(tmp_path / "pipe.png")
    for name in ("icon.png", "pipe.png", "absent.png"):
        assert decode(tmp_path / name, (4, 4), 3) is None


@pytest.mark.parametrize("suffix", ["tif", "gif"])
def test_the_first_page_or_frame_is_read(tmp_path, suffix):
    first, *more = (Image.new("L", (4, 4), grey) for grey in (200, 100, 0))
    first.save(tmp_path / f"a.{suffix}", save_all=True, append_images=more)
    pixels = decode(tmp_path / f"a.{suffix}", (4, 4), 1)
    assert pixels is not None
    assert set(pixels.ravel()) == {200}


def test_damaged_images_print_nothing(tmp_path, capfd):
    """Which ones are damaged may be private."""
    rng, names = np.random.default_rng(0), []
    for compression in ("group4", "tiff_lzw", "jpeg"):
        image = Image.fromarray(rng.integers(0, 256, (16, 16), dtype=np.uint8))
        image.convert("1" if compression == "group4" else "RGB").save(
            tmp_path / "whole.tif", compression=compression
        )
        for number in range(60):
            content = bytearray((tmp_path / "whole.tif").read_bytes())
            for place in rng.integers(0, len(content), 2):
                content[place] = rng.integers(0, 256)
            names.append(f"{compression}{number}.tif")
            (tmp_path / names[-1]).write_bytes(content)
    assert 0 < read_images(tmp_path, names, (8, 8), 1).readable.mean() < 1
    assert capfd.readouterr() == ("", "")


def test_what_is_transparent_is_white(tmp_path):
    alpha = np.repeat([0, 51, 255, 255], 4).reshape(4, 4).astype(np.uint8)
    black = Image.fromarray(np.zeros((4, 4), np.uint8))
    black.putalpha(Image.fromarray(alpha))
    colours = black.convert("RGBA")
    for image, name in ((black, "la.png"), (colours, "rgba.webp"), (colours, "p.gif")):
        image.save(tmp_path / name, **({"lossless": True} if name.endswith("webp") else {}))
        pixels = decode(tmp_path / name, (4, 4), 1)
        assert pixels is not None
        expected = 255 - alpha if name != "p.gif" else np.where(alpha > 0, 0, 255)
        np.testing.assert_array_equal(pixels[..., 0], expected)


@pytest.mark.parametrize(("dtype", "white"), [("uint16", 4095), ("int32", 4095), ("float32", 1)])
def test_public_images_fix_what_white_is(tmp_path, dtype, white):
    """And each private image is read alone, by that."""
    for split, bright in (("public", 1.0), ("test", 0.2), ("private", 0.6)):
        for name in ("a", "b"):
            (tmp_path / split / name).mkdir(parents=True)
            ramp = np.tile(np.linspace(0, bright * white * 0.98, 16), (16, 1)).astype(dtype)
            Image.fromarray(ramp if name == "a" else ramp.T).save(tmp_path / split / name / "0.tif")
    own = {split: str(tmp_path / split) for split in ("private", "public", "test")}
    data = own_settings({**own, "expected_records": 100}, {})["data"]
    assert data["white"] == white
    config = DataConfig(**data)
    records = open_records(config, describe(config))
    assert records.inputs.max() == int(0.6 * 0.98 * 255)
    assert len(np.unique(read_public(config).inputs)) == 16


def test_public_images_of_one_colour_are_refused(image_folders):
    for image in Path(image_folders["public"]).rglob("*.png"):
        Image.new("LA", (9, 9), (255, 40)).save(image)
    with pytest.raises(InvalidInput, match="rows that differ"):
        read_public(DataConfig(source="folder", **image_folders))


def test_a_folder_without_images_names_what_it_has(image_folders, tmp_path):
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "scan.RAW").write_bytes(b"")
    with pytest.raises(InvalidInput, match=r"\.tiff, \.gif.*raw: \.RAW"):
        read_public(
            DataConfig(source="folder", **image_folders | {"public": str(tmp_path / "raw")})
        )


def test_links_to_folders_are_followed_without_loops(image_folders, tmp_path):
    config = DataConfig(source="folder", image_size=8, **image_folders)
    before, task = open_records(config, describe(config)), describe(config)
    for path in image_folders.values():
        store = Path(path).rename(tmp_path / f"store_{Path(path).name}")
        Path(path).mkdir()
        for name in ("cat", "dog"):
            (Path(path) / name).symlink_to(store / name)
            (store / name / "up").symlink_to(path)  # back to the top
            (store / name / "own").symlink_to(store / name)
    after = open_records(config, describe(config))
    assert describe(config) == task
    np.testing.assert_array_equal(before.ids, after.ids)
    np.testing.assert_array_equal(before.inputs, after.inputs)


# --- metadata.csv


CSV = "path,round,red\ncat/0.png,1,1\ncat/1.png,0,1\ndog/0.png, 1 ,-1\n"


@pytest.fixture
def attributes(image_folders):
    """The image folders with three listed images each; the others of public and test are gone."""
    for split, path in image_folders.items():
        (Path(path) / "metadata.csv").write_text(CSV)
        for image in Path(path).rglob("*.png"):
            if split != "private" and f"{image.parent.name}/{image.name}" not in CSV:
                image.unlink()
    return DataConfig("folder", labels="attributes", image_size=8, **image_folders)


def test_folders_have_their_tables_attributes(attributes):
    task, public = describe(attributes), read_public(attributes)
    assert task.labels == AttributeLabels(("round", "red"))
    assert public.labels is not None
    blue = public.inputs[..., 2].mean(axis=(1, 2)) > public.inputs[..., 0].mean(axis=(1, 2))
    np.testing.assert_array_equal(public.labels[:, 1], ~blue)
    assert sorted(public.test_labels.tolist()) == [[0, 1], [1, 0], [1, 1]]
    # The nine images without a line are no records
    assert sorted(open_records(attributes, task).labels.tolist()) == [1, 2, 3]
    words = preview(attributes).split()
    assert "12 rows, 3 usable" in " ".join(words)
    assert words[words.index("round") + 1] == words[words.index("red") + 1] == "2"
    # Columns are read by their names, and lines that say anything else are left out
    private = "path,red,x,round\ncat/0.png,1,?,1\ncat/1.png,2,0,1\ncat/2.png,1\ndog/0.png,0,9,1\n"
    private += "dog/1.png,1,0,0\ndog/1.png,1,0,1\n"
    (Path(attributes.private or "") / "metadata.csv").write_text(private)
    assert sorted(open_records(attributes, task).labels.tolist()) == [1, 3]


def test_tables_that_do_not_fit_are_refused(attributes):
    task = describe(attributes)
    private, public, test = (
        Path(folder or "") / "metadata.csv"
        for folder in (attributes.private, attributes.public, attributes.test)
    )
    private.write_text("path,red\n")
    with pytest.raises(InvalidInput, match="round"):
        open_records(attributes, task)
    private.unlink()
    with pytest.raises(MissingData, match=r"data\.private"):
        open_records(attributes, task)
    public.unlink()
    assert read_public(attributes).labels is None
    test.write_text(CSV.replace("dog/0.png", "dog/9.png"))
    with pytest.raises(InvalidInput, match=r"data\.test"):
        read_public(attributes)
    test.write_text("path,red,red\n")
    with pytest.raises(InvalidInput, match=r"column of metadata\.csv in data\.test that differs"):
        describe(attributes)
    for text in ("", "\n", "path\n"):
        test.write_text(text)
        with pytest.raises(MissingData, match=r"`data\.test` must hold metadata\.csv with a"):
            describe(attributes)


@pytest.fixture
def diagnosed(image_folders):
    """The images of both classes in one folder each, and a metadata.csv that tells their labels."""
    for split, path in image_folders.items():
        root, lines = Path(path), ["who,file_name,kind,age"]
        for image in sorted(root.rglob("*.png")):
            kind, number = image.parent.name, int(image.stem)
            image.rename(root / f"{kind}{number}.png")
            stem = f"{kind}{number}"
            lines.append(f"{split}{number // 2},{stem},{kind},{number + 0.5}")
        (root / "metadata.csv").write_text("\n".join([*lines, "x,absent.png,emu,3", ""]))
    return DataConfig("folder", label="kind", image_size=8, **image_folders)


def rewrite(root: str | None, *pairs: tuple[str, str]) -> None:
    """Replace parts of a folder's metadata.csv."""
    file = Path(root or "") / "metadata.csv"
    text = file.read_text()
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    file.write_text(text)


def test_a_column_of_metadata_tells_labels_persons_and_groups(diagnosed):
    config = replace(diagnosed, group="who", person="who")
    task, public = describe(config), read_public(config)
    assert task.labels == ClassLabels(("cat", "dog"))  # the absent image's class is none
    assert public.labels is not None
    blue = public.inputs[..., 2].mean(axis=(1, 2)) > public.inputs[..., 0].mean(axis=(1, 2))
    np.testing.assert_array_equal(public.labels, blue)
    assert public.test_groups is not None
    assert sorted({*public.test_groups}) == ["test0", "test1", "test2"]
    records = open_records(config, task, unit="person")
    assert len(records.labels) == 12
    assert records.persons is not None
    assert len({*records.persons.tolist()}) == 3
    assert facts(config)[:2] == [
        "classes: cat, dog",
        "labels: the column kind of metadata.csv in each folder, whose paths are without suffixes",
    ]
    # Lines that differ tell nothing, nor does one that is no line; a repeated one does
    rewrite(config.private, ("private0,cat0,cat", "private0,cat0,dog,1\nprivate0,cat0,cat"))
    rewrite(config.private, ("private0,dog0,dog,0.5", "private0,dog0,dog,0.5,more"))
    rewrite(config.private, ("x,absent.png,emu,3", "private1,cat2,cat,2.5\nprivate2,dog5,,1"))
    assert len(open_records(diagnosed, task).labels) == 9
    assert "3 '': images without a label" in " ".join(preview(diagnosed).split())


def test_images_are_records_by_the_names_of_the_public_lines(diagnosed):
    """A line of one image tells nothing of another, whatever suffixes the private ones have."""
    task, private = describe(diagnosed), Path(diagnosed.private or "")
    before = open_records(diagnosed, task)
    shutil.copy(private / "dog0.png", private / "cat0.jpg")  # by public lines the same record
    assert open_records(diagnosed, task).ids.tolist() == before.ids.tolist()
    for root in (diagnosed.private, diagnosed.public, diagnosed.test):
        for number in range(6):
            rewrite(
                root,
                (f",cat{number},", f",cat{number}.png,"),
                (f",dog{number},", f",dog{number}.png,"),
            )
    rewrite(diagnosed.private, ("x,absent.png,emu,3", "bob,cat0,dog,1\nbob,cat0.jpg,dog,1"))
    after = open_records(diagnosed, task)
    assert len(after.labels) == 13
    cats = dict(zip(after.ids.tolist(), after.labels.tolist(), strict=True))
    assert cats[stable_hash("cat0.png")] == 0
    assert cats[stable_hash("cat0.jpg")] == 1


def test_attributes_are_the_other_columns_or_those_that_are_named(diagnosed):
    """Images of both kinds, told by stems, beside persons and groups in one file."""
    for root in (diagnosed.private, diagnosed.public, diagnosed.test):
        file = Path(root or "", "metadata.csv")
        lines = [line.split(",") for line in file.read_text().splitlines()[1:-1]]
        rows = [f"{who},{name},{int(kind == 'cat')},1,3{kind}" for who, name, kind, _ in lines]
        file.write_text("\n".join(["who,file_name,cat,image,age", *rows]))
    config = replace(diagnosed, labels="attributes", label="label", person="who", group="who")
    task, records = describe(config), open_records(config, describe(config), unit="person")
    assert task.labels == AttributeLabels(("cat", "image"))
    assert sorted(records.labels.tolist()) == [2] * 6 + [3] * 6
    assert records.names == "stems"
    assert facts(config)[1].startswith(
        "labels: columns of metadata.csv in each folder, whose paths"
    )
    named = replace(config, classes=["image", "cat"], person="", group="")
    assert describe(named).labels == AttributeLabels(("image", "cat"))
    assert sorted(open_records(named, describe(named)).labels.tolist()) == [1] * 6 + [3] * 6
    with pytest.raises(InvalidInput, match=r"`data\.classes` must be .*Did you mean 'cat'"):
        describe(replace(config, classes=["cats", "image"]))


def test_a_public_file_is_read_once_until_it_changes(diagnosed, monkeypatch):
    read, files = image_labels.read_lines, list[Path]()
    monkeypatch.setattr(image_labels, "read_lines", lambda file: read(files.append(file) or file))
    for _ in range(2):
        read_public(diagnosed)
        facts(diagnosed)
        open_records(diagnosed, describe(diagnosed))
    public = [file for file in files if file.parent != Path(diagnosed.private)]
    assert sorted(public) == sorted(
        Path(diagnosed.places[split] or "", "metadata.csv") for split in ("public", "test")
    )
    rewrite(diagnosed.test, ("x,absent.png,emu,3", "x,cat0,emu,3"))
    with pytest.raises(InvalidInput, match=r"with a label in metadata\.csv"):
        read_public(diagnosed)


@pytest.mark.parametrize("setting", ["person", "group"])
def test_a_column_that_nothing_has_is_told_before_a_run(diagnosed, setting):
    config = replace(diagnosed, **{setting: "whom"})
    read = require_form if setting == "person" else describe
    with pytest.raises(InvalidInput, match=rf"`data\.{setting}` must be .*Did you mean 'who'"):
        read(config)
    Path(diagnosed.private or "", "metadata.csv").write_text("\n")
    with pytest.raises(MissingData, match=r"`data\.private` must hold metadata\.csv with a header"):
        require_form(diagnosed)


def test_metadata_tells_values(diagnosed):
    config = replace(diagnosed, labels="value", label="age", bounds=[0.0, 8.0])
    rewrite(config.private, ("private0,cat0,cat,0.5", "private0,cat0,cat,old"))
    public, task = read_public(config), describe(config)
    assert sorted({*public.test_labels}) == [0.5, 1.5, 2.5, 3.5, 4.5, 5.5]
    values = task.labels.decode(open_records(config, task).labels)
    assert sorted(np.round(values, 1)) == sorted([0.5, *[n + 0.5 for n in range(1, 6)] * 2])


def test_more_images_come_with_their_metadata(diagnosed, tmp_path):
    task = describe(diagnosed)
    (tmp_path / "more").mkdir()
    shutil.copy(Path(diagnosed.private or "", "dog1.png"), tmp_path / "more" / "new.png")
    with pytest.raises(MissingData, match=r"metadata\.csv"):
        ingest_more(tmp_path / "more", diagnosed, task)
    (tmp_path / "more" / "metadata.csv").write_text("image,kind\nnew,dog\n")
    assert ingest_more(tmp_path / "more", diagnosed, task).records.labels.tolist() == [1]


def test_the_default_column_counts_if_a_public_file_has_it(diagnosed):
    for root in (diagnosed.private, diagnosed.public, diagnosed.test):
        rewrite(root, ("who,file_name,kind", "who,file_name,label"))
    config = replace(diagnosed, label="label")
    assert describe(config) == describe(replace(config, classes=["cat", "dog"]))
    assert len(open_records(config, describe(config)).labels) == 12


def test_public_images_need_no_metadata_and_others_do(diagnosed):
    task = describe(diagnosed)
    rewrite(diagnosed.public, ("kind", "sort"))
    assert read_public(diagnosed).labels is None
    Path(diagnosed.public or "", "metadata.csv").unlink()
    assert read_public(diagnosed).labels is None
    untested = replace(diagnosed, test=None, classes=["cat", "dog"])
    assert describe(untested) == task
    with pytest.raises(InvalidInput, match=r"data\.classes"):
        describe(replace(untested, classes=[]))
    rewrite(diagnosed.test, ("cat,1.5", ",1.5"))
    with pytest.raises(InvalidInput, match=r"with a label in metadata\.csv"):
        read_public(diagnosed)
    with pytest.raises(InvalidInput, match=r"data\.label.*Did you mean 'kind'"):
        describe(replace(diagnosed, label="kinds"))
    with pytest.raises(InvalidInput, match=r"data\.test.*cat"):
        describe(replace(diagnosed, classes=["dog", "emu"]))
    for column in ("sort", None):
        private = Path(diagnosed.private or "", "metadata.csv")
        rewrite(diagnosed.private, ("kind", "sort")) if column else private.unlink()
        for read in (require_form, lambda config: open_records(config, task)):
            with pytest.raises((InvalidInput, MissingData), match=r"data\.private"):
                read(diagnosed)


def test_class_folders_are_names_however_a_system_writes_them(image_folders):
    forms = {"private": "e\u0301TE\u0301", "public": "\u00e9T\u00e9", "test": "\u00e9t\u00e9"}
    for split, name in forms.items():
        Path(image_folders[split], "cat").rename(Path(image_folders[split], name))
    test, public = Path(image_folders["test"]), Path(image_folders["public"])
    for folder in (test / "__MACOSX" / "\u00e9t\u00e9", test / "square", public / "emu"):
        folder.mkdir(parents=True)
    shutil.copy(test / "dog" / "0.png", test / "__MACOSX" / "\u00e9t\u00e9" / "1.png")
    shutil.copy(test / "dog" / "0.png", public / "emu" / "0.png")
    config = DataConfig(source="folder", image_size=8, **image_folders)
    task = describe(config)
    assert task.labels.names == ("dog", "emu", "\u00e9t\u00e9")
    assert facts(config) == [
        "classes: dog, emu, \u00e9t\u00e9",
        "folders without images, which are no classes: square",
    ]
    assert np.bincount(read_public(config).test_labels).tolist() == [6, 0, 6]
    assert np.bincount(open_records(config, task).labels).tolist() == [6, 0, 6]
