"""What is known of a handful of documents besides their texts; unknown languages are identified when asked for.

The rows of one part as cleaning wants them: a handful of documents at a time, and what is known of each.

The texts of a handful of documents, in one buffer that grows as edits replace some of them.

Kernels see all texts at once, as bytes between bounds; edits in Python see one of them, as a string.
"""

import functools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa

from tasks.clean.document import CODE, About
from tasks.clean.edits.emoji import ANYWHERE, STANDING_ALONE, STICKERS
from tasks.clean.filters.language import identify_languages, language_model
from tasks.clean.kernels.emoticons import faces, idle_characters
from tasks.clean.kernels.prefilter import ALL_SIGNS, LINE_SIGNS, line_signs_of, signs_of

_UNKNOWN = -1


class Texts:
    """Text i is `data[begins[i]:ends[i]]` (UTF-8, uint8), and `signs[i]` what was seen in it.

    Signs outside `looked_for` may be missing where a text was replaced after that was said.
    """

    def __init__(self, data: np.ndarray, bounds: np.ndarray) -> None:
        """Texts between `bounds` (int64, one more than texts) of a buffer, which is copied."""
        begin, end = int(bounds[0]), int(bounds[-1])
        self.data = np.empty(2 * (end - begin) + _ROOM, np.uint8)
        self.data[: end - begin] = data[begin:end]
        self._used = end - begin
        self.begins = bounds[:-1] - begin
        self.ends = bounds[1:] - begin
        self._signs: np.ndarray | None = None
        self.looked_for = ALL_SIGNS
        self._strings: dict[int, str] = {}

    @staticmethod
    def of(texts: Sequence[str | np.ndarray]) -> "Texts":
        """Texts given as strings or as UTF-8 bytes."""
        raw = [text.encode() if isinstance(text, str) else text.tobytes() for text in texts]
        bounds = np.concatenate(([0], np.cumsum([len(text) for text in raw]))).astype(np.int64)
        return Texts(np.frombuffer(b"".join(raw), np.uint8), bounds)

    def __len__(self) -> int:
        return len(self.begins)

    @property
    def signs(self) -> np.ndarray:
        """What `tasks.clean.kernels.prefilter` saw in each text (uint32)."""
        if self._signs is None:
            self._signs = np.zeros(len(self), np.uint32)
            self._see(np.arange(len(self)))
        return self._signs

    @property
    def bounds(self) -> np.ndarray:
        """(begins, ends) of all texts; what stands between them stays when a text is replaced."""
        return np.stack((self.begins, self.ends))

    @property
    def sizes(self) -> np.ndarray:
        """Bytes of each text."""
        return self.ends - self.begins

    def raw(self, row: int) -> np.ndarray:
        """The bytes of a text, valid until texts are replaced."""
        return self.data[self.begins[row] : self.ends[row]]

    def text(self, row: int) -> str:
        """A text."""
        text = self._strings.get(row)
        if text is None:
            text = self._strings[row] = self.raw(row).tobytes().decode()
        return text

    def replace(self, edited: dict[int, str]) -> np.ndarray:
        """Put other texts in the place of some; returns their rows (int64)."""
        rows = np.fromiter(edited, np.int64, len(edited))
        if edited:
            raw = [text.encode() for text in edited.values()]
            sizes = np.array([len(text) for text in raw], np.int64)
            begin = self._make_room(int(sizes.sum()))
            self.data[begin : self._used] = np.frombuffer(b"".join(raw), np.uint8)
            self.ends[rows] = begin + np.cumsum(sizes)
            self.begins[rows] = self.ends[rows] - sizes
            self._strings.update(edited)
            self._see(rows)
        return rows

    def rewrite(self, rows: np.ndarray, write: Callable[..., None], *arguments) -> tuple[np.ndarray, np.ndarray]:
        """Let a kernel `write(data, begins, ends, outcomes, place, *arguments)` put texts that are no longer than
        before behind one another from `place` on, and their bounds into `begins` and `ends`.

        It says in `outcomes` (uint8) what became of each: SAME, REWRITTEN, or TOO_HARD for it. Returns the rows that
        were rewritten, and those that were too hard.
        """
        begins, ends = self.begins[rows], self.ends[rows]
        place = self._used
        self._make_room(int((ends - begins).sum()))
        outcomes = np.zeros(len(rows), np.uint8)
        write(self.data, begins, ends, outcomes, place, *arguments)
        written = outcomes == REWRITTEN
        rewritten = rows[written]
        self._used = int(ends[written].max()) if len(rewritten) else place
        self.begins[rewritten], self.ends[rewritten] = begins[written], ends[written]
        for row in rewritten.tolist():
            self._strings.pop(row, None)
        self._see(rewritten)
        return rewritten, rows[outcomes == TOO_HARD]

    def _make_room(self, size: int) -> int:
        begin = self._used
        self._used += size
        if self._used > len(self.data):
            grown = np.empty(2 * self._used + _ROOM, np.uint8)
            grown[:begin] = self.data[:begin]
            self.data = grown
        return begin

    def _see(self, rows: np.ndarray) -> None:
        if self._signs is None:
            return
        if not self.looked_for & ~LINE_SIGNS:
            self._signs[rows] = line_signs_of(self.data, self.begins[rows], self.ends[rows])
        else:
            self._signs[rows] = signs_of(self.data, self.begins[rows], self.ends[rows], _FACES, _IDLE)


