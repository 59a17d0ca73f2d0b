"""Tokenize documents part by part into scratch files, and read them back source by source.

Each document ends with the end-of-text token. The kernels and the libraries release the interpreter's lock while they
encode, so parts are tokenized in threads. Blocks of one source are read in the order of the parts.

Shapes: N tokens of a block (each document's tokens and its end-of-text token), D documents in it.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from model.errors import Bug
from tasks.artifacts.tables.columns import count_documents
from tasks.artifacts.tables.files import read_table
from tasks.artifacts.tables.map_parts import PartResult
from tasks.common.groups import begins_of
from tasks.tokenizer.base import Tokenizer, gather, text_by_text, token_dtype

TABLE = "tokens"
WINDOW_TOKENS = 1 << 25
"""Tokens that are packed together where rows are not simply cut: 64 to 128 MB, whatever the size of the source. More
would not lower the padding: what a window cannot fill is a few rows of its 130,000 (257 tokens each)."""


def tokenize_part(documents: pa.Table, index: int, tokenizer: Tokenizer) -> PartResult:
    """Return the tokens of one part's documents in their order, and count documents, bytes and segments. Segments of
    one document are consecutive and count as one.

    Columns: source, doc_id, piece, text_bytes i64, tokens large_list<u16 or u32> with the end-of-text token; where the
    tokens alone do not give them, also token_bytes large_list<u32>: the bytes of text that each token covers.
    """
    del index
    texts = documents.column("text")
    columns = {
        "source": documents.column("source").cast(pa.string()),
        "doc_id": documents.column("doc_id"),
        "piece": documents.column("piece"),
        "text_bytes": pc.binary_length(texts).cast(pa.int64()),
        **(_token_columns(texts, tokenizer) if tokenizer.exact else _token_columns_with_bytes(texts, tokenizer)),
    }
    counts = count_documents(columns["source"], columns["doc_id"], columns["text_bytes"])
    return PartResult({TABLE: pa.table(columns)}, counts)


def _token_columns(texts: pa.ChunkedArray, tokenizer: Tokenizer) -> dict[str, pa.Array]:
    encoded = tokenizer.encode_column(texts, closing=tokenizer.eos)
    if (begin := begin_of_documents(tokenizer)) >= 0:
        encoded = encoded.begun_with(begin)
    return {"tokens": pa.LargeListArray.from_arrays(pa.array(encoded.offsets), pa.array(encoded.ids))}


def begin_of_documents(tokenizer: Tokenizer) -> int:
    """Return the token with which a document's tokens begin; -1 where it would repeat the end of the one before."""
    return -1 if tokenizer.begin == tokenizer.eos else tokenizer.begin


def _token_columns_with_bytes(texts: pa.ChunkedArray, tokenizer: Tokenizer) -> dict[str, pa.Array]:
    found = list(tokenizer.encode_batch_with_borders(text_by_text(texts)))
    ids = gather((ids for ids, _ in found), token_dtype(tokenizer.vocab_size), tokenizer.eos)
    covered = gather((np.diff(borders) for _, borders in found), np.uint32, 0)
    return {
        "tokens": pa.LargeListArray.from_arrays(pa.array(ids.offsets), pa.array(ids.ids)),
        "token_bytes": pa.LargeListArray.from_arrays(pa.array(covered.offsets), pa.array(covered.ids)),
    }


@dataclass(frozen=True)
class Block:
    """Consecutive documents of one source."""

    tokens: np.ndarray
    """[N] ids, each document ending with the end-of-text token."""
    lengths: np.ndarray
    """[D] tokens of each document without its end-of-text token, the begin token included where there is one."""
    text_bytes: np.ndarray
    """[D] UTF-8 bytes of each text, to check the tokens against."""
    doc_ids: pa.Array
    pieces: pa.Array
    token_bytes: np.ndarray | None = None
    """[N] bytes of each token, where the vocabulary alone does not give them; 0 for the end-of-text token."""
    texts: pa.Array | None = None
    """[D] large_string, where they are needed to find sentences."""

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def begins(self) -> np.ndarray:
        """[D] position of each document's first token in the block."""
        return begins_of(self.lengths + 1)

    def slice(self, begin: int, end: int) -> "Block":
        """Return documents [begin, end)."""
        first = int(self.lengths[:begin].sum()) + begin
        last = first + int(self.lengths[begin:end].sum()) + end - begin
        return Block(
            tokens=self.tokens[first:last],
            lengths=self.lengths[begin:end],
            text_bytes=self.text_bytes[begin:end],
            doc_ids=self.doc_ids.slice(begin, end - begin),
            pieces=self.pieces.slice(begin, end - begin),
            token_bytes=None if self.token_bytes is None else self.token_bytes[first:last],
            texts=None if self.texts is None else self.texts.slice(begin, end - begin),
        )


