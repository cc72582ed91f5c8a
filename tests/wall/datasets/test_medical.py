"""DICOM and NIfTI files among images: what is shown of one, and that it follows from it alone."""

from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
from PIL import Image
from pydicom import dcmread
from pydicom.data import get_testdata_file
from pydicom.dataset import Dataset
from pydicom.uid import RLELossless, SecondaryCaptureImageStorage

from labelwall.experiment.config.own import own_settings
from labelwall.teacher.records.private_records import open_records
from labelwall.wall.datasets import medical
from labelwall.wall.datasets.data_config import DataConfig, Task
from labelwall.wall.datasets.readers import decode, read_images
from labelwall.wall.datasets.sources import read_public
from labelwall.wall.errors import InvalidInput
from labelwall.wall.label_kinds import ClassLabels

RAMP = np.arange(64, dtype=np.int16).reshape(8, 8) * 10  # 0 to 630


def part(**tags: Any) -> Dataset:
    made = Dataset()
    for name, value in tags.items():
        setattr(made, name, value)
    return made


def write_dicom(path: Path, stored: np.ndarray = RAMP, rle: bool = False, **tags: Any) -> Path:
    """A file with these values, [h, w] or [frames, h, w], or RGB of 8 bits [h, w, 3]."""
    file = part(SOPClassUID=SecondaryCaptureImageStorage)
    file.set_pixel_data(
        stored, "RGB" if stored.dtype == np.uint8 else "MONOCHROME2", 8 * stored.itemsize
    )
    file.update(part(**tags))
    if rle:
        file.compress(RLELossless)
    path.parent.mkdir(parents=True, exist_ok=True)
    file.save_as(path, enforce_file_format=True)
    return path


def shown(path: Path, white: float | None = None, channels: int = 1) -> np.ndarray:
    pixels = decode(path, (8, 8), channels, white)
    assert pixels is not None
    return pixels[..., 0] if channels == 1 else pixels


@pytest.mark.parametrize("rle", [False, True])
def test_a_window_of_the_file_says_what_is_black_and_white(tmp_path: Path, rle: bool) -> None:
    window = {"WindowCenter": -200, "WindowWidth": 401, "RescaleSlope": 1, "RescaleIntercept": -400}
    pixels = shown(write_dicom(tmp_path / "a.dcm", rle=rle, **window), white=7.0)
    expected = np.clip((RAMP - 400.0 + 200.5) / 400 + 0.5, 0, 1) * 255  # C.11.2.1.2.1
    np.testing.assert_allclose(pixels, expected, atol=0.51)
    assert (pixels.min(), pixels.max()) == (0, 255)
    inverted = write_dicom(tmp_path / "b.dcm", PhotometricInterpretation="MONOCHROME1", **window)
    np.testing.assert_allclose(shown(inverted), 255 - expected, atol=0.51)
    first = {"WindowCenter": [-200, 9], "WindowWidth": [401, 5]}
    assert (shown(write_dicom(tmp_path / "c.dcm", **window | first)) == pixels).all()


def test_without_a_window_white_is_the_public_setting(tmp_path: Path) -> None:
    plain = shown(write_dicom(tmp_path / "a.dcm"), white=630)
    np.testing.assert_allclose(plain, RAMP / 630 * 255, atol=1)
    scaled = {"RescaleSlope": 2, "RescaleIntercept": -630}
    pixels = shown(write_dicom(tmp_path / "b.dcm", **scaled), white=630)
    np.testing.assert_allclose(pixels, np.clip(2.0 * RAMP - 630, 0, None) / 630 * 255, atol=1)
    bits = {"BitsStored": 10, "HighBit": 9, "PhotometricInterpretation": "MONOCHROME1"}
    unsigned = write_dicom(tmp_path / "c.dcm", RAMP.astype(np.uint16), **bits)
    np.testing.assert_allclose(shown(unsigned, white=1023), (1023 - RAMP) / 1023 * 255, atol=1)
    signed = write_dicom(tmp_path / "d.dcm", RAMP - 630, PhotometricInterpretation="MONOCHROME1")
    np.testing.assert_allclose(shown(signed, white=630), (629 - RAMP) / 630 * 255, atol=1)