class Abouts:
    """Kinds, languages (ISO 639 codes or None), sources and domains of documents, and what emoji become."""

    def __init__(
        self,
        kinds: Sequence[str],
        languages: Sequence[str | None],
        sources: Sequence[str],
        domains: Sequence[str],
        emoji: str,
        *,
        identifies: bool = True,
    ) -> None:
        self.kinds = kinds
        self.given = languages
        self._sources = sources
        self._domains = domains
        self._emoji = emoji
        self._identifies = identifies
        self._is_unknown = np.array([language is None for language in languages], np.bool_)
        self._is_code = np.array([kind == CODE for kind in kinds], np.bool_)
        self._found = np.full(len(kinds), _UNKNOWN, np.int64)
        self._confidences = np.full(len(kinds), np.nan)
        self._looked_at = np.full((2, len(kinds)), _UNKNOWN, np.int64)

    @staticmethod
    def of(about: About, *, identifies: bool = False) -> "Abouts":
        """What is known of one document."""
        return Abouts(
            [about.kind], [about.language], [about.source], [about.domain], about.emoji, identifies=identifies
        )

    def about(self, row: int) -> About:
        """What is known of a document, its language where it was given or was identified by now."""
        return About(self.kinds[row], self.language(row), self._emoji, self._sources[row], self._domains[row])

    def language(self, row: int) -> str | None:
        """The language of a document, where it was given or was identified by now."""
        found = int(self._found[row])
        given = self.given[row]
        return given if given is not None or found == _UNKNOWN else language_model().languages[found]

    def identified_language(self, row: int) -> tuple[str, float] | None:
        """(language, confidence) of a document, None where it was not identified."""
        found = int(self._found[row])
        return None if found == _UNKNOWN else (language_model().languages[found], float(self._confidences[row]))

    def identified(self, texts: Texts, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(numbers in the model's languages, confidences) of all documents, after those of `rows` were identified."""
        self._identify(texts, rows, texts.bounds)
        return self._found, self._confidences

    def identify_unknown(self, texts: Texts, rows: np.ndarray, bounds: np.ndarray | None = None) -> None:
        """Identify the languages of those documents of `rows` that came without one and are not code; `bounds` are
        those of other versions of the texts than the current ones."""
        if self._identifies:
            unknown = rows[self._is_unknown[rows] & ~self._is_code[rows]]
            self._identify(texts, unknown, texts.bounds if bounds is None else bounds)

    def _identify(self, texts: Texts, rows: np.ndarray, bounds: np.ndarray) -> None:
        rows = rows[(self._looked_at[:, rows] != bounds[:, rows]).any(axis=0)]
        if len(rows):
            self._looked_at[:, rows] = bounds[:, rows]
            self._found[rows], self._confidences[rows] = identify_languages(texts.data, *bounds[:, rows])


HANDFUL_BYTES = 1 << 18
"""So many bytes go side by side: few enough that what kernels note down stays in the processor's cache, many enough
that small documents cost no more for each byte than large ones."""

PAGE_BYTES_FOR_ONE_OF_TEXT = 8
"""Most of a page of HTML is gone before anything is counted; with handfuls of 2 MB of pages they take 16% less time."""


@dataclass(frozen=True)
class Handful:
    """Documents from row `first` of the part on; `sources`, `kinds`, `domains` of each, their `sizes` in bytes."""

    first: int
    rows: pa.RecordBatch
    texts: Texts
    abouts: Abouts
    sources: list[str]
    kinds: list[str]
    domains: list[str]
    sizes: np.ndarray

    def __len__(self) -> int:
        return len(self.sources)

    def column(self, name: str) -> list:
        """One of the columns of DOCUMENTS."""
        return self.rows.column(name).to_pylist()


def handfuls_of(documents: pa.Table, emoji: str) -> Iterator[Handful]:
    """The documents of a table (DOCUMENTS schema) in order, a handful at a time; `emoji` is what becomes of emoji."""
    first = 0
    for batch in documents.to_batches():
        data, bounds = text_buffer(batch.column("text"))
        metas = batch.column("meta")
        known = (
            [_format_and_domain(meta) for meta in metas.to_pylist()]
            if metas.null_count < len(metas)
            else [_format_and_domain(None)] * len(metas)
        )
        weights = np.diff(bounds)
        weights[[kind == "html" for kind, _ in known]] //= PAGE_BYTES_FOR_ONE_OF_TEXT
        ends = np.cumsum(weights)
        begin = 0
        while begin < len(batch):
            most = ends[begin] - weights[begin] + HANDFUL_BYTES
            end = max(begin + 1, int(np.searchsorted(ends, most, "right")))
            rows = batch.slice(begin, end - begin)
            kinds, domains = map(list, zip(*known[begin:end], strict=True))
            sources = _values(rows.column("source"))
            abouts = Abouts(kinds, _values(rows.column("lang")), sources, domains, emoji)
            of_these = bounds[begin : end + 1]
            texts = Texts(data, of_these)
            yield Handful(first, rows, texts, abouts, sources, kinds, domains, np.diff(of_these))
            first += len(rows)
            begin = end


def _values(column: pa.DictionaryArray) -> list:
    """The values of a column that has few different ones."""
    names = [*column.dictionary.to_pylist(), None]
    return [names[code] for code in column.indices.fill_null(-1).to_pylist()]


def text_buffer(texts: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """(bytes, offsets of the documents in them) of an Arrow column of large strings, without copying the text."""
    _, offsets, data = texts.buffers()
    bounds = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    return (np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)), bounds


@functools.lru_cache(maxsize=1024)
def _format_and_domain(meta: str | None) -> tuple[str, str]:
    """The format a document was marked with when it was read, and the host of its address; ("text", "") for none."""
    known = json.loads(meta) if meta else {}
    return known.get("format", "text"), urlsplit(known.get("url") or "").hostname or ""


SAME, REWRITTEN, TOO_HARD = range(3)

_ROOM = 1 << 12

_FACES = faces(STANDING_ALONE, ANYWHERE, STICKERS)

_IDLE = idle_characters(STANDING_ALONE, ANYWHERE)
