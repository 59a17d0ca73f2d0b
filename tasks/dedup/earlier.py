"""Kept documents of earlier runs, opened from their dedup artifacts: INDEX for the search, texts for the proof.

An earlier artifact counts into the identity by its content, so that it may be named by any path. Its signatures must
have been made by the same hashes as this run's; that is not believed but tried, on documents of the artifact itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from model.errors import InputError, IntegrityError, RecipeError
from tasks.artifact import Artifact
from tasks.dedup.config import DedupConfig
from tasks.dedup.index import index_signatures
from tasks.dedup.minhash import signatures_of, text_buffers
from tasks.tables import read_table

UNCUT = "uncut"
SIGNATURES_TRIED = 16


@dataclass(frozen=True)
class EarlierPart:
    """One part of an earlier artifact: its INDEX rows and the texts that belong to them, row by row."""

    identity: str
    documents: Path
    index_file: Path
    uncut: Path | None
    """Whole texts of documents that were cut after they had been compared."""

    def index(self) -> pa.Table:
        """INDEX rows."""
        return read_table(self.index_file)

    def texts(self) -> pa.LargeStringArray:
        """The texts that the signatures of `index` belong to."""
        table = read_table(self.documents).select(["doc_id", "text"])
        if not table.column("doc_id").equals(self.index().column("doc_id")):
            raise IntegrityError(f"{self.documents} and {self.index_file.name} do not hold the same documents in order")
        texts = table.column("text")
        if self.uncut is not None:
            whole = read_table(self.uncut)
            found = pc.index_in(table.column("doc_id"), value_set=whole.column("doc_id").combine_chunks())
            texts = pc.coalesce(pc.take(whole.column("text"), found), texts)
        texts = texts.combine_chunks() if isinstance(texts, pa.ChunkedArray) else texts
        return texts if isinstance(texts, pa.Array) else texts.chunk(0)


def earlier_parts(artifacts: Sequence[Artifact], config: DedupConfig) -> list[EarlierPart]:
    """The parts of earlier artifacts in order, after their settings and signatures were found to fit `config`.

    Raises RecipeError where the settings of the signatures differ, InputError where the hashes do.
    """
    parts: list[EarlierPart] = []
    for artifact in artifacts:
        _check_settings(artifact, config)
        uncut = {path.stem.rpartition("-")[2]: path for path in artifact.files(UNCUT)}
        pairs = zip(artifact.files("documents"), artifact.files("index"), strict=True)
        parts += [
            EarlierPart(artifact.identity, documents, index, uncut.get(documents.stem.rpartition("-")[2]))
            for documents, index in pairs
        ]
    tried = set()
    for part in parts:
        if part.identity not in tried and part.index().num_rows:
            _try_signatures(part, config)
            tried.add(part.identity)
    return parts


def _check_settings(artifact: Artifact, config: DedupConfig) -> None:
    theirs = artifact.manifest["identity_parts"]["params"]
    length = theirs["bands"] * theirs["rows_per_band"]
    wanted = {
        "shingle_words": (config.shingle_words, theirs["shingle_words"]),
        "permutation_seed": (config.permutation_seed, theirs["permutation_seed"]),
        "bands x rows_per_band": (config.signature_length, length),
    }
    for name, (ours, found) in wanted.items():
        if ours != found:
            raise RecipeError(
                f"dedup.against: {artifact.path} was made with {name} = {found}, and this recipe says {ours}."
                f" Signatures of other settings cannot be compared: take theirs, or build the earlier run again."
            )


def _try_signatures(part: EarlierPart, config: DedupConfig) -> None:
    """Sign some documents again: the code or the Unicode database may have changed since they were signed."""
    texts = part.texts().slice(0, SIGNATURES_TRIED)
    data, offsets = text_buffers(texts)
    again = signatures_of(data, offsets, config.shingle_words, config.signature_length, config.permutation_seed)
    if not np.array_equal(again, index_signatures(part.index().slice(0, SIGNATURES_TRIED))):
        raise InputError(
            f"dedup.against: {part.index_file} holds signatures that this version does not make of the same texts, so"
            f" that nothing could be compared. Build the earlier run again with this version, then name the new one."
        )
