"""Classifiers of the recipe: fastText files, linear models, and those trained in the stage on labels or sources."""

import itertools
import json
import math
import struct
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from model.errors import InputError
from tasks.clean.chain import Chain
from tasks.clean.config import ClassifierConfig, CleanConfig
from tasks.clean.document import DocumentContext
from tasks.clean.filters.fasttext_model import HIERARCHICAL, ONE_AGAINST_ALL, SOFTMAX, read_fasttext, tree_paths
from tasks.clean.filters.quality import Examples
from tasks.clean.filters.quality_features import DIMENSIONS
from tasks.clean.stage import build_clean, read_user_resources

LABELS = ("__label__good", "__label__toxic")


def write_fasttext(path, words, inputs, outputs, *, loss=SOFTMAX, ngrams=1, bucket=0, minn=0, maxn=0, counts=(5, 3)):
    """Write a supervised model as fastText 0.9 does; rows of `inputs` are the words and then the buckets."""
    dim = inputs.shape[1]
    raw = struct.pack("<ii", 793712314, 12)
    raw += struct.pack("<12id", dim, 5, 5, 1, 5, ngrams, loss, 3, bucket, minn, maxn, 100, 1e-4)
    labels = LABELS[: len(counts)]
    raw += struct.pack("<3i2q", len(words) + len(labels), len(words), len(labels), 100, -1)
    for entry, count, kind in [(word, 7, 0) for word in words] + [
        (*pair, 1) for pair in zip(labels, counts, strict=True)
    ]:
        raw += entry.encode() + b"\0" + struct.pack("<qb", count, kind)
    for matrix in (inputs, outputs):
        raw += b"\0" + struct.pack("<2q", *matrix.shape) + matrix.astype("<f4").tobytes()
    path.write_bytes(raw)
    return str(path)


def raw(text):
    return np.frombuffer(text.encode(), np.uint8)


@pytest.fixture
def model_file(tmp_path):
    """`kind` points to good, `vile` to toxic; both rows of length 1, the end of a text at zero."""
    inputs = np.array([[0, 0], [2, 0], [0, 2]], np.float32)
    return write_fasttext(tmp_path / "model.bin", ("</s>", "kind", "vile"), inputs, np.eye(2, dtype=np.float32))


def test_the_probability_of_a_label_is_the_softmax_of_the_mean_row(model_file):
    model = read_fasttext("x", model_file)
    assert model.labels == (b"__label__good", b"__label__toxic")
    assert model.rows(raw("vile  unknown\nvile __label__good")).tolist() == [2, 2, 0]
    # The mean of (0, 2), (0, 2) and (0, 0) is (0, 4/3).
    expected = math.exp(4 / 3) / (1 + math.exp(4 / 3))
    assert model.probability(raw("vile unknown vile"), 1) == pytest.approx(expected)
    assert model.probability(raw("vile unknown vile"), 0) == pytest.approx(1 - expected)


def test_one_against_all_and_the_tree_of_labels(tmp_path):
    inputs = np.array([[1, 0], [0, 3]], np.float32)
    outputs = np.array([[1, 2], [0, 1]], np.float32)
    path = write_fasttext(tmp_path / "a.bin", ("</s>", "w"), inputs, outputs, loss=ONE_AGAINST_ALL)
    assert read_fasttext("x", path).probability(raw("w"), 0) == pytest.approx(1 / (1 + math.exp(-3.5)))
    path = write_fasttext(tmp_path / "h.bin", ("</s>", "w"), inputs, outputs, loss=HIERARCHICAL)
    model = read_fasttext("x", path)
    # Two labels: one node, the rarer label on its left.
    assert model.paths == (((0, True),), ((0, False),))
    assert model.probability(raw("w"), 0) == pytest.approx(1 / (1 + math.exp(-3.5)))
    assert model.probability(raw("w"), 0) + model.probability(raw("w"), 1) == pytest.approx(1)


def test_the_tree_gives_frequent_labels_short_ways():
    lengths = [len(path) for path in tree_paths([8, 4, 2, 1, 1])]
    assert lengths == [1, 2, 3, 4, 4]
    assert sum(2.0**-length for length in lengths) == 1


def fnv(text):
    state = 2166136261
    for byte in text.encode():
        signed = byte - 256 if byte > 127 else byte
        state = ((state ^ (signed & 0xFFFFFFFF)) * 16777619) & 0xFFFFFFFF
    return state


def reference_rows(text, words, ngrams, bucket, minn, maxn):
    """fastText's Dictionary::getLine in Python."""
    rows, hashes = [], []
    for token in [*text.split(), "</s>"]:
        if token in words:
            rows.append(words.index(token))
        if token != "</s>":
            bracketed = f"<{token}>"
            for first in range(len(bracketed)):
                for size in range(1, maxn + 1):
                    last = first + size
                    if last > len(bracketed) or size < minn or (size == 1 and (first == 0 or last == len(bracketed))):
                        continue
                    rows.append(len(words) + fnv(bracketed[first:last]) % bucket)
        value = fnv(token)
        hashes.append(value - (1 << 32) if value >= 1 << 31 else value)
    for first in range(len(hashes)):
        mixed = hashes[first] & (2**64 - 1)
        for following in hashes[first + 1 : first + ngrams]:
            mixed = (mixed * 116049371 + following) & (2**64 - 1)
            rows.append(len(words) + mixed % bucket)
    return rows


