"""Documents in batches: their texts in one buffer, and what is known of each of them.

Kernels see all texts of a batch at once, as bytes between bounds; edits in Python see one of them, as a string. The
buffer grows where edits replace texts. Languages of documents that came without one are identified when an edit, a rule
or the output first needs them.
"""

import functools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa

from tasks.artifacts.tables.columns import text_buffers
from tasks.clean.document import CODE, KINDS, DocumentContext
from tasks.clean.edits.emoji import ANYWHERE, ISOLATED_EMOTICONS, STICKERS
from tasks.clean.filters.language import identify_languages, language_model
from tasks.clean.kernels.emoticons import emoticon_tables, skippable_characters
from tasks.clean.kernels.prefilter import ALL_FEATURES, LINE_FEATURES, scan_features, scan_line_features

_UNKNOWN = -1

BATCH_BYTES = 1 << 20
"""Bytes of text in a batch: many enough that its steps cost little per byte, few enough for its memory to stay
small."""

HTML_BYTES_PER_TEXT_BYTE = 2
"""Most of an HTML page is dropped before anything is counted: batches are of 2 MB of pages."""

UNCHANGED, REWRITTEN, NEEDS_PYTHON = range(3)
_SPARE_BYTES = 1 << 12
_EMOTICON_TABLES = emoticon_tables(ISOLATED_EMOTICONS, ANYWHERE, STICKERS)
_SKIPPABLE = skippable_characters(ISOLATED_EMOTICONS, ANYWHERE)


class Texts:
    """The texts of a batch: text i is `data[begins[i]:ends[i]]` (UTF-8, uint8), `features[i]` its feature flags.

    After `wanted_features` is set, flags outside it may be missing for texts replaced since.
    """

    def __init__(self, data: np.ndarray, bounds: np.ndarray) -> None:
        """Copy the texts between `bounds` (int64, texts + 1 values) out of `data`."""
        begin, end = int(bounds[0]), int(bounds[-1])
        self.data = np.empty(2 * (end - begin) + _SPARE_BYTES, np.uint8)
        self.data[: end - begin] = data[begin:end]
        self._used = end - begin
        self.begins = bounds[:-1] - begin
        self.ends = bounds[1:] - begin
        self._features: np.ndarray | None = None
        self.wanted_features = ALL_FEATURES
        self._strings: dict[int, str] = {}

    @staticmethod
    def of(texts: Sequence[str]) -> "Texts":
        raw = [text.encode() for text in texts]
        bounds = np.concatenate(([0], np.cumsum([len(text) for text in raw]))).astype(np.int64)
        return Texts(np.frombuffer(b"".join(raw), np.uint8), bounds)

    def __len__(self) -> int:
        return len(self.begins)

    @property
    def features(self) -> np.ndarray:
        """Return the feature flags of each text (uint32), as `tasks.clean.kernels.prefilter` finds them."""
        if self._features is None:
            self._features = np.zeros(len(self), np.uint32)
            self._scan(np.arange(len(self)))
        return self._features

    @property
    def bounds(self) -> np.ndarray:
        """Return (begins, ends) of all texts. Replacing a text changes its bounds, never the bytes between old ones."""
        return np.stack((self.begins, self.ends))

    @property
    def sizes(self) -> np.ndarray:
        """Return the bytes of each text."""
        return self.ends - self.begins

    def raw(self, row: int) -> np.ndarray:
        """Return the bytes of a text, valid until texts are replaced."""
        return self.data[self.begins[row] : self.ends[row]]

    def text(self, row: int) -> str:
        text = self._strings.get(row)
        if text is None:
            text = self._strings[row] = self.raw(row).tobytes().decode()
        return text

    def replace(self, edited: dict[int, str]) -> np.ndarray:
        """Replace some texts; returns their rows (int64)."""
        rows = np.fromiter(edited, np.int64, len(edited))
        if edited:
            raw = [text.encode() for text in edited.values()]
            sizes = np.array([len(text) for text in raw], np.int64)
            begin = self._reserve(int(sizes.sum()))
            self.data[begin : self._used] = np.frombuffer(b"".join(raw), np.uint8)
            self.ends[rows] = begin + np.cumsum(sizes)
            self.begins[rows] = self.ends[rows] - sizes
            self._strings.update(edited)
            self._scan(rows)
        return rows

    def rewrite(self, rows: np.ndarray, write: Callable[..., None], *arguments) -> tuple[np.ndarray, np.ndarray]:
        """Rewrite texts with a kernel `write(data, begins, ends, outcomes, place, *arguments)`.

        The kernel writes new texts, no longer than the old ones, one after another from `place` on, their bounds into
        `begins` and `ends`, and into `outcomes` (uint8) UNCHANGED, REWRITTEN or NEEDS_PYTHON. Returns the rows that
        were rewritten, and those that the kernel left to Python.
        """
        begins, ends = self.begins[rows], self.ends[rows]
        place = self._reserve(int((ends - begins).sum()))
        outcomes = np.zeros(len(rows), np.uint8)
        write(self.data, begins, ends, outcomes, place, *arguments)
        written = outcomes == REWRITTEN
        rewritten = rows[written]
        self._used = int(ends[written].max()) if len(rewritten) else place
        self.begins[rewritten], self.ends[rewritten] = begins[written], ends[written]
        for row in rewritten.tolist():
            self._strings.pop(row, None)
        self._scan(rewritten)
        return rewritten, rows[outcomes == NEEDS_PYTHON]

    def _reserve(self, size: int) -> int:
        begin = self._used
        self._used += size
        if self._used > len(self.data):
            grown = np.empty(2 * self._used + _SPARE_BYTES, np.uint8)
            grown[:begin] = self.data[:begin]
            self.data = grown
        return begin

    def _scan(self, rows: np.ndarray) -> None:
        if self._features is None:
            return
        begins, ends = self.begins[rows], self.ends[rows]
        if not self.wanted_features & ~LINE_FEATURES:
            self._features[rows] = scan_line_features(self.data, begins, ends)
        else:
            self._features[rows] = scan_features(self.data, begins, ends, _EMOTICON_TABLES, _SKIPPABLE)


