"""A service killed under load, or in the midst of a removal, answers rightly afterwards."""

import pytest

from tests.programs.kill_runner import kills

PLACES = pytest.mark.parametrize(
    "socket", ["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)], indirect=True
)


@PLACES
def test_kill_under_load(tmp_path, socket):
    """All of this holds for any noise and any times of the kills; no test fails by chance."""
    (left,) = kills("service_kill_sweep", tmp_path / "service" / "kills", 3, socket)
    assert left["failed"] == 0, left  # every client got all its answers in the end
    assert left["told"] > 0
    assert left["wrong"] == 0
    assert left["paid"]
    assert left["problems"] == []
    assert left["lost"] <= 5 * 8  # a kill loses the charge of one stage of one batch of 8 at most


@PLACES
def test_a_removal_that_is_killed_between_two_analysts(tmp_path, socket):
    deaths = kills("removal_sweep", tmp_path / "service" / "removal", 1, socket)
    assert deaths[-1]["status"] == 0, deaths
    # the transaction, two teachers, their caches and the third one's, the directory's mark
    assert len(deaths) > 8
    # present before the transaction, gone after it, and again once done
    assert [kill["gone"] for kill in deaths] == [0] + [1] * (len(deaths) - 1)
