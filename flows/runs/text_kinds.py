"""The kind of text of documents of a run: as clean recorded it, or for dropped documents as it recognises it again."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flows.runs.run_documents import parts_of
from tasks.artifacts.artifact import Artifact, manifest_of
from tasks.artifacts.rows import DocumentRow
from tasks.artifacts.schema import DOCUMENTS

if TYPE_CHECKING:
    from tasks.clean.config import CleanConfig


def text_kinds(clean: Artifact, documents: Sequence[DocumentRow]) -> dict[bytes, str | None]:
    """Return doc_id -> kind of documents, given as rows of DOCUMENTS that clean read.

    None where a kind cannot be recognised from the artifact alone, because the recipe brings lists or functions.
    """
    kinds = _recorded(clean, (document["doc_id"] for document in documents))
    dropped = [document for document in documents if document["doc_id"] not in kinds]
    config = settings_of(clean) if dropped else None
    for document in dropped:
        kinds[document["doc_id"]] = None if config is None else recognised_kind(config, document)
    return kinds


def settings_of(clean: Artifact) -> "CleanConfig | None":
    """Return the configuration of a clean artifact; None where it had lists or functions of the recipe, whose paths are
    not part of the identity."""
    # Takes a tenth of a second, which documents that were kept do not need.
    from pydantic import ValidationError

    from tasks.clean.config import CleanConfig

    try:
        return CleanConfig.model_validate(manifest_of(clean)["identity_parts"]["params"])
    except ValidationError:
        return None


def recognised_kind(config: "CleanConfig", document: DocumentRow) -> str:
    """Return the kind of one row of DOCUMENTS."""
    # Loads numba, which documents that were kept do not need.
    from tasks.clean.batch import iter_batches
    from tasks.clean.chain import recognise_batch
    from tasks.clean.document import KINDS

    row = {name: document[name] for name in DOCUMENTS.names}
    (batch,) = iter_batches(pa.Table.from_pylist([row], schema=DOCUMENTS), config.emoji)
    recognise_batch(batch, np.zeros(1, np.int64), config)
    return KINDS[batch.contexts.text_kinds[0]]


def _recorded(clean: Artifact, doc_ids: Iterable[bytes]) -> dict[bytes, str | None]:
    wanted = pa.array(sorted(set(doc_ids)), pa.binary(16))
    found: dict[bytes, str | None] = {}
    for table in parts_of(clean, "documents", ["doc_id", "text_kind"]):
        rows = table.filter(pc.is_in(table.column("doc_id"), value_set=wanted)).to_pylist()
        found.update((row["doc_id"], row["text_kind"]) for row in rows)
    return found
