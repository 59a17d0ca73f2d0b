"""Hints about files that are not read as they are, by their suffixes: what they are, and what makes text of them."""

import os

MAILBOX_HINT = "a mailbox: `bessemer init --unpack` writes the text of its messages as .jsonl"

NO_TEXT = {
    **dict.fromkeys(
        (".png", ".jpg", ".jpeg", ".gif", ".webp", ".svg", ".mp3", ".wav", ".m4a", ".mp4", ".mov", ".mkv"),
        "a picture, sound or film",
    ),
    ".pdf": "PDF: extract its text first",
    **dict.fromkeys((".docx", ".doc", ".odt", ".rtf"), "of a word processor: save as text or Markdown"),
    **dict.fromkeys((".xlsx", ".xls", ".ods"), "a spreadsheet: save as .csv"),
    ".epub": "EPUB: `bessemer init --unpack` writes its chapters as HTML",
    **dict.fromkeys((".zip", ".tar", ".tgz"), "an archive: `bessemer init --unpack` unpacks it"),
    **dict.fromkeys((".7z", ".rar"), "an archive: unpack it"),
    ".lock": "a list of versions that a tool wrote",
    ".xz": "xz: compress as .gz or .zst instead",
    ".json": "JSON in one piece: `bessemer init --unpack` writes the list of records in it, if there is one, as .jsonl",
    ".mbox": MAILBOX_HINT,
    ".eml": "mail: `bessemer init --unpack` writes its text as .jsonl",
    ".ipynb": "a notebook: `bessemer init --unpack` writes its text and code as Markdown",
    **dict.fromkeys(
        (".srt", ".vtt"), "subtitles: `bessemer init --unpack` writes what they say, without numbers and times"
    ),
}


def hint_about(name: str, *, compressed: bool) -> str:
    """Return what a file is that is not read as it is, and what makes text of it; empty for any other."""
    suffix = os.path.splitext(os.path.splitext(name)[0] if compressed else name)[1].lower()
    hint = NO_TEXT.get(suffix, "")
    return f"decompress it first; {hint}" if hint and compressed and suffix != ".tar" else hint