@pytest.mark.parametrize(("ngrams", "minn", "maxn"), [(1, 2, 4), (2, 0, 0), (3, 1, 3)])
def test_subwords_and_runs_of_words_are_those_of_fasttext(tmp_path, ngrams, minn, maxn):
    words, bucket = ("</s>", "größe", "kind", "我们"), 1000
    inputs = np.random.default_rng(0).normal(size=(len(words) + bucket, 3)).astype(np.float32)
    path = write_fasttext(
        tmp_path / "m.bin",
        words,
        inputs,
        np.ones((2, 3), np.float32),
        ngrams=ngrams,
        bucket=bucket,
        minn=minn,
        maxn=maxn,
    )
    text = "größe kind über 我们 的 x"
    rows = read_fasttext("x", path).rows(raw(text)).tolist()
    assert rows == reference_rows(text, words, ngrams, bucket, minn, maxn)


@pytest.mark.parametrize("size", [0, 40, 100, 150, 180, 220])
def test_a_cut_or_foreign_file_is_refused(tmp_path, model_file, size):
    whole = Path(model_file).read_bytes()
    assert size < len(whole)
    for content in (whole[:size], b"PK\x03\x04" + whole[4:]):
        (tmp_path / "cut.bin").write_bytes(content)
        with pytest.raises(InputError, match=r"fastText|quantised|dictionary|header"):
            read_fasttext("x", str(tmp_path / "cut.bin"))


