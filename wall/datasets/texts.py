"""Free text as vectors: n-grams on axes that PUBLIC texts give, or a sentence model.

A text's vector depends on that text alone, to the bit.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import InvalidInput, MissingData, extra

if TYPE_CHECKING:
    from scipy.sparse import csr_array

HASHED, SENTENCE = "hashed", "sentence/"  # values of data.text_features; with a model's name
BUCKETS = 1 << 20  # of hashed n-grams
ANALYSERS = (("word", (1, 2)), ("char_wb", (3, 4)))
# Of public texts: those that axes are from; that an n-gram is in, at least; n-grams kept; axes.
MOST_TEXTS, LEAST_TEXTS, MOST_GRAMS, AXES = 10_000, 2, 1 << 14, 128
LONGEST = 10_000  # characters of a text; the rest is not looked at
BLOCK = 1024  # texts at a time, which bounds memory
LEAST_WORDS, DIFFERENT = 5, 0.5  # words of a cell; different ones, as a share


def is_prose(cells: Sequence[str]) -> bool:
    """Whether PUBLIC cells, those that are there, are free text: many words, mostly different."""
    words = sum(len(cell.split()) for cell in cells)
    return len(set(cells)) >= max(2, DIFFERENT * len(cells)) and words >= LEAST_WORDS * len(cells)


@dataclass(frozen=True)
class NGrams:
    """Vectors of texts: tf-idf of their known n-grams, of length 1, on axes.

    ``buckets``: base64 of uint32 [v], ascending: hashes of the known n-grams. ``weights``: base64
    of float16 [v, 1 + d]: the inverse document frequency of each, and its entries of the axes.
    """

    buckets: str
    weights: str

    def __post_init__(self) -> None:
        known, weights = self._known, self._weights
        whole = len(known) > 0 and (np.diff(known) > 0).all() and known[-1] < BUCKETS
        if not (whole and weights.shape[1] > 1 and np.isfinite(weights).all()):
            raise InvalidInput("table", "n-grams with finite weights", "others")

    @cached_property
    def _known(self) -> np.ndarray:
        return _array(self.buckets, "<u4").astype(np.int64)

    @cached_property
    def _weights(self) -> np.ndarray:
        """float64 [v, 1 + d]."""
        entries, grams = _array(self.weights, "<f2"), len(self._known)
        if not grams or len(entries) % grams:
            raise InvalidInput("table", "weights for each n-gram", "others")
        return entries.astype(np.float64).reshape(grams, -1)

    @property
    def width(self) -> int:
        return self._weights.shape[1] - 1

    @property
    def words(self) -> str:
        """What this is, for a reader."""
        grams = f"tf-idf of {len(self._known)} hashed n-grams of words and characters"
        return f"{grams} on {self.width} axes of the public texts"

    def vectors(self, texts: Sequence[str]) -> np.ndarray:
        """Vectors float64 [n, d]; zeros for a text without a known n-gram.

        scipy adds a row's products in the order of that row's own entries, so that no other row
        changes a bit.
        """
        vectors = np.zeros((len(texts), self.width))
        for start in range(0, len(texts), BLOCK):
            part = slice(start, start + BLOCK)
            counts = _counts(texts[part])[:, self._known]
            vectors[part] = _weighted(counts, self._weights[:, 0]) @ self._weights[:, 1:]
        return vectors


def _array(text: str, dtype: str) -> np.ndarray:
    try:
        return np.frombuffer(base64.b64decode(text, validate=True), dtype)
    except ValueError as error:
        raise InvalidInput("table", "base64 of whole numbers or weights", "others") from error


def _base64(array: np.ndarray) -> str:
    return base64.b64encode(array.tobytes()).decode()


def _counts(texts: Sequence[str]) -> csr_array:
    """How often each hashed n-gram is in each text: [n, BUCKETS]."""
    from scipy.sparse import csr_array
    from sklearn.feature_extraction.text import HashingVectorizer

    parts = [
        HashingVectorizer(
            analyzer=kind, ngram_range=sizes, n_features=BUCKETS, norm=None, alternate_sign=False
        ).transform(texts)
        for kind, sizes in ANALYSERS
    ]
    return csr_array(sum(parts[1:], parts[0]))


# By count: a table, as a processor's logarithm of an array may round by an entry's place. A text
# has fewer n-grams, also if a letter is two in lower case (İ).
_DAMPED = 1 + np.log(np.arange(1, 8 * LONGEST))


def _weighted(counts: csr_array, rarity: np.ndarray) -> csr_array:
    from scipy.sparse import csr_array
    from sklearn.preprocessing import normalize

    entries = _DAMPED[counts.data.astype(np.int64) - 1] * rarity[counts.indices]
    return normalize(csr_array((entries, counts.indices, counts.indptr), counts.shape))


@lru_cache(maxsize=8)
def n_grams(texts: tuple[str, ...]) -> NGrams:
    """The n-grams and axes of PUBLIC texts, of which some are not empty."""
    from sklearn.utils.extmath import randomized_svd

    counts = _counts(texts[:: -(-len(texts) // MOST_TEXTS)])
    frequency = np.bincount(counts.indices, minlength=BUCKETS)  # of texts
    least = min(LEAST_TEXTS, int(frequency.max()))
    grams = np.argsort(-frequency, kind="stable")[:MOST_GRAMS]
    grams = np.sort(grams[frequency[grams] >= max(least, 1)])
    rarity = 1 + np.log((1 + counts.shape[0]) / (1 + frequency[grams]))
    weighted = _weighted(counts[:, grams], rarity)
    _, _, axes = randomized_svd(weighted, min(AXES, *weighted.shape), random_state=0)
    weights = np.column_stack([rarity, axes.T])
    return NGrams(_base64(grams.astype("<u4")), _base64(weights.astype("<f2")))


def cleaned(cells: Iterable[object]) -> list[str]:
    """Cells as texts of UTF-8's characters, without spaces around them; "" if there is none."""
    texts = ("" if cell is None or cell != cell else str(cell).strip() for cell in cells)
    return [text[:LONGEST].encode(errors="backslashreplace").decode() for text in texts]


