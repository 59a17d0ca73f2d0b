"""The output of one part: cuts around leaks, held-out documents apart, and a ledger row for all that is removed.

Cutting follows GPT-3's appendix C: 200 characters on each side of a match are removed with it, pieces of fewer than 200
characters are dropped, and a document that would be cut into more than 10 pieces is dropped whole. A window that would
end within a word grows to the word's end, so that training reads no halves of words.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tasks.artifacts.report import SourceCounts, StageReport
from tasks.artifacts.tables.columns import with_texts
from tasks.artifacts.tables.ledger import CUT, DROP, HOLD_OUT, LedgerRows, clip_bytes
from tasks.artifacts.tables.map_parts import PartResult
from tasks.artifacts.tables.schema import DOCUMENTS
from tasks.common.text import is_unspaced
from tasks.common.utf8 import ROLLING_BASE
from tasks.decontaminate.benchmarks import Item
from tasks.decontaminate.config import DecontaminateConfig
from tasks.decontaminate.forms import HALF, RUN, SHORT, SIMILAR, TOGETHER, WHOLE
from tasks.decontaminate.heldout import draw_number
from tasks.decontaminate.leaks import FORMS, Region
from tasks.decontaminate.seeds import U64, hash_texts

STAGE = "decontaminate"
NGRAM_OVERLAP = "ngram_overlap"
WHOLE_ITEM = "whole_item"
SIMILAR_ITEM = "similar_item"
SHORT_PIECE = "short_piece"
HELD_OUT = "held_out_share"
_RULES = {
    FORMS[RUN]: NGRAM_OVERLAP,
    FORMS[HALF]: NGRAM_OVERLAP,
    FORMS[WHOLE]: WHOLE_ITEM,
    FORMS[SHORT]: WHOLE_ITEM,
    FORMS[TOGETHER]: WHOLE_ITEM,
    FORMS[SIMILAR]: SIMILAR_ITEM,
}
REMAINS = "remains"
_NAME_BYTES = 60

MAX_WORD_EXTENSION = 40
"""Characters that a window grows at most to reach whitespace; runs without any, such as base64, have no words."""

NO_PIECE_LEFT = "no_piece_left"
TOO_MANY_PIECES = "too_many_pieces"


@dataclass(frozen=True)
class Decisions:
    """What was decided about the documents of a run, or of one part, counted from its first."""

    items: Mapping[int, Item]
    leaks: Mapping[int, Sequence[Region]]
    heldout: frozenset[int]

    def between(self, begin: int, end: int) -> "Decisions":
        """Return the decisions on documents from `begin` on, before `end`, with the items that they name."""
        rows = range(begin, end)
        leaks = {row - begin: self.leaks[row] for row in rows if row in self.leaks}
        named = {region.item for regions in leaks.values() for region in regions}
        return Decisions(
            {item: self.items[item] for item in sorted(named)},
            leaks,
            frozenset(row - begin for row in rows if row in self.heldout),
        )


@dataclass(frozen=True)
class Cut:
    """Bytes start:end of the text to cut; `regions` are the leaks within, empty for a remainder that is too short."""

    start: int
    end: int
    regions: tuple[Region, ...]


@dataclass(frozen=True)
class CutText:
    """What cutting leaves: pieces and cuts tile the text; `drop_rule` is set where the document is dropped instead."""

    pieces: tuple[tuple[int, int], ...]
    cuts: tuple[Cut, ...]
    drop_rule: str | None


def rewrite_part(config: DecontaminateConfig, table: pa.Table, index: int, decisions: Decisions) -> PartResult:
    """Return tables documents, heldout and ledger of one part, by its `decisions`."""
    del index
    ledger, report, kept = LedgerRows(STAGE), StageReport(), _Output()
    doc_ids, sources = table.column("doc_id").to_pylist(), table.column("source").to_pylist()
    sizes = pc.binary_length(table.column("text")).to_pylist()
    heldout: list[int] = []
    remains: dict[str, int] = {}
    for row in range(table.num_rows):
        counts = report.source(sources[row])
        counts.documents_in += 1
        counts.bytes_in += sizes[row]
        regions = decisions.leaks.get(row, ())
        if row in decisions.heldout:
            heldout.append(row)
            counts.held_out += 1
            number = draw_number(doc_ids[row], sources[row], config.seed)
            ledger.add(
                doc_id=doc_ids[row],
                action=HOLD_OUT,
                rule=HELD_OUT,
                value=number,
                limit=config.heldout_share,
                bytes_in=sizes[row],
                bytes_out=0,
            )
        elif regions and config.mode != "flag":
            text = table.column("text")[row].as_py().encode()
            first = len(kept.rows)
            _cut_document(text, doc_ids[row], row, regions, decisions.items, config, counts, ledger, kept)
            pieces = [kept.texts[piece].decode() for piece in range(first, len(kept.rows))]
            remains |= _count_remaining(pieces, doc_ids[row], regions, decisions.items, config)
        else:
            kept.add(row)
            if regions:
                text = table.column("text")[row].as_py()
                counted = _count_remaining([text], doc_ids[row], regions, decisions.items, config)
                # A text with changed words is still there, though none of its n-grams may be.
                remains |= {key: max(1, count) for key, count in counted.items()}
            counts.documents_out += 1
            counts.pieces_out += 1
            counts.bytes_out += sizes[row]
    tables = {
        "documents": _pieces_table(table, kept),
        "heldout": table.take(pa.array(heldout, pa.int64())),
        "ledger": ledger.table(),
    }
    report.facts[REMAINS] = {key: count for key, count in remains.items() if count}
    return PartResult(tables, report)


def remaining_ngrams(report: StageReport) -> dict[tuple[bytes, int], int]:
    """Return (document id, item) -> how many of a leaked item's n-grams the document still holds as it is put out.

    `report` is that of all parts; documents without any are absent.
    """
    keys = ((key.partition("/"), count) for key, count in report.facts.get(REMAINS, {}).items())
    return {(bytes.fromhex(of), int(item)): count for (of, _, item), count in keys}


def _count_remaining(
    texts: Sequence[str],
    doc_id: bytes,
    regions: Sequence[Region],
    items: Mapping[int, Item],
    config: DecontaminateConfig,
) -> dict[str, int]:
    """Return for each item leaked in a document how many of its n-grams `texts` hold; a shorter part is one n-gram.

    Parts of fewer words than `short_words` do not count.
    """
    words, _, counts = hash_texts(texts)
    pieces = np.split(words, np.cumsum(counts)[:-1])
    held: dict[int, U64] = {}
    found: dict[str, int] = {}
    for number in sorted({region.item for region in regions}):
        own, _, sizes = hash_texts([part.text for part in items[number].searched])
        grams: dict[int, list[U64]] = {}
        for part in np.split(own, np.cumsum(sizes)[:-1]):
            width = min(config.ngram, part.size)
            if width >= config.short_words:
                grams.setdefault(width, []).append(_ngram_hashes(part, width))
        for width in grams.keys() - held.keys():
            held[width] = np.concatenate([_ngram_hashes(piece, width) for piece in pieces])
        key = f"{doc_id.hex()}/{number}"
        found[key] = sum(int(np.isin(np.unique(np.concatenate(of)), held[w]).sum()) for w, of in grams.items())
    return found


def _ngram_hashes(words: npt.NDArray[np.uint32], width: int) -> U64:
    count = max(0, words.size - width + 1)
    hashes = np.zeros(count, np.uint64)
    for shift in range(width):
        hashes = hashes * ROLLING_BASE + words[shift : shift + count]
    return hashes


@dataclass
class _Output:
    """Rows of the output in order: which input row, which piece, and the piece's text where it was cut."""

    rows: list[int] = field(default_factory=list)
    pieces: list[int] = field(default_factory=list)
    texts: dict[int, bytes] = field(default_factory=dict)

    def add(self, row: int, piece: int = 0, text: bytes | None = None) -> None:
        if text is not None:
            self.texts[len(self.rows)] = text
        self.rows.append(row)
        self.pieces.append(piece)