def test_without_a_window_or_a_setting_white_is_the_files_own_limit(tmp_path: Path) -> None:
    """Twelve bits beside public images of eight are not nearly black."""
    bits = {"BitsStored": 12, "HighBit": 11}
    plain = shown(write_dicom(tmp_path / "a.dcm", (RAMP * 6).astype(np.uint16), **bits))
    np.testing.assert_allclose(plain, RAMP * 6 / 4095 * 255, atol=1)
    scaled = {"RescaleSlope": 2, "RescaleIntercept": -1000, **bits}
    pixels = shown(write_dicom(tmp_path / "b.dcm", (RAMP * 6).astype(np.uint16), **scaled))
    np.testing.assert_array_equal(pixels, plain)
    inverted = {"PhotometricInterpretation": "MONOCHROME1", **bits}
    pixels = shown(write_dicom(tmp_path / "c.dcm", (RAMP * 6).astype(np.uint16), **inverted))
    np.testing.assert_allclose(pixels, 255 - plain.astype(float), atol=1)
    signed = shown(write_dicom(tmp_path / "d.dcm", RAMP * 50 - 16000))
    np.testing.assert_allclose(signed, (RAMP * 50.0 - 16000 + 32768) / 65535 * 255, atol=1)


def test_the_middle_frame_and_colours(tmp_path: Path) -> None:
    frames = np.stack([RAMP, RAMP + 1, RAMP * 0 + 300, RAMP + 3])
    assert (shown(write_dicom(tmp_path / "a.dcm", frames), white=600) == 127).all()
    colours = np.zeros((8, 8, 3), dtype=np.uint8) + np.array([9, 99, 199], dtype=np.uint8)
    assert (shown(write_dicom(tmp_path / "b.dcm", colours), channels=3) == [9, 99, 199]).all()


BODY = np.arange(8**3, dtype=np.int16).reshape(8, 8, 8)  # by left, back and head (L, P, H)
# What radiologists see from the left to the right, and from above to below
PLANES = {"axial": ("L", "P"), "coronal": ("L", "F"), "sagittal": ("P", "F")}
AXES = {"L": 0, "R": 0, "P": 1, "A": 1, "H": 2, "F": 2}


def cut(right: str, down: str) -> np.ndarray:
    """The plane of BODY at 3 whose rows go one way, and whose columns another."""
    (fixed,) = {0, 1, 2} - {AXES[right], AXES[down]}
    plane = BODY.take(3, fixed)
    plane = plane.T if AXES[down] > AXES[right] else plane  # [down, right]
    plane = plane[:, ::-1] if right in "RAF" else plane
    return plane[::-1] if down in "RAF" else plane


def cosines(right: str, down: str, tilt: float = 0.0) -> list[float]:
    steps = np.zeros((2, 3)) + tilt
    for step, way in zip(steps, (right, down), strict=True):
        step[AXES[way]] = -1 if way in "RAF" else 1
    return steps.ravel().tolist()


@pytest.mark.parametrize("name", PLANES)
@pytest.mark.parametrize("tilt", [0.0, 0.3])
def test_a_plane_of_a_patient_is_shown_as_radiologists_see_it(tmp_path, name, tilt) -> None:
    expected = shown(write_dicom(tmp_path / "a.dcm", cut(*PLANES[name])), white=600)
    axes = {AXES[way] for way in PLANES[name]}
    ways = [way for way in AXES if AXES[way] in axes]
    pairs = [(a, b) for a in ways for b in ways if AXES[a] != AXES[b]]
    assert len(pairs) == 8
    for right, down in pairs:
        about = {"ImageOrientationPatient": cosines(right, down, tilt)}
        path = write_dicom(tmp_path / "b.dcm", cut(right, down), **about)
        assert (shown(path, white=600) == expected).all(), (right, down)


