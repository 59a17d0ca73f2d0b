"""Lists that a recipe brings as text files: what is denied, words, corrections of spelling."""

import unicodedata

from model.digests import read_bytes
from model.errors import InputError


def read_list(key: str, path: str) -> list[str]:
    """Return the lines of a list (UTF-8, with a byte order mark or without) in the normal form of cleaned text, NFC;
    raises InputError, which begins with `key`, where it cannot be read."""
    try:
        return unicodedata.normalize("NFC", read_bytes(path).decode("utf-8-sig")).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{key}: {path} cannot be read ({error}). Nothing was cleaned; check the path.") from error
