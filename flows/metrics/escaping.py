"""Escape what commands print: characters that control a terminal, or that hide or reorder text, become escapes.

Texts of documents, names of files and answers of servers are untrusted. A terminal obeys ESC sequences in them
(colours, titles, links, answers typed back), and bidirectional overrides show a line in another order than it has
(CVE-2021-42574). All output of commands passes through `EscapedStream` or `EscapingConsole`.

Escapes are written as in JSON (`\\u001b`), so that JSON which is printed with its own letters stays the same value.
"""

import io
import re
import sys
from collections.abc import Iterable
from typing import Any, TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Span, Text

_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 but for tab and line feed, DEL, C1
    "\xad\u180e\u200b\u2060-\u2064\ufeff\U000e0000-\U000e007f"  # invisible
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u206f"  # direction of writing
    "\u2028\u2029\ufff9-\ufffb"  # ends of lines, and annotations that may be left out
    "\ud800-\udfff]"  # bytes of file names that are no UTF-8, which no terminal can be sent
)
"""Joiners (U+200C, U+200D) are kept: Persian, Indic scripts and emoji are written with them."""


_RESET = "\x1b[0m"
"""What colorama, which numba initializes, writes by itself to a terminal when the process ends."""


def escaped(text: str) -> str:
    """Return the text with escapes in place of characters that control a terminal or deceive its reader."""
    return _UNSAFE.sub(_escape, text)


def escaped_line(text: str) -> str:
    """Return the text in one line, such as the name of a file: ends of lines and tabs become escapes too."""
    return escaped(text).replace("\n", "\\u000a").replace("\t", "\\u0009")


def escape_output() -> None:
    """Escape everything that this process prints from now on."""
    sys.stdout, sys.stderr = EscapedStream(sys.stdout), EscapedStream(sys.stderr)


class EscapedStream(io.TextIOBase):
    """A stream of text that escapes what is written to it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        behind = getattr(stream, "rich_proxied_file", stream)
        self.unescaped: TextIO = getattr(behind, "unescaped", behind)
        """The stream for `EscapingConsole` alone, whose colours are ESC sequences too."""

    @property
    def encoding(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]  # of the stream behind
        """That of the wrapped stream."""
        return self.unescaped.encoding

    @property
    def errors(self) -> str | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """That of the wrapped stream."""
        return self.unescaped.errors

    def write(self, text: str, /) -> int:
        if text != _RESET:
            self._stream.write(escaped(text))
        return len(text)

    def flush(self) -> None:
        self._stream.flush()

    def isatty(self) -> bool:
        return self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()

    def writable(self) -> bool:
        return True


class EscapingConsole(Console):
    """A console that escapes text before layout and removes links; its own colours and bars are kept."""

    def __init__(self, stream: TextIO, **options: Any) -> None:
        super().__init__(file=getattr(stream, "unescaped", stream), highlight=False, emoji=False, **options)

    def on_broken_pipe(self) -> None:
        """Raise BrokenPipeError, by which a command ends as after any closed pipe; Rich would exit with 1."""
        raise BrokenPipeError

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(escaped(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        if isinstance(renderable, Text):
            renderable = _escaped_text(renderable)
        for text, style, control in super().render(renderable, options):
            if style is not None and style.link is not None:
                style = style.update_link(None)
            yield Segment(text if control else escaped(text), style, control)


def _escaped_text(text: Text) -> Text:
    edges = sorted({edge for found in _UNSAFE.finditer(text.plain) for edge in found.span()})
    if not edges:
        return text
    shown = text.blank_copy()
    for piece in text.divide(edges):
        words = escaped(piece.plain)
        if words != piece.plain:
            piece = Text(words, spans=[Span(0, len(words), span.style) for span in piece.spans])
        shown.append_text(piece)
    return shown


def _escape(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[index : index + 2].hex()}" for index in range(0, len(units), 2))