def test_colours_are_turned_and_odd_orientations_are_not(tmp_path: Path) -> None:
    colours = np.random.default_rng(0).integers(0, 256, (8, 8, 3)).astype(np.uint8)
    plain = shown(write_dicom(tmp_path / "a.dcm", colours), channels=3)
    turned = {"ImageOrientationPatient": cosines("R", "A")}
    found = shown(write_dicom(tmp_path / "b.dcm", colours, **turned), channels=3)
    assert (found == plain[::-1, ::-1]).all()
    for odd in (None, [1, 0, 0], [0.0] * 6):
        path = write_dicom(tmp_path / "c.dcm", colours, ImageOrientationPatient=odd)
        assert shown(path, channels=3).shape == plain.shape


def test_functional_groups_say_what_is_black_and_how_the_patient_lies(tmp_path: Path) -> None:
    frames = np.stack([RAMP, RAMP + 1, RAMP + 2, RAMP + 3])
    about = {"WindowCenter": 300, "WindowWidth": 401, "RescaleSlope": 2, "RescaleIntercept": -400}
    plain = shown(write_dicom(tmp_path / "a.dcm", frames, **about))
    scale = part(RescaleSlope=2, RescaleIntercept=-400)
    way = part(ImageOrientationPatient=cosines("R", "A"))
    shared = part(PixelValueTransformationSequence=[scale], PlaneOrientationSequence=[way])
    windows = [part(WindowCenter=c, WindowWidth=401) for c in (0, 1, 300, 3)]
    each = [part(FrameVOILUTSequence=[window]) for window in windows]
    groups = {"SharedFunctionalGroupsSequence": [shared], "PerFrameFunctionalGroupsSequence": each}
    found = shown(write_dicom(tmp_path / "b.dcm", frames, **groups))
    assert len({*plain.ravel()}) > 5
    assert (found == plain[::-1, ::-1]).all()
    groups["PerFrameFunctionalGroupsSequence"] = each[:1]  # fewer than frames: no window
    few = shown(write_dicom(tmp_path / "c.dcm", frames, **groups), white=1000)
    expected = np.clip(2.0 * frames[2] - 400, 0, None)[::-1, ::-1] / 1000 * 255
    np.testing.assert_allclose(few, expected, atol=1)


def test_files_of_scanners(tmp_path: Path) -> None:
    """pydicom's: 15 frames of a dose without a window, and a slice of a head with one."""
    dose = Path(str(get_testdata_file("rtdose.dcm", download=False)))
    stored = dcmread(dose).pixel_array
    assert stored.shape == (15, 10, 10)
    middle = decode(dose, (10, 10), 1, float(stored.max()))
    assert middle is not None
    np.testing.assert_allclose(middle[..., 0], stored[7] / stored.max() * 255, atol=1)

    head = Path(str(get_testdata_file("MR_small.dcm", download=False)))
    file = dcmread(head)
    assert (file.WindowCenter, file.WindowWidth) == (600, 1600)
    pixels = decode(head, (64, 64), 1, None)
    assert pixels is not None
    part = np.clip((file.pixel_array - 599.5) / 1599 + 0.5, 0, 1)  # C.11.2.1.2.1
    np.testing.assert_allclose(pixels[..., 0], part * 255, atol=0.51)
    for turned in (cosines("R", "A"), cosines("P", "L")):
        file.ImageOrientationPatient = turned
        file.save_as(tmp_path / "a.dcm")
        other = decode(tmp_path / "a.dcm", (64, 64), 1, None)
        assert other is not None
        kept = other[::-1, ::-1] if turned[0] else other.swapaxes(0, 1)
        assert (kept == pixels).all()


