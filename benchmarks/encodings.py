"""Encodings of text that is not UTF-8: read right, otherwise, or not at all, by ours, charset-normalizer and chardet.

`python benchmarks/encodings.py --data FOLDER` draws pieces of 500, 4,000 and 32,000 characters of the corpora there.
"""

import argparse
import gzip
import itertools
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import chardet
import charset_normalizer

from tasks.sample.readers.encodings import AUTO, encoding_of

CORPORA = {
    "ru": (("ru_novels", "ru_techdocs"), ("cp1251", "koi8_r", "cp866")),
    "zh": (("zh_classic_prose", "zh_techdocs"), ("gb18030",)),
    "zh-Hant": (("wiki_zh_ru", "zh_poetry", "zh_classic_prose"), ("big5",)),
    "it": (("it_techdocs",), ("cp1252", "iso8859_15")),
    "en": (("en_books", "en_speech_drama"), ("cp1252",)),
}
SIZES, PIECES, DOCUMENTS = (500, 4000, 32_000), 40, 400


def texts(data: Path, corpus: str, language: str) -> list[str]:
    with gzip.open(data / corpus / "part-000.jsonl.gz", "rt", encoding="utf-8") as lines:
        found = (record["text"] for line in lines if (record := json.loads(line))["lang"] == language)
        return list(itertools.islice(found, DOCUMENTS))


def pieces(data: Path) -> Iterator[tuple[bytes, str]]:
    """Yield pieces that are not UTF-8 and have 8 bytes outside ASCII, with their text."""
    draw = random.Random(0)
    for language, (corpora, encodings) in CORPORA.items():
        documents = [text for corpus in corpora for text in texts(data, corpus, language)]
        for encoding, size in [(encoding, size) for encoding in encodings for size in SIZES]:
            count = 0
            for document in draw.sample(documents, len(documents)):
                begin = draw.randrange(max(1, len(document) - size))
                piece = document[begin : begin + size]
                raw = piece.encode(encoding, errors="ignore")
                is_utf8 = raw.decode(errors="replace").encode() == raw
                if raw.decode(encoding) == piece and not is_utf8 and sum(byte >= 128 for byte in raw) >= 8:
                    yield raw, piece
                    count += 1
                if count == PIECES:
                    break


def outcome(raw: bytes, text: str, detect: Callable[[bytes], str | None]) -> str:
    encoding = detect(raw)
    return "not" if encoding is None else "right" if raw.decode(encoding, "replace") == text else "otherwise"


def detect_by_normalizer(raw: bytes) -> str | None:
    best = charset_normalizer.from_bytes(raw).best()
    return best and best.encoding


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    drawn = list(pieces(parser.parse_args().data))
    encoding_of(drawn[0][0], AUTO)  # compiles its kernels
    for name, detect in {
        "ours": lambda raw: encoding_of(raw, AUTO),
        "charset-normalizer": detect_by_normalizer,
        "chardet": lambda raw: chardet.detect(raw)["encoding"],
    }.items():
        began = time.process_time()
        counts = Counter(outcome(raw, text, detect) for raw, text in drawn)
        print(f"{name:<20} {dict(counts)} of {len(drawn)}, {time.process_time() - began:.1f} s")


if __name__ == "__main__":
    main()
