"""A SIGKILL at any time loses no charge and changes no recorded answer."""

from typing import NamedTuple

import pytest

from tests.programs.kill_runner import kills


class Sweep(NamedTuple):
    """Statements between two kills, for a file and a server (0: none); the least kills; the most
    that a kill may leave paid and unrecorded: the batch in flight."""

    strides: tuple[int, int]
    least: tuple[int, int]
    most_lost: int


SWEEPS = {
    "private_knn": Sweep((1, 97), (200, 5), 2),
    "radius": Sweep((7, 0), (12, 0), 1),  # the batch, as a whole
    "ind_knn": Sweep((11, 131), (30, 5), 1),
    # Another process has reserved before, asks one of the same queries, and pays after the kill, or
    # during the first draw before it. It has settled its own.
    "ind_knn after": Sweep((131, 701), (15, 4), 1),
    "ind_knn during": Sweep((131, 701), (15, 4), 1),
}


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SWEEPS)
def test_kill_before_every_statement(tmp_path, socket, scenario):
    """On a server before some statements; test_lost_connections.py breaks every commit."""
    wanted, server = SWEEPS[scenario], bool(socket)
    if not wanted.strides[server]:
        pytest.skip("one engine is enough")
    root = tmp_path / scenario.replace(" ", "_")
    deaths = kills("teacher_sweep", root, wanted.strides[server], socket, scenario)
    assert len(deaths) > wanted.least[server]
    for kill in deaths:
        assert kill["problems"] == [], kill
        assert kill["paid"], kill  # nothing was drawn that was not on record as paid, or reserved
        assert kill["kept"], kill  # what was recorded before the kill is the answer after it
        assert kill["in_range"], kill  # nobody is refilled, nobody overdraws
        assert kill["lost"] <= wanted.most_lost, kill  # at most the batch in flight is paid again
        assert kill["beside"], kill  # whoever is killed, the other one is answered
    assert deaths[-1]["sent"]
    if scenario.startswith("ind_knn "):
        assert deaths[-1]["lost"] == 0
    if server:
        return  # too few kills to meet the window between charge and record for sure
    assert any(kill["lost"] for kill in deaths)
    if scenario == "ind_knn":  # what was reserved, at its most, stays paid
        assert any(kill["lost"] and kill["answered"] for kill in deaths)
        lost = [kill["spent"] for kill in deaths if kill["lost"]]
        assert sum(lost) / len(lost) > deaths[-1]["spent"]


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
