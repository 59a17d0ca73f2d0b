"""Holes in a text: where they are, which tokens surround them, what may stand in them.

A blank before a hole belongs to what fills it where the vocabulary writes blanks inside its pieces, as it did in the
text that the model was trained on.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from model.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from tasks.tokenizer import Tokenizer

HOLE = re.compile(r"_{3,}|\[MASK\]|<mask>|<extra_id_\d+>")
"""Three or more underscores, a mask of BERT's, or a sentinel of T5's; in a prompt they all mean a hole."""
_INSIDE = "##"


@dataclass(frozen=True)
class Holes:
    """A text cut at its holes: one stretch more than there are holes."""

    stretches: tuple[str, ...]

    @staticmethod
    def in_text(text: str) -> "Holes":
        """The holes that a text marks."""
        return Holes(tuple(HOLE.split(text)))

    def __len__(self) -> int:
        return len(self.stretches) - 1

    def encoded(self, tokenizer: "Tokenizer", marks: Sequence[int]) -> tuple[list[int], list[int]]:
        """Ids of the text with `marks` in place of its holes, and the place of each."""
        ids: list[int] = []
        places: list[int] = []
        for number, stretch in enumerate(self.stretches):
            hole_follows = number < len(self)
            written = stretch.removesuffix(" ") if hole_follows and tokenizer.exact else stretch
            if written:
                ids += tokenizer.encode_following(written) if number else tokenizer.encode(written)
            if hole_follows:
                if marks[number] < 0:
                    raise InputError(
                        "the model's vocabulary has no mask, so its holes have no name; choose a model whose"
                        " vocabulary was built for masked_lm"
                    )
                places.append(len(ids))
                ids.append(marks[number])
        return ids, places

    def filling(self, tokenizer: "Tokenizer", ids: Sequence[int]) -> str:
        """The text of what stands in a hole, with the blank that belongs to it."""
        return tokenizer.decode_following(ids).removeprefix(_INSIDE)

    def filled(self, tokenizer: "Tokenizer", fillings: Sequence[str]) -> str:
        """The whole text; a hole that begins it begins with no blank."""
        text = ""
        for stretch, filling in zip(self.stretches[:-1], fillings, strict=True):
            text += stretch.removesuffix(" ") if tokenizer.exact else stretch
            text += filling if text else filling.lstrip(" ")
        return text + self.stretches[-1]

    def allowed(self, tokenizer: "Tokenizer", rows: int) -> "Tensor":
        """bool[holes, rows]: pieces of text that begin with a blank where one stands before the hole, and that do not
        where none does; no special tokens and no halves of characters."""
        import torch

        begins = torch.zeros(rows, dtype=torch.bool)
        goes_on = torch.zeros(rows, dtype=torch.bool)
        for number, piece in enumerate(tokenizer.piece_bytes):
            if not piece.strip() or not _is_text(piece):
                continue
            if tokenizer.exact:
                (begins if piece.startswith(b" ") else goes_on)[number] = True
            else:
                goes_on[number] = True
                begins[number] = not tokenizer.decode_following([number]).startswith(_INSIDE)
        by_hole = []
        for number, stretch in enumerate(self.stretches[:-1]):
            first = not number and not stretch
            blank = stretch.endswith(" ") or (first and (tokenizer.leading_blank or not tokenizer.exact))
            by_hole.append(begins if blank and begins.any() else goes_on)
        return torch.stack(by_hole)


def _is_text(piece: bytes) -> bool:
    try:
        piece.decode()
    except UnicodeDecodeError:
        return False
    return True