def _cut_document(
    text: bytes,
    doc_id: bytes,
    row: int,
    regions: Sequence[Region],
    items: Mapping[int, Item],
    config: DecontaminateConfig,
    counts: SourceCounts,
    ledger: LedgerRows,
    kept: _Output,
) -> None:
    """Drop the document, or add its pieces to `kept`; the ledger accounts for every byte that is removed."""
    plan = CutText((), (), _rule(regions)) if config.mode == "drop" else cut_text(text, regions, config)
    if plan.drop_rule is not None:
        pieces = {} if config.mode == "drop" else {"pieces": len(plan.pieces)}
        cited = _cited(regions)
        evidence = _evidence(items, regions, cited.start, cited.end, pieces)
        counts.dropped[plan.drop_rule] += 1
        ledger.add(
            doc_id=doc_id, action=DROP, rule=plan.drop_rule, value=cited.matched, bytes_in=len(text), bytes_out=0,
            evidence=evidence,
        )  # fmt: skip
        return
    left = len(text)
    for cut in plan.cuts:
        after = left - (cut.end - cut.start)
        ledger.add(
            doc_id=doc_id,
            action=CUT,
            rule=_rule(cut.regions) if cut.regions else SHORT_PIECE,
            value=_cited(cut.regions).matched if cut.regions else None,
            bytes_in=left,
            bytes_out=after,
            evidence=_evidence(items, cut.regions, cut.start, cut.end, {}),
        )
        left = after
    for piece, (start, end) in enumerate(plan.pieces):
        kept.add(row, piece, text[start:end])
    counts.documents_out += 1
    counts.pieces_out += len(plan.pieces)
    counts.bytes_out += left
    counts.edited["cut"] += 1


