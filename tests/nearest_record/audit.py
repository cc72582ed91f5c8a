"""The statistical audit: nobody, and one record of the last class, which answers every query."""

import numpy as np

from labelwall.teacher.audits.harness import EMPTY, Case, Pair, drawn
from labelwall.teacher.mechanisms.nearest_record import RESPONSE, NearestRecord
from labelwall.teacher.mechanisms.voters import Voters
from labelwall.teacher.noise.entropy import Entropy
from labelwall.teacher.search.cpu import ExactIndex
from labelwall.wall.guarantee import Unit


def answers(mechanism: NearestRecord, unit: Unit) -> list[Case]:
    def run(pair: Pair, added: bool, n: int, entropy: Entropy) -> np.ndarray:
        index = ExactIndex(np.zeros((int(added), 1), dtype=np.int8), np.arange(int(added)))
        query = np.zeros((1, 1), dtype=np.int8)
        voters = Voters(index, pair.labels(added), pair.num_classes, query)
        return np.concatenate(list(drawn(mechanism, RESPONSE, voters, n, entropy)))

    return [Case(RESPONSE, [EMPTY], run, mechanism.releases(1, 1))]
