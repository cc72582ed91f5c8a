"""Mechanisms, entropies and teachers that are broken on purpose, each in one way. They exist for
the audits to catch.

All claim what their parents claim: fields, plan and ledger look as if nothing were wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from labelwall.teacher.mechanisms.private_knn import PrivateKnn
from labelwall.teacher.mechanisms.voters import Voters
from labelwall.teacher.mechanisms.votes import AGGREGATE, SCREEN
from labelwall.teacher.noise.entropy import Entropy, SystemEntropy
from labelwall.teacher.teacher import Teacher
from labelwall.wall.messages import ExtractorSpec
from tests.seeded_noise import SeededNoise


class HalfTheNoise(PrivateKnn):
    """Draws noise of half the scale that is accounted."""

    def draw(self, stage: str, voters: Any, keys: Sequence[str], entropy: Entropy) -> np.ndarray:
        return super().draw(stage, voters, keys, HalfScale(entropy))


class HalfScale:
    """Noise of half the scale that is asked for."""

    unsafe = False

    def __init__(self, entropy: Entropy) -> None:
        self.inclusion, self._entropy = entropy.inclusion, entropy

    def discrete_gaussian(
        self, sigma: float, keys: Sequence[str], release: str, width: int
    ) -> np.ndarray:
        return self._entropy.discrete_gaussian(sigma / 2, keys, release, width)

    def discrete_laplace(
        self, scale: float, keys: Sequence[str], release: str, width: int
    ) -> np.ndarray:
        return self._entropy.discrete_laplace(scale / 2, keys, release, width)


class WithReplacement(PrivateKnn):
    """Samples round(gamma n) records with replacement and accounts for Poisson samples, as the
    published code does.
    """

    def draw(self, stage: str, voters: Any, keys: Sequence[str], entropy: Entropy) -> np.ndarray:
        return super().draw(stage, _Voters(voters, self._sampled), keys, entropy)

    def _sampled(
        self, voters: Any, keys: Sequence[str], release: str, entropy: Entropy
    ) -> np.ndarray:
        n = len(voters.index)
        ranks = np.random.default_rng().integers(
            0, max(n, 1), (len(keys), round(self.sampling_probability * n))
        )
        nearest = voters.index.prefix(voters.queries[:1], n)[0]  # the audit's queries are all alike
        classes = voters.labels[nearest[np.sort(ranks, axis=1)[:, : self.k]]]
        return np.stack([(classes == c).sum(axis=1) for c in range(voters.num_classes)], axis=1)


class OneSample(PrivateKnn):
    """Screening and aggregation of a query see the same sample, with noise of their own."""

    def draw(self, stage: str, voters: Any, keys: Sequence[str], entropy: Entropy) -> np.ndarray:
        return super().draw(stage, _Voters(voters, self._remembered), keys, entropy)

    def _remembered(
        self, voters: Any, keys: Sequence[str], release: str, entropy: Entropy
    ) -> np.ndarray:
        samples: dict[str, np.ndarray] = self.__dict__.setdefault("samples", {})
        if release == AGGREGATE and all(key in samples for key in keys):
            return np.array([samples.pop(key) for key in keys])
        votes = voters.votes(self.k, self.sampling_probability, keys, release, entropy)
        if release == SCREEN:
            samples.update(zip(keys, votes, strict=True))
        return votes


class SilentWhenEmpty(PrivateKnn):
    """Nobody voted: answers class 0, and the screening no, without noise."""

    def draw(self, stage: str, voters: Any, keys: Sequence[str], entropy: Entropy) -> np.ndarray:
        seen: list[np.ndarray] = []

        def votes(voters: Any, keys: Sequence[str], release: str, entropy: Entropy) -> np.ndarray:
            seen.append(voters.votes(self.k, self.sampling_probability, keys, release, entropy))
            return seen[-1]

        drawn = super().draw(stage, _Voters(voters, votes), keys, entropy)
        return np.where(seen[0].sum(axis=1) == 0, 0, drawn)


class _Voters:
    """Units whose votes come from somewhere else: ``source(voters, keys, release,
    entropy)``.
    """

    def __init__(
        self, voters: Any, source: Callable[[Any, Sequence[str], str, Entropy], np.ndarray]
    ) -> None:
        self._voters, self._source = voters, source

    def votes(
        self, k: int, probability: float, keys: Sequence[str], release: str, entropy: Entropy
    ) -> np.ndarray:
        return self._source(self._voters, keys, release, entropy)


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

    def use_extractor(self, spec: ExtractorSpec, probe: np.ndarray | None = None) -> None:
        mean = self.records().inputs.mean(axis=0, dtype=np.float64)
        super().use_extractor(replace(spec, center=tuple(mean.tolist())), probe)


class ChecksAfterRelease(Teacher):
    """Draws for everyone who is due, then asks the ledger who may have the result."""

    def _settle(self, slot: int, batch: list[str], voters: Voters) -> None:
        mechanism = self._mechanisms[slot]
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
