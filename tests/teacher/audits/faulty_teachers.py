"""Sources of noise and teachers that are broken on purpose, each in one way."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from labelwall.teacher.noise.entropy import SystemEntropy
from labelwall.teacher.records.sources import Records
from labelwall.teacher.teacher import Teacher
from labelwall.wall.messages import ExtractorSpec
from tests.seeded_noise import SeededNoise


class RefillsWhenAdded(Teacher):
    """A record that comes again starts anew."""

    def add(self, records: Records) -> None:
        super().add(records)
        budgets = self._ledger.individual_budgets
        budgets.spent[0][budgets.serials(records.ids)] = 0


class SeededEntropy(SeededNoise):
    """Repeatable draws that pass for the system's."""

    unsafe = False

    def __init__(self) -> None:
        super().__init__(seed=0)


class GlobalEntropy(SystemEntropy):
    """Noise from numpy's global generator, which anybody may have seeded."""

    def discrete_gaussian(
        self, sigma: float, keys: Sequence[str], release: str, width: int
    ) -> np.ndarray:
        return np.rint(np.random.normal(0, sigma, (len(keys), width))).astype(np.int64)


class ForkedEntropy(SystemEntropy):
    """A generator seeded by the system, once: processes forked afterwards draw alike."""

    def __init__(self) -> None:
        self._generator = np.random.default_rng()

    def discrete_gaussian(
        self, sigma: float, keys: Sequence[str], release: str, width: int
    ) -> np.ndarray:
        return np.rint(self._generator.normal(0, sigma, (len(keys), width))).astype(np.int64)


class CentredByPrivateMean(Teacher):
    """Centres features by the mean of the private rows."""

    def use_extractor(self, spec: ExtractorSpec) -> None:
        mean = self.records().inputs.mean(axis=0, dtype=np.float64)
        super().use_extractor(replace(spec, center=tuple(mean.tolist())))


class ChecksAfterRelease(Teacher):
    """Draws for everyone who is due, then asks the ledger who may have the result."""

    def _settle(
        self, slot: int, keys: list[str], queries: np.ndarray, inputs: np.ndarray | None = None
    ) -> None:
        mechanism, batch = self._mechanisms[slot], keys
        voters = replace(self._prepared, queries=queries, inputs=inputs)
        for stage in mechanism.stages:
            results = self._ledger.state.results
            due = [i for i in batch if mechanism.next_stage(results.get(i, {})) == stage]
            drawn = mechanism.draw(
                stage, voters.select([batch.index(i) for i in due]), due, self._entropy
            )
            charge = self._ledger.charge(slot, stage, due)
            if charge.granted:
                results = dict(zip(due, drawn.tolist(), strict=True))
                self._ledger.record(charge, {i: results[i] for i in charge.granted})
