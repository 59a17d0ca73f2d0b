"""The name of a document for its whole life: BLAKE3-128 of its source and what identifies it there."""

import json

import blake3

from tasks.schema import DOC_ID_BYTES


def document_id(source: str, relative: str, record: int, key: str | None) -> bytes:
    """16 bytes: of (source, key) where the source has an id field, else of (source, root-relative path, record).

    The parts are joined as JSON, which no file name or key can imitate.
    """
    parts = [source, "path", relative, record] if key is None else [source, "id", key]
    text = json.dumps(parts, ensure_ascii=True, separators=(",", ":"))
    return blake3.blake3(text.encode()).digest(length=DOC_ID_BYTES)