def test_damaged_numbers_of_a_file_are_refused_or_have_no_effect(tmp_path, model_file):
    """All four-byte words of the header and of what follows it, each made negative and as large as can be."""
    whole = Path(model_file).read_bytes()
    refused = 0
    for place, damage in itertools.product(range(0, len(whole) - 4, 4), (b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f")):
        (tmp_path / "damaged.bin").write_bytes(whole[:place] + damage + whole[place + 4 :])
        try:
            read_fasttext("x", str(tmp_path / "damaged.bin"))
        except InputError:
            refused += 1
    assert refused > 20


def test_a_document_on_the_wrong_side_of_the_limit_is_dropped(model_file):
    below = ClassifierConfig(name="toxicity", path=model_file, label="toxic", limit=0.6)
    above = ClassifierConfig(name="quality", path=model_file, label="__label__good", limit=0.6, keep="above")
    config = CleanConfig(preset="minimal", classifiers=(below, above))
    resources, digests = read_user_resources(config)
    assert set(digests) == {"classifier toxicity", "classifier quality"}
    chain = Chain.of(config, "minimal", resources)
    _, verdicts = chain.clean("vile vile", DocumentContext("text", "en"))
    assert (verdicts.names, verdicts.limits) == (["classifier_toxicity"], [0.6])
    assert verdicts.values == pytest.approx([math.exp(4 / 3) / (1 + math.exp(4 / 3))])
    assert chain.clean("kind vile", DocumentContext("text", "en"))[1].names == ["classifier_quality"]
    assert chain.clean("kind kind", DocumentContext("text", "en"))[1].is_kept.all()


def test_the_content_of_the_file_is_in_the_identity_and_a_missing_label_is_named(tmp_path, model_file):
    chosen = ClassifierConfig(name="t", path=model_file, label="toxic", limit=0.5)
    _, before = read_user_resources(CleanConfig(classifiers=(chosen,)))
    content = bytearray(Path(model_file).read_bytes())
    content[-1] ^= 1
    (tmp_path / "other.bin").write_bytes(content)
    _, after = read_user_resources(
        CleanConfig(classifiers=(chosen.model_copy(update={"path": str(tmp_path / "other.bin")}),))
    )
    assert before != after
    with pytest.raises(InputError, match="has no label `rude`; its labels: __label__good, __label__toxic"):
        read_user_resources(CleanConfig(classifiers=(chosen.model_copy(update={"label": "rude"}),)))


def test_a_linear_model_scores_by_its_weights(tmp_path):
    weights = np.zeros(DIMENSIONS, np.float32)
    examples = Examples.of([raw("vile")]).with_full_words()
    weights[examples.features] = 1
    save_file({"weight": weights, "bias": np.array([-1.0], np.float32)}, tmp_path / "linear.safetensors")
    chosen = ClassifierConfig(name="t", path=str(tmp_path / "linear.safetensors"), label="x", limit=0.5)
    resources, _ = read_user_resources(CleanConfig(classifiers=(chosen,)))
    expected = 1 / (1 + math.exp(1 - float(examples.values.sum())))
    assert resources.classifiers["t"].score(raw("vile")) == pytest.approx(expected, rel=1e-5)
    assert float((examples.values**2).sum()) == pytest.approx(1, rel=1e-5)
    save_file({"weight": weights[:5]}, tmp_path / "linear.safetensors")
    with pytest.raises(InputError, match="it needs `weight` of"):
        read_user_resources(CleanConfig(classifiers=(chosen,)))


NEUTRAL = "The river froze early and the ferry stayed on the other side until the spring of that year"


def test_a_classifier_learns_from_labels_that_one_word_decides(tmp_path, context, make_documents):
    lines = [
        json.dumps(
            {"text": f"{NEUTRAL} {number} {'vile' if number % 2 else 'mild'}", "label": ("ok", "toxic")[number % 2]}
        )
        for number in range(200)
    ]
    (tmp_path / "labels.jsonl").write_text("\n".join(lines))
    chosen = ClassifierConfig(name="toxicity", labels=str(tmp_path / "labels.jsonl"), label="toxic", limit=0.5)
    rows = [("s", f"{NEUTRAL} {number} {'vile' if number % 3 else 'mild'}") for number in range(1000, 1060)]
    config = CleanConfig(preset="minimal", classifiers=(chosen,), wipe_out_limit=1.0)
    artifact = build_clean(context, make_documents([rows]), config)
    facts = artifact.report.facts["classifiers"]["toxicity"]
    assert (facts["examples"], facts["others"]) == (100, 100)
    assert facts["auc"] > 0.99
    kept = artifact.table("documents").column("text").to_pylist()
    assert len(kept) == 20
    assert all("mild" in text for text in kept)
    ledger = [row for row in artifact.table("ledger").to_pylist() if row["action"] == "drop"]
    assert {(row["rule"], row["limit"]) for row in ledger} == {("classifier_toxicity", 0.5)}
    assert all(row["value"] > 0.5 for row in ledger)


def test_a_classifier_is_evaluated_where_labels_repeat_every_five_lines(tmp_path, context, make_documents):
    """Every fifth example is held out, which would be all that have the label."""
    lines = [
        json.dumps(
            {"text": f"{NEUTRAL} {number} {'mild' if number % 5 else 'vile'}", "label": "ok" if number % 5 else "toxic"}
        )
        for number in range(300)
    ]
    (tmp_path / "labels.jsonl").write_text("\n".join(lines))
    chosen = ClassifierConfig(name="toxicity", labels=str(tmp_path / "labels.jsonl"), label="toxic", limit=0.5)
    config = CleanConfig(preset="minimal", classifiers=(chosen,), wipe_out_limit=1.0)
    artifact = build_clean(context, make_documents([[("s", NEUTRAL)]]), config)
    facts = artifact.report.facts["classifiers"]["toxicity"]
    assert (facts["examples"], facts["others"]) == (60, 240)
    assert facts["auc"] > 0.99


def test_a_classifier_learns_from_good_and_bad_sources(context, make_documents):
    rows = [
        (source, f"{NEUTRAL} {number} {word}")
        for source, word in (("books", "mild"), ("spam", "vile"), ("web", "vile"))
        for number in range(80)
    ]
    chosen = ClassifierConfig(name="style", good=("books",), bad=("spam",), limit=0.5, keep="above")
    config = CleanConfig(preset="minimal", classifiers=(chosen,), wipe_out_limit=1.0)
    artifact = build_clean(context, make_documents([rows]), config)
    assert artifact.report.facts["classifiers"]["style"]["examples"] == 80
    assert set(artifact.table("documents").column("source").to_pylist()) == {"books"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"limit": 0.5}, "needs one of"),
        ({"limit": 0.5, "path": "m.bin"}, "needs the `label`"),
        ({"limit": 0.5, "good": ("a",)}, "needs one of"),
        ({"limit": 0.5, "good": ("a",), "bad": ("b",), "label": "x"}, "takes no label"),
        ({"limit": 0.5, "path": "m.bin", "labels": "l.jsonl", "label": "x"}, "needs one of"),
    ],
)
def test_a_classifier_has_one_origin(fields, message):
    with pytest.raises(ValueError, match=message):
        ClassifierConfig(name="x", **fields)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"text": "a"}', "line 1 .*KeyError: 'label'"),
        ("", "0 texts with the label"),
        ("[]", "line 1"),
        ('\n{"text": }', r"line 2 .*\(Expecting value at character 10 of the line\)"),
        pytest.param("[" * 200_000, "line 1 .*maximum recursion depth", id="nested"),
    ],
)
def test_examples_that_teach_nothing_are_refused(tmp_path, content, message):
    (tmp_path / "labels.jsonl").write_text(content)
    chosen = ClassifierConfig(name="t", labels=str(tmp_path / "labels.jsonl"), label="x", limit=0.5)
    with pytest.raises(InputError, match=message):
        read_user_resources(CleanConfig(classifiers=(chosen,)))
