"""Where the private side keeps what it keeps."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from labelwall.teacher.custody import places
from labelwall.teacher.custody.groups import RoundConfig
from labelwall.teacher.custody.private_settings import PrivateSide
from labelwall.wall.datasets.data_config import DataConfig


def test_budgets_that_are_opened_together_are_all_in_the_sum(tmp_path, monkeypatch):
    read = places.budgets_of

    def slowly(beside: Path) -> dict[str, list[float]]:
        known = read(beside)
        time.sleep(0.02)
        return known

    monkeypatch.setattr(places, "budgets_of", slowly)
    (tmp_path / "rows.npz").touch()
    data = DataConfig(source="arrays", path=str(tmp_path / "rows.npz"))
    sides = [
        PrivateSide(data=data, rounds=[RoundConfig(queries=5)], custodian_dir=str(tmp_path / name))
        for name in "abcdefgh"
    ]
    with ThreadPoolExecutor(len(sides)) as pool:
        list(pool.map(lambda side: places.tell_budgets(side, lambda _: None), sides))
    beside = places.place_of(data)
    assert beside is not None
    assert len(read(beside)) == len(sides)
