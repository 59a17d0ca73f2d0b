"""Documents of one part as token ids, each closed by the end-of-text token: work that any number of threads may share.

The kernels and the libraries release the interpreter's lock while they encode, so threads are enough.
"""

import functools

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.artifact import Artifact
from tasks.execution.work import Executor
from tasks.parts import PartResult, map_parts
from tasks.report import StageReport
from tasks.tokenizer import Tokenizer
from tasks.tokenizing.encoded import gather, text_by_text, token_dtype
from tasks.workspace import Workspace

TABLE = "tokens"


def tokenize_documents(
    documents: Artifact, tokenizer: Tokenizer, workspace: Workspace, executor: Executor
) -> StageReport:
    """Write one file of tokens a part into `workspace`, a scratch one; the report counts documents, bytes, pieces.

    Columns: source, doc_id, piece, text_bytes i64, tokens large_list<u16 or u32> with the end-of-text token; where a
    vocabulary's pieces don't tell it, token_bytes large_list<u32>, too: the text that each token covers.
    """
    return map_parts(workspace, documents, functools.partial(tokenize_part, tokenizer=tokenizer), executor)


def tokenize_part(documents: pa.Table, index: int, tokenizer: Tokenizer) -> PartResult:
    """The tokens of one part's documents in their order. Pieces of one document stand side by side and count once."""
    del index
    texts = documents.column("text")
    columns = {
        "source": documents.column("source").cast(pa.string()),
        "doc_id": documents.column("doc_id"),
        "piece": documents.column("piece"),
        "text_bytes": pc.binary_length(texts).cast(pa.int64()),
        **(_tokens(texts, tokenizer) if tokenizer.exact else _tokens_and_bytes(texts, tokenizer)),
    }
    table = pa.table(columns)
    return PartResult({TABLE: table}, _count(table))


def _tokens(texts: pa.ChunkedArray, tokenizer: Tokenizer) -> dict[str, pa.Array]:
    encoded = tokenizer.encode_column(texts, closing=tokenizer.eos)
    return {"tokens": pa.LargeListArray.from_arrays(pa.array(encoded.offsets), pa.array(encoded.ids))}


def _tokens_and_bytes(texts: pa.ChunkedArray, tokenizer: Tokenizer) -> dict[str, pa.Array]:
    found = list(tokenizer.encode_batch_with_borders(text_by_text(texts)))
    ids = gather((ids for ids, _ in found), token_dtype(tokenizer.vocab_size), tokenizer.eos)
    covered = gather((np.diff(borders) for _, borders in found), np.uint32, 0)
    return {
        "tokens": pa.LargeListArray.from_arrays(pa.array(ids.offsets), pa.array(ids.ids)),
        "token_bytes": pa.LargeListArray.from_arrays(pa.array(covered.offsets), pa.array(covered.ids)),
    }


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
