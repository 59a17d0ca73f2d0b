"""The rows of DOCUMENTS as records become documents, and the id of a document, which never changes."""

import json
from dataclasses import dataclass, field

import blake3
import pyarrow as pa

from tasks.artifacts.tables.rows import DOC_ID_BYTES
from tasks.artifacts.tables.schema import DOCUMENTS
from tasks.sample.config import ONE_DOCUMENT_A_FILE, Source
from tasks.sample.discovery import InputFile
from tasks.sample.readers.records import Record

_META = {kind: f'{{"format":"{kind}"}}' if kind != "text" else None for kind in ONE_DOCUMENT_A_FILE}


def document_id(source: str, relative: str, record: int, key: str | None) -> bytes:
    """Return BLAKE3-128 of (source, key) if the source has an id field, else of (source, root-relative path, record).

    The parts are joined as JSON, so that different parts never give the same text.
    """
    parts = [source, "path", relative, record] if key is None else [source, "id", key]
    text = json.dumps(parts, ensure_ascii=True, separators=(",", ":"))
    return blake3.blake3(text.encode()).digest(length=DOC_ID_BYTES)


@dataclass
class DocumentColumns:
    """Columns of the documents of one part."""

    doc_ids: list[bytes] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    languages: list[str | None] = field(default_factory=list)
    texts: list[bytes] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    records: list[int] = field(default_factory=list)
    first_bytes: list[int] = field(default_factory=list)
    metas: list[str | None] = field(default_factory=list)

    def add(self, doc_id: bytes, source: Source, file: InputFile, record: Record, text: bytes) -> None:
        self.doc_ids.append(doc_id)
        self.sources.append(source.name)
        self.languages.append(source.language)
        self.texts.append(text)
        self.digests.append(blake3.blake3(text).digest(length=16))
        self.paths.append(file.relative)
        self.records.append(record.number)
        self.first_bytes.append(record.byte)
        self.metas.append(_meta(source, file, record))

    def table(self) -> pa.Table:
        """Return the rows in the DOCUMENTS schema."""
        origin = pa.StructArray.from_arrays(
            [
                pa.array(self.paths, pa.string()),
                pa.array(self.records, pa.int64()),
                pa.array(self.first_bytes, pa.int64()),
            ],
            fields=list(DOCUMENTS.field("origin").type),
        )
        columns = [
            pa.array(self.doc_ids, pa.binary(DOC_ID_BYTES)),
            pa.array([0] * len(self.doc_ids), pa.int16()),
            pa.array(self.sources, pa.string()).dictionary_encode(),
            pa.array(self.languages, pa.string()).dictionary_encode(),
            pa.array(self.texts, pa.large_binary()).cast(pa.large_string()),
            pa.array(self.digests, pa.binary(16)),
            origin,
            pa.array(self.metas, pa.string()),
            pa.nulls(len(self.doc_ids), DOCUMENTS.field("text_kind").type),
        ]
        return pa.Table.from_arrays(columns, schema=DOCUMENTS)


def _meta(source: Source, file: InputFile, record: Record) -> str | None:
    kind = record.kind or (file.format if file.format in ONE_DOCUMENT_A_FILE else source.content)
    if record.url is None and record.encoding is None:
        return _META[kind]
    facts = {} if kind == "text" else {"format": kind}
    if record.url is not None:
        facts["url"] = record.url
    if record.encoding is not None:
        facts["encoding"] = record.encoding
    return json.dumps(facts, ensure_ascii=False, separators=(",", ":"))