class BatchContext:
    """Formats, languages (ISO 639 codes or None), sources and domains of documents, and what emoji become.

    `text_kinds` are filled in where kinds are recognised: indices into `document.KINDS` (int8), -1 before.
    """

    def __init__(
        self,
        formats: list[str],
        languages: list[str | None],
        sources: list[str],
        domains: list[str],
        emoji: str,
        *,
        identify_unknown: bool = True,
    ) -> None:
        self.formats = formats
        self.text_kinds = np.full(len(formats), _UNKNOWN, np.int8)
        self.given = languages
        self.sources = sources
        self.domains = domains
        self._emoji = emoji
        self._may_identify = identify_unknown
        self._is_unknown = np.array([language is None for language in languages], np.bool_)
        self._found = np.full(len(formats), _UNKNOWN, np.int64)
        self._confidences = np.full(len(formats), np.nan)
        self._identified_bounds = np.full((2, len(formats)), _UNKNOWN, np.int64)

    @staticmethod
    def of(context: DocumentContext, *, identify_unknown: bool = False) -> "BatchContext":
        """Return the context of one document."""
        contexts = BatchContext(
            [context.format],
            [context.language],
            [context.source],
            [context.domain],
            context.emoji,
            identify_unknown=identify_unknown,
        )
        if context.text_kind:
            contexts.text_kinds[0] = KINDS.index(context.text_kind)
        return contexts

    def are_of(self, format: str) -> np.ndarray:
        """Return which documents are of a format (bool)."""
        return np.array([found == format for found in self.formats], np.bool_)

    def at(self, row: int) -> DocumentContext:
        """Return the context of a document, with its language where it was given or is identified by now."""
        kind = int(self.text_kinds[row])
        return DocumentContext(
            self.formats[row],
            self.language(row),
            self._emoji,
            self.sources[row],
            self.domains[row],
            "" if kind == _UNKNOWN else KINDS[kind],
        )

    def language(self, row: int) -> str | None:
        """Return the language of a document, where it was given or is identified by now."""
        found = int(self._found[row])
        given = self.given[row]
        return given if given is not None or found == _UNKNOWN else language_model().languages[found]

    def identified_language(self, row: int) -> tuple[str, float] | None:
        """Return (language, confidence) of a document, None where it was not identified."""
        found = int(self._found[row])
        return None if found == _UNKNOWN else (language_model().languages[found], float(self._confidences[row]))

    def identify(self, texts: Texts, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Identify the languages of `rows`; returns (index in the model's languages, confidence) of all documents."""
        self._identify(texts, rows, texts.bounds)
        return self._found, self._confidences

    def identify_unknown(self, texts: Texts, rows: np.ndarray, bounds: np.ndarray | None = None) -> None:
        """Identify the languages of those documents of `rows` that came without one and are not code.

        `bounds` are those of earlier versions of the texts, where these are to be read.
        """
        if self._may_identify:
            unknown = rows[(self._is_unknown & ~self.are_of(CODE))[rows]]
            self._identify(texts, unknown, texts.bounds if bounds is None else bounds)

    def _identify(self, texts: Texts, rows: np.ndarray, bounds: np.ndarray) -> None:
        rows = rows[(self._identified_bounds[:, rows] != bounds[:, rows]).any(axis=0)]
        if len(rows):
            self._identified_bounds[:, rows] = bounds[:, rows]
            self._found[rows], self._confidences[rows] = identify_languages(texts.data, *bounds[:, rows])


@dataclass(frozen=True)
class DocumentBatch:
    """Documents from row `first` of the part on, and how many bytes each had as it was read."""

    first: int
    rows: pa.RecordBatch
    texts: Texts
    contexts: BatchContext
    sizes: np.ndarray

    def __len__(self) -> int:
        return len(self.sizes)

    def column(self, name: str) -> list:
        """Return one of the columns of DOCUMENTS."""
        return self.rows.column(name).to_pylist()


def iter_batches(documents: pa.Table, emoji: str) -> Iterator[DocumentBatch]:
    """Yield the documents of a table (DOCUMENTS schema) in order, in batches; `emoji` is `name` or `drop`."""
    first = 0
    for record_batch in documents.to_batches():
        data, bounds = text_buffers(record_batch.column("text"))
        metas = record_batch.column("meta")
        known = (
            [_format_and_domain(meta) for meta in metas.to_pylist()]
            if metas.null_count < len(metas)
            else [_format_and_domain(None)] * len(metas)
        )
        weights = np.diff(bounds)
        weights[[format == "html" for format, _ in known]] //= HTML_BYTES_PER_TEXT_BYTE
        ends = np.cumsum(weights)
        begin = 0
        while begin < len(record_batch):
            limit = ends[begin] - weights[begin] + BATCH_BYTES
            end = max(begin + 1, int(np.searchsorted(ends, limit, "right")))
            rows = record_batch.slice(begin, end - begin)
            formats, domains = map(list, zip(*known[begin:end], strict=True))
            languages, sources = _values(rows.column("lang")), _values(rows.column("source"))
            texts = Texts(data, bounds[begin : end + 1])
            yield DocumentBatch(
                first, rows, texts, BatchContext(formats, languages, sources, domains, emoji), texts.sizes
            )
            first += len(rows)
            begin = end


def _values(column: pa.DictionaryArray) -> list:
    """Return the values of a dictionary-encoded column, decoding each distinct value once."""
    names = [*column.dictionary.to_pylist(), None]
    return [names[code] for code in column.indices.fill_null(-1).to_pylist()]


@functools.lru_cache(maxsize=1024)
def _format_and_domain(meta: str | None) -> tuple[str, str]:
    """Return the format that `meta` names, and the host of its URL; ("text", "") where it names none."""
    known = json.loads(meta) if meta else {}
    try:
        host = urlsplit(known.get("url") or "").hostname
    except ValueError:
        host = None
    return known.get("format", "text"), host or ""
