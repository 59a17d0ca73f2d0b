"""The rows of one part as cleaning wants them: texts as bytes in the Arrow buffer, and what is known of each."""

import functools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa

from tasks.clean.chain import document_signs


@dataclass(frozen=True, slots=True)
class Row:
    """One document; `raw` is a view of its UTF-8 bytes, `signs` what `tasks.clean.signs` saw in them."""

    doc_id: bytes
    piece: int
    source: str
    language: str | None
    text_digest: bytes
    kind: str
    domain: str
    raw: np.ndarray
    signs: int


def rows_of(documents: pa.Table) -> Iterator[Row]:
    """The documents of a table (DOCUMENTS schema) in order."""
    names = ("doc_id", "piece", "source", "lang", "text_digest", "meta")
    for batch in documents.to_batches():
        data, offsets = text_buffer(batch.column("text"))
        signs = document_signs(data, offsets)
        bounds = offsets.tolist()
        columns = zip(*(batch.column(name).to_pylist() for name in names), strict=True)
        for number, (doc_id, piece, source, language, digest, meta) in enumerate(columns):
            kind, domain = _format_and_domain(meta)
            raw = data[bounds[number] : bounds[number + 1]]
            yield Row(doc_id, piece, source, language, digest, kind, domain, raw, signs[number])


def text_buffer(texts: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """(bytes, offsets of the documents in them) of an Arrow column of large strings, without copying the text."""
    _, offsets, data = texts.buffers()
    bounds = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    return (np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)), bounds


@functools.lru_cache(maxsize=1024)
def _format_and_domain(meta: str | None) -> tuple[str, str]:
    """The format a document was marked with when it was read, and the host of its address; ("text", "") for none."""
    known = json.loads(meta) if meta else {}
    return known.get("format", "text"), urlsplit(known.get("url") or "").hostname or ""
