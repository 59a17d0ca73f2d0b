"""The ledger: what a stage did to documents, one row per drop, cut, hold-out or merged edit.

A document that is kept unchanged has no row. Every row has the rule, the value it measured, its limit, and at most 200
bytes of evidence.
"""

import pyarrow as pa

from tasks.artifacts.tables.schema import EVIDENCE_BYTES, LEDGER

DROP = "drop"

CUT = "cut"

EDIT = "edit"

HOLD_OUT = "hold_out"


def clip_bytes(text: str, limit: int = EVIDENCE_BYTES) -> str:
    """Return `text` cut to at most `limit` UTF-8 bytes at a character boundary; lone surrogates become U+FFFD."""
    encoded = text.encode("utf-8", errors="surrogatepass")[: limit + 4]
    clean = encoded.decode("utf-8", errors="replace").encode("utf-8")
    return clean[:limit].decode("utf-8", errors="ignore")


class LedgerRows:
    """Collects the ledger rows of one part in document order; `stage` is written into each row."""

    def __init__(self, stage: str) -> None:
        self._stage = stage
        self._rows: list[dict[str, object]] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add(
        self,
        *,
        doc_id: bytes,
        action: str,
        rule: str,
        bytes_in: int,
        bytes_out: int,
        piece: int = 0,
        value: float | None = None,
        limit: float | None = None,
        evidence: str | None = None,
    ) -> None:
        """Add one drop, cut, hold-out or edit; sizes in UTF-8 bytes of the document's text."""
        self._rows.append(
            {
                "doc_id": doc_id,
                "piece": piece,
                "stage": self._stage,
                "action": action,
                "rule": rule,
                "value": value,
                "limit": limit,
                "bytes_in": bytes_in,
                "bytes_out": bytes_out,
                "evidence": None if evidence is None else clip_bytes(evidence),
            }
        )

    def table(self) -> pa.Table:
        """Return all rows as one Arrow table in the LEDGER schema."""
        return pa.Table.from_pylist(self._rows, schema=LEDGER)
