"""Cleaning with default settings against documents labelled by hand: what it keeps of the good, and of the bad.

Labels are in `benchmarks/labels`, texts in the corpora beside the checkout (`../shared/data`, or BESSEMER_DATA). The
limits of the rules were chosen with the labels of the first test; those of the second were made by another reader and
nobody looked at them before.
"""

import gzip
import json
import os
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import blake3
import pyarrow as pa
import pytest

from tasks.artifacts.tables.schema import DOCUMENTS
from tasks.clean.config import CleanConfig
from tasks.clean.document import KINDS
from tasks.clean.pipeline import clean_part

pytestmark = pytest.mark.prove_labels

ROOT = Path(__file__).resolve().parents[2]
SEEN, UNSEEN = ("english_italian", "chinese_russian"), ("unseen",)
GOOD_BYTES_DROPPED, BAD_KEPT = 0.03, 0.10


@dataclass(frozen=True)
class Labelled:
    """A labelled text, and what cleaning did with it: the kind that it found (None: dropped), the rule that dropped."""

    language: str
    kind: str
    is_good: bool
    size: int
    found: str | None
    rule: str | None


@pytest.fixture(scope="session")
def data() -> Path:
    folder = Path(os.environ.get("BESSEMER_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no corpora at {folder}; name their folder in BESSEMER_DATA")
    return folder


def test_good_text_is_kept_and_bad_text_dropped(data: Path):
    cleaned = clean_labelled(data, SEEN)
    show("Labels by kind and language", *table_of(cleaned))
    show("Kinds of kept documents: labelled (rows), found (columns)", *confusion_of(cleaned))
    assert_goals(cleaned)


def test_unseen_labels(data: Path):
    cleaned = clean_labelled(data, UNSEEN)
    show("Unseen labels by kind", *table_of(cleaned, by_language=False))
    assert_goals(cleaned)


def show(title: str, header: list[str], lines: list[list[str]]) -> None:
    widths = [max(len(line[column]) for line in (header, *lines)) for column in range(len(header))]
    print(f"\n{title}")
    for line in (header, *lines):
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def assert_goals(cleaned: list[Labelled]) -> None:
    lost = {kind: good_bytes_dropped([one for one in cleaned if one.kind == kind]) for kind in KINDS}
    assert {kind: share for kind, share in lost.items() if share > GOOD_BYTES_DROPPED} == {}
    assert bad_kept(cleaned) <= BAD_KEPT


def good_bytes_dropped(cleaned: list[Labelled]) -> float:
    """Return the share of the bytes of good documents that is dropped."""
    good = sum(one.size for one in cleaned if one.is_good)
    return sum(one.size for one in cleaned if one.is_good and one.rule) / good if good else 0.0


def bad_kept(cleaned: list[Labelled]) -> float:
    """Return the share of bad documents that is kept."""
    bad = [one for one in cleaned if not one.is_good]
    return sum(one.rule is None for one in bad) / len(bad) if bad else 0.0


def table_of(cleaned: list[Labelled], *, by_language: bool = True) -> tuple[list[str], list[list[str]]]:
    """Return the header and lines of the table by kind, and by language where asked for."""
    groups: dict[tuple[str, str], list[Labelled]] = defaultdict(list)
    for one in cleaned:
        for language in ("all", one.language) if by_language else ("all",):
            groups[one.kind, language].append(one)
            groups["all", language].append(one)
    lines = []
    for (kind, language), group in sorted(groups.items()):
        good, bad = sum(one.is_good for one in group), sum(not one.is_good for one in group)
        lost, kept = f"{good_bytes_dropped(group):.2%}" if good else "", f"{bad_kept(group):.1%}" if bad else ""
        lines.append([kind, language, str(good), lost, str(bad), kept])
    return ["kind", "language", "good", "good bytes dropped", "bad", "bad kept"], lines


def confusion_of(cleaned: list[Labelled]) -> tuple[list[str], list[list[str]]]:
    """Return the header and lines of labelled kinds against found ones."""
    counts: dict[tuple[str, str], int] = defaultdict(int)
    for one in cleaned:
        if one.found is not None:
            counts[one.kind, one.found] += 1
    lines = [[kind, *(str(counts[kind, found]) for found in KINDS)] for kind in KINDS]
    right = sum(counts[kind, kind] for kind in KINDS) / max(1, sum(counts.values()))
    return ["", *KINDS], [*lines, ["right", f"{right:.1%}", *[""] * (len(KINDS) - 1)]]


def clean_labelled(data: Path, names: tuple[str, ...]) -> list[Labelled]:
    """Return the labels of the named files with what cleaning by default does with their texts."""
    files = [ROOT / "benchmarks" / "labels" / f"{name}.jsonl" for name in names]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        pytest.skip(f"benchmarks/labels has no {', '.join(missing)}")
    labels = [json.loads(line) for file in files for line in file.read_text("utf-8").splitlines()]
    texts = find_texts(data, labels)
    if not texts:
        pytest.skip(f"no text of the labels in {data}")
    rows = [
        {
            "doc_id": number.to_bytes(16, "big"),
            "piece": 0,
            "source": "labelled",
            "lang": None,
            "text": text,
            "text_digest": blake3.blake3(text.encode()).digest(length=16),
            "origin": {"path": "labelled", "record": number, "byte": 0},
            "meta": json.dumps({"format": format}),
        }
        for number, (text, format) in texts.items()
    ]
    result = clean_part(CleanConfig(), pa.Table.from_pylist(rows, schema=DOCUMENTS), 0)
    dropped = {
        int.from_bytes(row["doc_id"], "big"): row["rule"]
        for row in result.tables["ledger"].to_pylist()
        if row["action"] == "drop"
    }
    kept = result.tables["documents"].select(["doc_id", "text_kind"]).to_pylist()
    found = {int.from_bytes(row["doc_id"], "big"): row["text_kind"] for row in kept}
    return [
        Labelled(
            label["lang"].partition("-")[0],
            label["kind"],
            label["verdict"] == "keep",
            len(texts[number][0].encode()),
            found.get(number),
            dropped.get(number),
        )
        for number, label in enumerate(labels)
        if number in texts
    ]


def find_texts(data: Path, labels: list[dict[str, Any]]) -> dict[int, tuple[str, str]]:
    """Return number of the label -> (text, format); labels whose text is missing or has changed are left out."""
    wanted: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for number, label in enumerate(labels):
        wanted[label["corpus"]][label["id"]].append(number)
    texts = {}
    for corpus, of_corpus in wanted.items():
        for part in sorted((data / corpus).glob("part-*.jsonl.gz")):
            with gzip.open(part, "rt", encoding="utf-8") as lines:
                for record in map(json.loads, lines):
                    for number in of_corpus.get(record["id"], ()):
                        text = record["text"].encode()
                        begin, end = labels[number]["span"] or (0, len(text))
                        if blake3.blake3(text[begin:end]).hexdigest(length=16) == labels[number]["digest"]:
                            texts[number] = text[begin:end].decode(), format_of(record)
    return texts


def format_of(record: dict[str, Any]) -> str:
    """Return the format that sample would give to the document."""
    format = record.get("format") or ""
    return "html" if format.startswith("raw html") else "markdown" if format.startswith("markdown") else "text"