def _cited(regions: Sequence[Region]) -> Region:
    """Return the leak that a ledger row names: the one that shares most, of equal ones the first."""
    return max(regions, key=lambda region: (region.matched, -region.start, -region.item))


def _rule(regions: Sequence[Region]) -> str:
    return _RULES[_cited(regions).form]


def _evidence(items: Mapping[int, Item], regions: Sequence[Region], start: int, end: int, more: dict[str, Any]) -> str:
    named: dict[str, Any] = {}
    if regions:
        item = items[_cited(regions).item]
        named = {"benchmark": clip_bytes(item.benchmark, _NAME_BYTES), "item_id": clip_bytes(item.item_id, _NAME_BYTES)}
    return json.dumps({**named, "start": start, "end": end, **more}, ensure_ascii=False, separators=(",", ":"))


def _pieces_table(table: pa.Table, kept: _Output) -> pa.Table:
    taken = table.take(pa.array(kept.rows, pa.int64()))
    if not kept.texts:
        return taken
    taken = with_texts(taken, list(kept.texts), list(kept.texts.values()))
    field = DOCUMENTS.field("piece")
    return taken.set_column(taken.schema.get_field_index("piece"), field, pa.array(kept.pieces, field.type))


def cut_text(text: bytes, regions: Sequence[Region], config: DecontaminateConfig) -> CutText:
    """Plan the cuts of one document; `regions` in order of their start, offsets in UTF-8 bytes.

    A window is `config.window_chars` on each side of its region, and the rest of a word at its ends where there is
    whitespace within `MAX_WORD_EXTENSION` characters. In scripts without spaces each character is a word.
    """
    characters = np.flatnonzero((np.frombuffer(text, np.uint8) & 0xC0) != 0x80)
    borders = np.concatenate([characters, [len(text)]])
    last = borders.size - 1
    windows: list[tuple[int, int, list[Region]]] = []
    for region in regions:
        begin = max(0, int(np.searchsorted(borders, region.start, "right")) - 1 - config.window_chars)
        end = min(last, int(np.searchsorted(borders, region.end, "left")) + config.window_chars)
        before = text[borders[max(0, begin - MAX_WORD_EXTENSION)] : borders[begin]].decode()
        after = text[borders[end] : borders[min(last, end + MAX_WORD_EXTENSION)]].decode()
        inside = text[borders[begin] : borders[end]].decode()
        begin -= _rest_of_word(inside[:1], before[::-1])
        end += _rest_of_word(inside[-1:], after)
        if windows and begin <= windows[-1][1]:
            opened, closed, within = windows[-1]
            windows[-1] = (opened, max(closed, end), [*within, region])
        else:
            windows.append((begin, end, [region]))
    pieces: list[tuple[int, int]] = []
    cuts: list[Cut] = []
    position = 0
    for begin, end, within in [*windows, (last, last, [])]:
        if begin - position >= config.min_piece_chars:
            pieces.append((int(borders[position]), int(borders[begin])))
        elif begin > position:
            cuts.append(Cut(int(borders[position]), int(borders[begin]), ()))
        if end > begin:
            cuts.append(Cut(int(borders[begin]), int(borders[end]), tuple(within)))
        position = end
    drop_rule = NO_PIECE_LEFT if not pieces else TOO_MANY_PIECES if len(pieces) > config.max_pieces else None
    return CutText(tuple(pieces), tuple(cuts), drop_rule)


def _rest_of_word(inner: str, outwards: str) -> int:
    """Return how many characters of `outwards` continue the word that `inner` ends; 0 where it never ends."""
    for length, character in enumerate(outwards):
        if _separates_words(inner) or _separates_words(character):
            return length
        inner = character
    return 0


def _separates_words(character: str) -> bool:
    return character.isspace() or is_unspaced(ord(character))
