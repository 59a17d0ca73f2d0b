"""Where the text of a row ends."""

import numpy as np

from model.data import SequenceReader


def text_lengths(tokens_BL: np.ndarray, pad: int) -> np.ndarray:
    """Tokens of each row before the padding at its end, i64[B]; padding ids elsewhere are tokens like others."""
    is_token = tokens_BL[:, ::-1] != pad
    return np.where(is_token.any(axis=1), tokens_BL.shape[1] - is_token.argmax(axis=1), 0)


def pad_of(data: SequenceReader) -> int:
    """What fills the rows of a reader that says what its rows are."""
    assert data.row_format is not None, "the loader has refused rows that do not say what they are"
    return data.row_format.pad
