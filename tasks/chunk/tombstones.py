"""Tombstones of documents that leave a stable order: what stays of each is a number of tokens and a hash of them."""

from collections.abc import Collection

import pyarrow as pa
import pyarrow.compute as pc

from model.config.network import Objective
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.tables.files import read_table
from tasks.chunk.config import Tombstone
from tasks.chunk.stable_rows import document_keys
from tasks.chunk.tokenize import TABLE, block_of, tokenize_part
from tasks.tokenizer.open import open_tokenizer


def tombstones(
    documents: Artifact, vocab: Artifact, doc_ids: Collection[bytes], objective: Objective = "causal_lm"
) -> list[Tombstone]:
    """Return the tombstones of documents of a chunk artifact with these parents and objective, one for each piece,
    sorted."""
    tokenizer, wanted = open_tokenizer(vocab, objective), pa.array(sorted(doc_ids), pa.binary(16))
    found: list[Tombstone] = []
    for path in documents.files("documents"):
        table = read_table(path)
        mine = table.filter(pc.is_in(table.column("doc_id"), value_set=wanted))
        if not mine.num_rows:
            continue
        tokens = tokenize_part(mine, 0, tokenizer).tables[TABLE].combine_chunks()
        block = block_of(tokens.to_batches()[0])
        columns = (tokens.column("source").to_pylist(), block.lengths.tolist(), document_keys(block).tolist())
        found += [
            Tombstone(source=source, tokens=length + 1, key=f"{key:016x}")
            for source, length, key in zip(*columns, strict=True)
        ]
    return sorted(found, key=lambda one: (one.source, one.key, one.tokens))