def require_encoder(name: str) -> None:
    """Raise InvalidInput for a ``name`` that is no value of data.text_features."""
    if name != HASHED and not re.fullmatch(rf"{SENTENCE}[^\0]{{1,999}}", name):
        rule = f"{HASHED}, or {SENTENCE}NAME of a sentence model or of its folder"
        raise InvalidInput("data.text_features", rule, name)


def model_name(name: str) -> str:
    """A value of data.text_features without a place on a machine: HASHED, or SENTENCE and the last
    part of the model's name.
    """
    return name if name == HASHED else SENTENCE + name.rstrip("/").rpartition("/")[2]


def sentence_vectors(name: str, texts: Sequence[str]) -> np.ndarray:
    """float64 [n, d] by a sentence model, which sees one text at a time.

    In a batch, other texts would decide how a product is rounded. Raises MissingData without the
    package or the model.
    """
    model = _sentence_model(name.removeprefix(SENTENCE))
    rows = [model.encode([text], show_progress_bar=False)[0] for text in ("", *texts)]
    return np.array(rows, dtype=np.float64)[1:]  # the first one tells how wide no texts are


@lru_cache(maxsize=2)
def _sentence_model(name: str) -> Any:
    with extra("text", "sentence models (data.text_features)"):
        import sentence_transformers
        from transformers.utils import logging
    logging.disable_progress_bar()
    place = str(Path(name).absolute()) if Path(name).is_dir() else name
    try:  # no code that a model brings is run
        return sentence_transformers.SentenceTransformer(
            place, device="cpu", trust_remote_code=False, model_kwargs={"use_safetensors": True}
        )
    except Exception as error:  # of many types: no network, no such model, a damaged folder
        text = "the name of a sentence model, which downloads itself, or the folder of one"
        raise MissingData(
            f"`data.text_features` must be {SENTENCE} and {text}. Found {SENTENCE + name!r}."
        ) from error


@lru_cache(maxsize=8)
def public_vectors(encoder: NGrams | str, texts: tuple[str, ...]) -> np.ndarray:
    """Vectors of PUBLIC texts, as ``vectors`` gives them, which a run reads several times."""
    return vectors(encoder, texts)


def vectors(encoder: NGrams | str, texts: Sequence[str]) -> np.ndarray:
    """float64 [n, d]; ``encoder``: n-grams, or a sentence model's name with its prefix."""
    if isinstance(encoder, NGrams):
        return encoder.vectors(texts)
    return sentence_vectors(encoder, texts)