@pytest.mark.parametrize("ending", [".nii", ".nii.gz"])
@pytest.mark.parametrize("codes", ["RAS", "LPS", "SAR", "AIL"])
def test_the_middle_axial_slice_upright(tmp_path: Path, ending: str, codes: str) -> None:
    """However the voxels are stored, the right (x) is on the left, and the front (y) is above."""
    volume = np.zeros((8, 8, 5), dtype=np.float32)
    volume[..., 2] = np.arange(8)[:, None] * 10 + np.arange(8)  # 10 x + y
    volume[..., 3] = 999
    ornt = nibabel.orientations.axcodes2ornt("RAS")
    turned = nibabel.orientations.ornt_transform(ornt, nibabel.orientations.axcodes2ornt(codes))
    image = nibabel.Nifti1Image(volume, np.diag([2.0, 2.0, 3.0, 1.0])).as_reoriented(turned)
    nibabel.save(image, tmp_path / f"a{ending}")
    expected = np.arange(8)[::-1] * 10 + np.arange(8)[::-1, None]
    np.testing.assert_allclose(shown(tmp_path / f"a{ending}", white=255), expected, atol=1)


def damaged(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of files of which none can be read."""
    whole = write_dicom(folder / "cut.dcm").read_bytes()
    (folder / "cut.dcm").write_bytes(whole[:-50])
    (folder / "empty.dcm").touch()
    (folder / "none.dcm").write_bytes(b"no image" * 99)
    write_dicom(folder / "large.dcm", np.zeros((65, 64), dtype=np.int16))
    write_dicom(folder / "palette.dcm", PhotometricInterpretation="PALETTE COLOR")
    deflated = whole.replace(b"1.2.840.10008.1.2.1\0", b"1.2.840.10008.1.2.1.99")
    assert deflated != whole
    (folder / "deflated.dcm").write_bytes(deflated)
    (folder / "none.nii.gz").write_bytes(b"no image" * 99)
    eye = np.eye(4)
    nibabel.save(nibabel.Nifti1Image(np.zeros((65, 64, 3), np.int16), eye), folder / "large.nii")
    nibabel.save(nibabel.Nifti1Image(np.zeros((8, 8), np.int16), eye), folder / "flat.nii")
    nibabel.save(nibabel.Nifti1Image(np.zeros((9, 9, 99), np.int16), eye), folder / "deep.nii")
    monkeypatch.setattr("labelwall.wall.datasets.readers.MAX_PIXELS", 64 * 64)
    monkeypatch.setattr(medical, "MAX_VOXELS", 5_000)
    return [path.name for path in folder.iterdir()]


def test_a_damaged_or_huge_file_is_dropped_in_silence(tmp_path, monkeypatch, capfd) -> None:
    place = tmp_path / "private" / "cat"
    place.mkdir(parents=True)
    names = damaged(place, monkeypatch)
    write_dicom(place / "good.dcm")
    images = read_images(place, [*names, "good.dcm"], (8, 8), 1)
    assert images.readable.tolist() == [False] * len(names) + [True]
    (tmp_path / "private" / "dog").mkdir()
    config = DataConfig("folder", private=str(tmp_path / "private"), image_size=8, channels=1)
    task = Task(ClassLabels(("cat", "dog")), (8, 8, 1))
    assert len(open_records(config, task).labels) == 1
    assert capfd.readouterr() == ("", "")


def test_public_files_say_what_is_white_and_which_is_damaged(tmp_path: Path) -> None:
    for split in ("private", "public", "test"):
        for number, name in enumerate(("cat", "dog")):
            for n in range(3):
                write_dicom(tmp_path / split / name / f"{n}.dcm", RAMP + 3 * number + n)
    places = {split: str(tmp_path / split) for split in ("private", "public", "test")}
    data = own_settings(places, {})["data"]
    assert (data["channels"], data["white"], data["image_size"]) == (1, 1023, 16)
    config = DataConfig(**data)
    assert read_public(config).inputs.shape == (6, 16, 16, 1)
    Image.new("L", (8, 8)).save(tmp_path / "public" / "plain.png")
    assert len(read_public(config).inputs) == 7
    (tmp_path / "public" / "cat" / "1.dcm").write_bytes(b"no image")
    with pytest.raises(InvalidInput, match=r"cat/1\.dcm"):
        read_public(config)
