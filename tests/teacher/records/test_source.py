"""What is known of private files before a row is read; forms are in custody's tests of places."""

from pathlib import Path

import numpy as np

from labelwall.teacher.records.source import source_digest
from labelwall.wall.datasets.data_config import DataConfig


def test_a_source_is_another_one_once_its_rows_have_other_places(image_folders, tmp_path):
    folder = DataConfig(source="folder", private=image_folders["private"])
    before, image = source_digest(folder), Path(image_folders["private"], "cat", "0.png")
    image.write_bytes(b"other bytes in the same place")
    assert source_digest(folder) == before
    image.unlink()
    assert source_digest(folder) != before
    np.savez(tmp_path / "a.npz", private_x=np.zeros(2))
    arrays = DataConfig(source="arrays", path=str(tmp_path / "a.npz"))
    before = source_digest(arrays)
    assert source_digest(arrays) == before
    np.savez(tmp_path / "a.npz", private_x=np.zeros(3))
    assert source_digest(arrays) != before
    assert source_digest(DataConfig()) == source_digest(DataConfig("mnist"))
    query = DataConfig("table", private="rows.sql", public="u.csv")
    assert source_digest(query) != source_digest(query)  # whatever the server holds