@dataclass(frozen=True)
class TokenBytes:
    """Bytes of each id [vocabulary], and those of a text's first id, where they differ (a space before it)."""

    lengths: np.ndarray
    first_lengths: np.ndarray
    begins: bool = False
    """Whether documents have a begin token before their first id."""

    @staticmethod
    def of(tokenizer: Tokenizer) -> "TokenBytes":
        """Return those of a vocabulary."""
        return TokenBytes(tokenizer.piece_lengths, tokenizer.first_lengths, begin_of_documents(tokenizer) >= 0)

    def borders(self, block: Block) -> np.ndarray:
        """Return i64[N + 1]: token i covers bytes [b[i], b[i + 1]) of the block's texts, counted through.

        Raises Bug where a document's tokens do not cover its text.
        """
        borders = np.zeros(len(block.tokens) + 1, dtype=np.int64)
        if block.token_bytes is not None:
            np.cumsum(block.token_bytes, out=borders[1:])
        else:
            token_bytes = self.lengths[block.tokens]
            opening = block.begins[block.lengths > self.begins] + self.begins
            token_bytes[opening] = self.first_lengths[block.tokens[opening]]
            np.cumsum(token_bytes, out=borders[1:])
        _check_coverage(block, borders[block.begins + block.lengths] - borders[block.begins])
        return borders


def _check_coverage(block: Block, covered: np.ndarray) -> None:
    wrong = np.flatnonzero((covered != block.text_bytes) & ((block.lengths > 0) | (block.token_bytes is None)))
    if len(wrong):
        position = int(wrong[0])
        raise Bug(
            f"chunk: the tokens of document {block.doc_ids[position].as_py().hex()} cover {covered[position]} bytes and"
            f" its text has {block.text_bytes[position]}: the tokenizer is not exact. Nothing was published."
        )


@dataclass(frozen=True)
class TokenFile:
    """Tokens of one part, and the part that they were made from."""

    tokens: Path
    documents: Path
    sources: frozenset[str]


def token_files(tokens: Sequence[Path], documents: Sequence[Path]) -> list[TokenFile]:
    """Return the files of all parts with the sources in them, so that a part is read for these only."""
    columns = (read_table(path, ["source"]).column("source") for path in tokens)
    sources = (frozenset(pc.unique(column).to_pylist()) for column in columns)
    return [TokenFile(*part) for part in zip(tokens, documents, sources, strict=True)]


def read_blocks(
    files: Iterable[TokenFile], source: str, *, with_texts: bool = False, chosen: np.ndarray | None = None
) -> Iterator[Block]:
    """Yield the documents of `source` in all files, a record batch at a time, in order.

    `chosen` bool[D] says which of the source's documents in all files to read: others are not read from the disk.
    """
    begin = 0
    for file in files:
        if source not in file.sources:
            continue
        table = read_table(file.tokens)
        mine = pc.equal(table.column("source"), source)
        if chosen is not None:
            rows = np.flatnonzero(mine)
            keep = np.zeros(len(table), np.bool_)
            keep[rows] = chosen[begin : begin + len(rows)]
            begin += len(rows)
            mine = pa.array(keep)
        texts = read_table(file.documents, ["text"]).column("text").filter(mine) if with_texts else None
        first = 0
        for batch in table.drop_columns("source").filter(mine).to_batches():
            if batch.num_rows:
                column = None if texts is None else texts.slice(first, batch.num_rows).combine_chunks()
                yield block_of(batch, column)
            first += batch.num_rows


def block_of(batch: pa.RecordBatch, texts: pa.Array | None = None) -> Block:
    """Return the documents of a record batch of tokens, as `tokenize_part` makes it."""
    lists = batch.column("tokens")
    exact = "token_bytes" not in batch.schema.names
    return Block(
        tokens=lists.flatten().to_numpy(),
        lengths=np.diff(lists.offsets.to_numpy()) - 1,
        text_bytes=batch.column("text_bytes").to_numpy(),
        doc_ids=batch.column("doc_id"),
        pieces=batch.column("piece"),
        token_bytes=None if exact else batch.column("token_bytes").flatten().to_numpy(),
        texts=texts,
    )


def group_into_windows(blocks: Iterable[Block], most_tokens: int = WINDOW_TOKENS) -> Iterator[Block]:
    """Yield the same documents in blocks of at most `most_tokens` tokens (one document at least): a function of the
    documents alone, however they are divided into batches."""
    pending: list[Block] = []
    free_tokens = most_tokens
    for block in blocks:
        begin = 0
        while begin < len(block):
            ends = np.cumsum(block.lengths[begin:] + 1)
            fitting = int(np.searchsorted(ends, free_tokens, side="right"))
            if fitting == 0 and pending:
                whole = _concatenate(pending)
                pending, free_tokens = [], most_tokens  # released before the window is packed, which needs the memory
                yield whole
                continue
            end = begin + max(fitting, 1)
            pending.append(block.slice(begin, end))
            free_tokens -= int(ends[end - begin - 1])
            begin = end
    if pending:
        yield _concatenate(pending)


def _concatenate(blocks: list[Block]) -> Block:
    inexact = [block.token_bytes for block in blocks if block.token_bytes is not None]
    texts = [block.texts for block in blocks if block.texts is not None]
    return Block(
        tokens=np.concatenate([block.tokens for block in blocks]),
        lengths=np.concatenate([block.lengths for block in blocks]),
        text_bytes=np.concatenate([block.text_bytes for block in blocks]),
        doc_ids=pa.concat_arrays([block.doc_ids for block in blocks]),
        pieces=pa.concat_arrays([block.pieces for block in blocks]),
        token_bytes=np.concatenate(inexact) if inexact else None,
        texts=pa.concat_arrays(texts) if texts else None,
    )
