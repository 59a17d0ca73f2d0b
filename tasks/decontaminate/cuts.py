"""Cutting leaks out of a text: a window of characters around each, short remainders gone, at most so many pieces.

The recipe of GPT-3's appendix C: 200 characters on each side of a match are removed with it, pieces of fewer than 200
characters are dropped, and a document that falls into more than 10 pieces is dropped whole. A window that would end
within a word grows to the word's end, so that training sees no halves of words.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tasks.decontaminate.config import DecontaminateConfig
from tasks.decontaminate.leaks import Region
from tasks.scripts import is_unspaced

WORD_REACH = 40
"""Characters that a window grows at most to reach a blank; stretches without one, such as base64, have no words."""
OUT_OF_PIECES = "no_piece_left"
TOO_MANY_PIECES = "too_many_pieces"


@dataclass(frozen=True)
class Cut:
    """Bytes start:end of the text go; `regions` are the leaks within, empty where only a short remainder goes."""

    start: int
    end: int
    regions: tuple[Region, ...]


@dataclass(frozen=True)
class CutText:
    """What cutting leaves: pieces and cuts tile the text. `fate` is None, or why the document is dropped instead."""

    pieces: tuple[tuple[int, int], ...]
    cuts: tuple[Cut, ...]
    fate: str | None


def cut_text(text: bytes, regions: Sequence[Region], config: DecontaminateConfig) -> CutText:
    """Plan the cuts of one document; `regions` in order of their start, offsets in UTF-8 bytes.

    A window is `config.window_chars` on each side of its region, and what is left of a word at its ends where a blank
    is within `WORD_REACH` characters. In scripts without blanks each character is a word.
    """
    characters = np.flatnonzero((np.frombuffer(text, np.uint8) & 0xC0) != 0x80)
    borders = np.concatenate([characters, [len(text)]])
    last = borders.size - 1
    windows: list[tuple[int, int, list[Region]]] = []
    for region in regions:
        begin = max(0, int(np.searchsorted(borders, region.start, "right")) - 1 - config.window_chars)
        end = min(last, int(np.searchsorted(borders, region.end, "left")) + config.window_chars)
        before = text[borders[max(0, begin - WORD_REACH)] : borders[begin]].decode()
        after = text[borders[end] : borders[min(last, end + WORD_REACH)]].decode()
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
    fate = OUT_OF_PIECES if not pieces else TOO_MANY_PIECES if len(pieces) > config.max_pieces else None
    return CutText(tuple(pieces), tuple(cuts), fate)


def _rest_of_word(inner: str, outwards: str) -> int:
    """Characters of `outwards` that continue the word of the window's edge character `inner`; 0 where none ends it."""
    for length, character in enumerate(outwards):
        if _parts_words(inner) or _parts_words(character):
            return length
        inner = character
    return 0


def _parts_words(character: str) -> bool:
    return character.isspace() or is_unspaced(ord(character))
