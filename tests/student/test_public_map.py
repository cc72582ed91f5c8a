"""Maps of public rows, and how often their nearest neighbours agree."""

from pathlib import Path

import numpy as np
import pytest

from labelwall.student.public_map import LEAST_ROWS, MOST_ROWS, nearest_right, save_map
from labelwall.student.round_files import MAP, RoundFiles
from labelwall.wall.messages import Outcome
from tests.experiment import tiny
from tests.experiment.results import made_round
from tests.student.public import public_rows


def test_nearest_neighbours_are_those_of_a_search_pair_by_pair() -> None:
    x, truth = tiny.rows(150, 5)
    truth = np.where(np.arange(150) % 5, truth, -1)
    public = public_rows(x, truth)
    rows, right = tiny.integers(x).astype(int), 0
    known = np.flatnonzero(truth >= 0)
    for one in known:
        others = [other for other in known if other != one]
        nearest = min(others, key=lambda other: ((rows[one] - rows[other]) ** 2).sum())
        right += truth[nearest] == truth[one]
    assert nearest_right(public, public.first) == pytest.approx(right / len(known))
    assert 0.5 < right / len(known) < 1


def test_few_or_no_labels_tell_nothing_of_neighbours() -> None:
    x, truth = tiny.rows(150, 5)
    for labels in (None, np.where(np.arange(150) < 99, truth, -1)):
        public = public_rows(x, labels)
        assert nearest_right(public, public.first) is None


def test_a_map_has_the_released_labels_and_the_same_bytes_again(tmp_path: Path) -> None:
    x, truth = tiny.rows(MOST_ROWS + 50, 6)
    public, results = public_rows(x, None), [made_round(), made_round()]
    maps = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        folder = RoundFiles(tmp_path / name)
        for number in (1, 2):
            half = np.arange(len(x))[number - 1 :: 2]
            outcomes = np.full(len(half), Outcome.ANSWERED, dtype=np.uint8)
            folder.save_answers(number, half, truth[half], outcomes)
            save_map(public, results[:number], folder)
        maps.append([(folder.round(number) / MAP).read_bytes() for number in (1, 2)])
    assert maps[0] == maps[1]
    with (
        np.load(tmp_path / "one/round_1" / MAP) as first,
        np.load(tmp_path / "one/round_2" / MAP) as second,
    ):
        rows = first["rows"]
        assert len(rows) == len({*rows.tolist()}) == MOST_ROWS
        np.testing.assert_array_equal(first["places"], second["places"])  # the same features
        assert (first["places"].min(), first["places"].max()) == (0, 1)
        np.testing.assert_array_equal(first["labels"], np.where(rows % 2, -1, truth[rows]))
        np.testing.assert_array_equal(second["labels"], truth[rows])


@pytest.mark.parametrize(("count", "different"), [(LEAST_ROWS - 1, True), (300, False)])
def test_few_rows_have_no_map(tmp_path: Path, count: int, different: bool) -> None:
    x = tiny.rows(count, 6)[0]
    folder = RoundFiles(tmp_path)
    save_map(public_rows(x if different else np.ones_like(x), None), [made_round()], folder)
    assert not (folder.round(1) / MAP).exists()
