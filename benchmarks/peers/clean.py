"""Cleans INPUT.jsonl with one tool, in that tool's own environment.

    python clean.py TOOL INPUT.jsonl ROUNDS MOST_BYTES OPTION

Lines hold `text` and `kind` (text, markdown, html). Reading the file, loading models and compiling are left out, and
the fastest of ROUNDS counts. OPTION is the extractor of pages for bessemer, and the language for datatrove.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path

from measuring import fastest, print_rate


def bessemer(texts: list[str], kinds: list[str], extractor: str) -> Callable[[], object]:
    import blake3
    import pyarrow as pa

    from tasks.artifacts.tables.schema import DOCUMENTS
    from tasks.clean.config import CleanConfig
    from tasks.clean.pipeline import clean_part

    rows = [
        {
            "doc_id": number.to_bytes(16, "big"),
            "piece": 0,
            "source": "text",
            "lang": None,
            "text": text,
            "text_digest": blake3.blake3(text.encode()).digest(length=16),
            "origin": {"path": "text", "record": number, "byte": 0},
            "meta": json.dumps({"format": kind}),
        }
        for number, (text, kind) in enumerate(zip(texts, kinds, strict=True))
    ]
    documents = pa.Table.from_pylist(rows, schema=DOCUMENTS)
    config = CleanConfig.model_validate({"preset": "fineweb", "html_extractor": extractor})
    return lambda: clean_part(config, documents, 0)


def datatrove(texts: list[str], kinds: list[str], language: str) -> Callable[[], object]:
    """Return a function that applies the filters of its FineWeb example, without those that download their model."""
    from datatrove.data import Document
    from datatrove.pipeline.filters import (
        C4QualityFilter,
        FineWebQualityFilter,
        GopherQualityFilter,
        GopherRepetitionFilter,
    )
    from loguru import logger

    del kinds
    logger.remove()
    filters = (
        GopherRepetitionFilter(language=language),
        GopherQualityFilter(language=language),
        C4QualityFilter(filter_no_terminal_punct=False, language=language),
        FineWebQualityFilter(language=language),
    )

    def passes(number: int, text: str) -> bool:
        document = Document(text=text, id=str(number))
        return all(filtering.filter(document) is True for filtering in filters)

    passes(0, texts[0])  # Its tokenizers are loaded at first use.
    return lambda: sum(passes(number, text) for number, text in enumerate(texts))


def ftfy(texts: list[str], kinds: list[str], option: str) -> Callable[[], object]:
    import ftfy

    del kinds, option
    return lambda: [ftfy.fix_text(text) for text in texts]


def trafilatura(texts: list[str], kinds: list[str], option: str) -> Callable[[], object]:
    from trafilatura import extract

    del kinds, option
    return lambda: [extract(page, include_comments=False, include_tables=True) for page in texts]


def resiliparse(texts: list[str], kinds: list[str], option: str) -> Callable[[], object]:
    from resiliparse.extract.html2text import extract_plain_text

    del kinds, option
    return lambda: [extract_plain_text(page, main_content=True, alt_texts=False) for page in texts]


TOOLS = {tool.__name__: tool for tool in (bessemer, datatrove, ftfy, trafilatura, resiliparse)}


def main(tool: str, source: str, rounds: str, most_bytes: str, option: str) -> None:
    texts, kinds, size = [], [], 0
    with Path(source).open(encoding="utf-8") as lines:
        for line in lines:
            record = json.loads(line)
            texts.append(record["text"])
            kinds.append(record["kind"])
            size += len(record["text"].encode())
            if size >= int(most_bytes):
                break
    print_rate(fastest(TOOLS[tool](texts, kinds, option), int(rounds)), size)


main(*sys.argv[1:])
