"""Documents of one part as token ids, each closed by the end-of-text token: work that any number of threads may share.

SentencePiece releases the interpreter's lock while it encodes, so threads are enough.
"""

import functools

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.artifact import Artifact
from tasks.parts import PartResult, map_parts
from tasks.report import StageReport
from tasks.tokenizer import Tokenizer
from tasks.workspace import Workspace

TABLE = "tokens"


def tokenize_documents(documents: Artifact, tokenizer: Tokenizer, workspace: Workspace, workers: int) -> StageReport:
    """Write one file of tokens a part into `workspace`, a scratch one; the report counts documents, bytes, pieces.

    Columns: source, doc_id, piece, text_bytes i64, tokens large_list<u16 or u32> with the end-of-text token.
    """
    return map_parts(
        workspace, documents, functools.partial(tokenize_part, tokenizer=tokenizer), workers, in_threads=True
    )


def tokenize_part(documents: pa.Table, index: int, tokenizer: Tokenizer) -> PartResult:
    """The tokens of one part's documents in their order. Pieces of one document stand side by side and count once."""
    del index
    dtype = token_dtype(tokenizer.vocab_size)
    texts = (text for batch in documents.to_batches() for text in batch.column("text").to_pylist())
    arrays: list[np.ndarray] = []
    offsets = np.zeros(documents.num_rows + 1, dtype=np.int64)
    eos = np.array([tokenizer.eos], dtype=dtype)
    for number, ids in enumerate(tokenizer.encode_batch(texts)):
        arrays += [ids.astype(dtype), eos]
        offsets[number + 1] = offsets[number] + len(ids) + 1
    values = np.concatenate(arrays) if arrays else np.zeros(0, dtype=dtype)
    columns = {
        "source": documents.column("source").cast(pa.string()),
        "doc_id": documents.column("doc_id"),
        "piece": documents.column("piece"),
        "text_bytes": pc.binary_length(documents.column("text")).cast(pa.int64()),
        "tokens": pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(values)),
    }
    table = pa.table(columns)
    return PartResult({TABLE: table}, _count(table))


def token_dtype(vocab_size: int) -> type[np.uint16] | type[np.uint32]:
    """u16 where every id fits, else u32."""
    return np.uint16 if vocab_size <= 1 << 16 else np.uint32


def _count(table: pa.Table) -> StageReport:
    report = StageReport()
    previous = None
    for source, doc_id, text_bytes in zip(
        table.column("source").to_pylist(),
        table.column("doc_id").to_pylist(),
        table.column("text_bytes").to_pylist(),
        strict=True,
    ):
        counts = report.source(source)
        if doc_id != previous:
            counts.documents_in += 1
            counts.documents_out += 1
        previous = doc_id
        counts.pieces_out += 1
        counts.bytes_in += text_bytes
        counts.bytes_out += text_bytes
    return report
