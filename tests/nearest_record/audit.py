"""The statistical audit: nobody, and one record of the last class, which answers every query."""

import numpy as np

from labelwall.teacher.audits.harness import EMPTY, Case, Pair, drawn_case
from labelwall.teacher.mechanisms.nearest_record import NearestRecord
from labelwall.teacher.mechanisms.voters import Voters
from labelwall.teacher.search.cpu import ExactIndex
from labelwall.wall.guarantee import Unit


def answers(mechanism: NearestRecord, unit: Unit) -> list[Case]:
    def side(pair: Pair, added: bool) -> Voters:
        index = ExactIndex(np.zeros((int(added), 1), dtype=np.int8), np.arange(int(added)))
        query = np.zeros((1, 1), dtype=np.int8)
        return Voters(index, pair.labels(added), pair.num_classes, query)

    priced = mechanism.releases(1, 1)
    return [drawn_case(mechanism, "response", [EMPTY], side, lambda values, _: values, priced)]
