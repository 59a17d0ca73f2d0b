"""The texts of a handful of documents, in one buffer that grows as edits replace some of them.

Kernels see all texts at once, as bytes between bounds; edits in Python see one of them, as a string.
"""

from collections.abc import Callable, Sequence

import numpy as np

from tasks.clean.emoji_words import ANYWHERE, STANDING_ALONE
from tasks.clean.faces import faces
from tasks.clean.idle_characters import idle_characters
from tasks.clean.signs import ALL_SIGNS, LINE_SIGNS, line_signs_of, signs_of
from tasks.clean.stickers import STICKERS

SAME, REWRITTEN, TOO_HARD = range(3)
_ROOM = 1 << 12
_FACES = faces(STANDING_ALONE, ANYWHERE, STICKERS)
_IDLE = idle_characters(STANDING_ALONE, ANYWHERE)


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
        """What `tasks.clean.signs` saw in each text (uint32)."""
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
