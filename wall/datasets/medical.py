"""Slices of DICOM and NIfTI files, as grey or RGB images; each follows from its own file alone."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ..errors import extra

SUFFIXES = (".dcm", ".nii", ".nii.gz")
MAX_BYTES = 1 << 30  # of a file
MAX_VOXELS = 1 << 28  # of a volume, which may be read as a whole
FAR = 1e9  # a grey that is beyond every window
ENDS = "ends\0"  # in an image's info; no file's own key has a zero

for _name in ("pydicom", "nibabel", "nibabel.global"):  # which would print what a file holds
    logging.getLogger(_name).setLevel(logging.CRITICAL + 1)


def is_medical(path: str | Path) -> bool:
    """Whether a file's name says so."""
    return str(path).lower().endswith(SUFFIXES)


def require_packages() -> None:
    """Raise MissingData unless such files can be read; for PUBLIC files alone."""
    with extra("medical", "DICOM and NIfTI files"):
        import nibabel  # noqa: F401
        import pydicom  # noqa: F401


def open_slice(path: Path, most: int) -> Image.Image:
    """The middle frame of a DICOM file, or the middle axial slice of a NIfTI file.

    ``most``: pixels. Greys are float32 (mode F), or 8 bits if the file has a window. Those of a
    DICOM file have its own black and white, ``info[ENDS]``, by the bits that it stores. Raises
    ValueError for larger files, and whatever the packages raise. They print nothing of a file.
    """
    if not path.is_file() or path.stat().st_size > MAX_BYTES:
        raise ValueError("no file, or one of too many bytes")
    return _frame(path, most) if path.name.lower().endswith(".dcm") else _axial(path, most)


def _frame(path: Path, most: int) -> Image.Image:
    """A frame of a DICOM file as it is to be shown: dark is low."""
    import pydicom
    from pydicom.pixels import apply_modality_lut, apply_windowing, pixel_array

    deflated = "1.2.840.10008.1.2.1.99"  # which would be inflated whole
    if pydicom.filereader.read_file_meta_info(path).get("TransferSyntaxUID") == deflated:
        raise ValueError("a deflated file")
    about = pydicom.dcmread(path, stop_before_pixels=True)
    frames = int(about.get("NumberOfFrames") or 1)
    if about.Rows * about.Columns > most:
        raise ValueError("too many pixels")
    stored = pixel_array(path, index=frames // 2)
    _of_frame(about, frames // 2)
    if stored.ndim == 3:
        return Image.fromarray(_upright(stored, about))  # RGB of 8 bits, or a TypeError
    inverted = about.PhotometricInterpretation == "MONOCHROME1"
    if not inverted and about.PhotometricInterpretation != "MONOCHROME2":
        raise ValueError("no greys")
    stored = _upright(stored, about)
    greys = np.asarray(apply_modality_lut(stored, about), dtype=np.float32)
    if "WindowCenter" in about and "WindowWidth" in about:
        shown = apply_windowing(np.append(greys, [-FAR, FAR]), about)
        low, high = shown[-2:]
        part = (shown[:-2].reshape(greys.shape) - low) / (high - low)
        return Image.fromarray(np.rint(255 * (1 - part if inverted else part)).astype(np.uint8))
    bits = int(about.BitsStored)
    first = -(1 << (bits - 1)) if about.PixelRepresentation else 0
    ends = np.sort(apply_modality_lut(np.array([first, first + (1 << bits) - 1]), about))
    if inverted:
        greys = float(ends.sum()) - greys
    image = Image.fromarray(greys.astype(np.float32))
    image.info[ENDS] = tuple(map(float, ends))
    return image


def _of_frame(about: Any, frame: int) -> None:
    """Let ``about`` say what a file's functional groups say of a frame (PS3.3, C.7.6.16)."""
    of = {"SharedFunctionalGroupsSequence": 0, "PerFrameFunctionalGroupsSequence": frame}
    for name, at in of.items():
        for macro in (about.get(name) or ())[at : at + 1]:
            for part in macro:
                about.update(part.value[0] if part.VR == "SQ" and part.value else {})


def _upright(plane: np.ndarray, about: Any) -> np.ndarray:
    """A plane [h, w, ...] as radiologists look at it, if its file says how the patient lies in it.

    The patient's left is on the right; the front is above in axial planes, the head in others, and
    the front of sagittal ones is on the left. Oblique planes are as the nearest of these.
    """
    cosines = np.ravel(about.get("ImageOrientationPatient") or ()).astype(float)
    if cosines.size != 6:
        return plane
    right, down = cosines.reshape(2, 3)  # what a step along a row and down a column is, L, P, H
    if abs(right).argmax() > abs(down).argmax():
        plane, right, down = plane.swapaxes(0, 1), down, right
    across, along = abs(right).argmax(), abs(down).argmax()
    plane = plane[:, ::-1] if right[across] < 0 else plane
    plane = plane[::-1] if (down[along] > 0) == (along == 2) else plane
    return np.ascontiguousarray(plane)


def _axial(path: Path, most: int) -> Image.Image:
    """A slice of the first volume, as ``_upright`` turns planes."""
    import nibabel

    volume: Any = nibabel.load(path)
    if len(volume.shape) < 3 or np.prod(volume.shape[:3], dtype=float) > MAX_VOXELS:
        raise ValueError("no volume, or one of too many voxels")
    (axis,) = np.flatnonzero(nibabel.io_orientation(volume.affine)[:, 0] == 2)
    part = [slice(None)] * 3 + [slice(0, 1)] * (len(volume.shape) - 3)
    middle = volume.shape[axis] // 2
    part[axis] = slice(middle, middle + 1)
    if volume.shape[0] * volume.shape[1] * volume.shape[2] // volume.shape[axis] > most:
        raise ValueError("too many pixels")
    upright: Any = nibabel.as_closest_canonical(volume.slicer[tuple(part)])
    plane = upright.get_fdata(dtype=np.float32)
    return Image.fromarray(plane.reshape(plane.shape[:2]).T[::-1, ::-1].copy())
