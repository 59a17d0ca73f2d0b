"""Clean on real text: languages, quality on sources that the classifier has not seen."""

import gzip
import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks.clean.filters.language import identify_language
from tasks.clean.filters.quality import Examples, auc, middle
from tasks.common.numeric import wilson_interval

pytestmark = pytest.mark.prove_data

Measured = Callable[..., None]
IN_ONE_LANGUAGE = {
    "en": ("en_books", "en_speech_drama", "en_wiki", "en_textbook_guides", "en_techdocs_md"),
    "zh": ("zh_techdocs", "zh_classic_prose", "zh_poetry", "wiki_zh_ru"),
    "ru": ("ru_novels", "ru_techdocs", "wiki_zh_ru"),
    "it": ("it_techdocs",),
}
GOOD = ("en_books", "zh_classic_prose", "en_textbook_guides", "ru_novels", "en_wiki", "en_speech_drama", "wiki_zh_ru",
        "it_techdocs", "zh_techdocs", "ru_techdocs")  # fmt: skip
REST = ("web_html_raw", "social_emoji")
LONG = 200
HALVINGS = 6
MOST_DOCUMENTS = 400


def records(data: Path, corpus: str) -> Iterator[dict[str, Any]]:
    for path in sorted((data / corpus).glob("part-*.jsonl.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            yield from map(json.loads, lines)


def test_languages_of_long_documents(data: Path, measured: Measured) -> None:
    """Labels are of the page's file, so that untranslated and half-translated pages count as errors here."""
    right = tried = 0
    for language, corpora in IN_ONE_LANGUAGE.items():
        found = [
            identify_language(np.frombuffer(record["text"].encode(), np.uint8))[0] == language
            for corpus in corpora
            for record in records(data, corpus)
            if len(record["text"]) > LONG and record["lang"].partition("-")[0] == language
        ]
        right, tried = right + sum(found), tried + len(found)
        low, high = wilson_interval(sum(found), len(found))
        share = sum(found) / len(found)
        note = f"{len(found)} documents over {LONG} characters"
        measured("clean", f"language {language} told", share, at_least=0.98, low=low, high=high, note=note)
    low, high = wilson_interval(right, tried)
    measured("clean", "language told, all", right / tried, at_least=0.99, low=low, high=high, note=f"{tried} documents")


def test_quality_on_sources_that_training_has_not_seen(data: Path, measured: Measured) -> None:
    """Good text against raw web and chat; half of the sources of every kind are unseen, in six random halvings."""
    generator = np.random.default_rng(0)
    texts, sources, good = [], [], []
    for corpus in (*GOOD, *REST):
        by_source: dict[str, list[str]] = defaultdict(list)
        for record in records(data, corpus):
            source = record["source"].split(":")[-1 if corpus == "web_html_raw" else 0]
            by_source[f"{corpus}/{source}"].append(record["text"])
        for source, of_source in sorted(by_source.items()):
            for number in generator.permutation(len(of_source))[:MOST_DOCUMENTS]:
                texts.append(middle(np.frombuffer(of_source[number].encode(), np.uint8)))
                sources.append(source)
                good.append(corpus in GOOD)
    examples, names, is_good = Examples.of(texts), np.array(sources), np.array(good)
    found = []
    for seed in range(HALVINGS):
        draw = np.random.default_rng(seed)
        unseen: set[str] = set()
        for corpus in (*GOOD, *REST):
            of_corpus = sorted({name for name in sources if name.startswith(f"{corpus}/")})
            unseen |= set(draw.permutation(of_corpus)[: len(of_corpus) // 2].tolist())
        left_out = np.isin(names, sorted(unseen))
        weights, bias = examples.train(is_good, np.flatnonzero(~left_out), seed)
        rows = np.flatnonzero(left_out)
        found.append(auc(examples.scores(weights, bias, rows), is_good[rows]))
    low, high = min(found), max(found)
    note = f"mean of {HALVINGS} halvings of the sources, least and most beside it"
    measured(
        "clean", "quality, AUC on unseen sources", sum(found) / HALVINGS, at_least=0.9, low=low, high=high, note=note
    )
