"""MediaWiki markup becomes plain text: link texts, headings, list items and cells of tables stay.

Templates, references, files, categories, links to other languages and comments go; a few templates that only format
their argument (`lang`, `nowrap`, `convert`) leave it. One pass over the markup keeps a stack of what is open. A closing
mark closes the nearest of its kind, and what was opened since and has no end stays as text, so that malformed markup
loses nothing, and the work is proportional to the text. mwparserfromhell, which tries each reading of what has no
end, needs 7 s for 12 kB of `{{a|`, and reads pages at a tenth of this speed; the tests compare the words of both.
"""

import html
import re
from collections import Counter
from dataclasses import dataclass, field

from tasks.clean.document import DocumentContext

WIKITEXT = "wikitext"

_MOST_OPEN = 100
"""Marks that may be open at the same time; MediaWiki itself stops at 40 templates."""

_TAGS = """
    abbr b bdi big blockquote br caption center cite code col colgroup dd del dfn div dl dt em font h1 h2 h3 h4 h5 h6 hr
    i ins kbd li mark ol p poem q rb rp rt ruby s samp section small span strike strong sub sup table tbody td tfoot th
    thead time tr tt u ul var includeonly onlyinclude noinclude
"""
_KEPT_RAW = frozenset(("nowiki", "pre", "code", "source", "syntaxhighlight", "tt"))
_FORMULAS = frozenset(("math", "chem", "ce"))
_DROPPED = frozenset(
    ("ref", "references", "gallery", "imagemap", "timeline", "score", "graph", "mapframe", "maplink", "hiero",
     "templatedata", "templatestyles", "inputbox", "categorytree", "indicator", "style", "script")
)  # fmt: skip
_BREAKS = frozenset(
    ("blockquote", "br", "center", "div", "dl", "dt", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "li", "ol", "p",
     "poem", "table", "tr", "ul")
)  # fmt: skip
_KNOWN_TAGS = frozenset(_TAGS.split()) | _KEPT_RAW | _FORMULAS | _DROPPED

_TOKEN = re.compile(
    r"(?P<open>\{{2,})|(?P<close>\}{2,})|(?P<link>\[\[)|(?P<end>\]\])|(?P<bar>\|\|?)|(?P<comment><!--)"
    r"|(?P<tag></?(?P<name>[A-Za-z][A-Za-z0-9]{0,15})(?P<attributes>(?:\s[^<>]{0,2000})?)/?>)"
    r"|(?P<address>\[(?:(?:https?|ftps?|irc|git)://|//|mailto:)[^\s\[\]<>\"]*[ \t]*)|(?P<bracket>\])"
    r"|(?P<table>(?:(?<=\n)|\A)[:*# \t]*\{\|[^\n]*)|(?P<row>\n[ \t]*\|(?:-+[^\n]*|\}|\+))"
    r"|(?P<cell>\n[ \t]*[|!])|(?P<headers>!!)"
)

_FILES = frozenset(
    ("file", "image", "media", "datei", "bild", "fichier", "archivo", "imagen", "immagine", "ficheiro", "imagem",
     "plik", "grafika", "bestand", "afbeelding", "fil", "soubor", "файл", "изображение", "зображення", "文件",
     "图像", "檔案", "圖像", "ファイル", "画像", "파일", "그림", "dosya", "resim", "berkas", "tiedosto",
     "kuva", "ملف", "صورة", "پرونده", "קובץ", "αρχείο", "kép", "fájl", "fișier", "imagine", "tập_tin", "hình",
     "चित्र", "ไฟล์")
)  # fmt: skip
_CATEGORIES = frozenset(
    ("category", "kategorie", "catégorie", "categoría", "categoria", "kategoria", "categorie", "kategori",
     "категория", "категорія", "分类", "分類", "カテゴリ", "분류", "luokka", "تصنيف", "رده", "קטגוריה",
     "κατηγορία", "kategória", "thể_loại", "श्रेणी", "หมวดหมู่", "kategorija")
)  # fmt: skip
_LANGUAGE = re.compile(r"(?:[a-z]{2,3}|simple)(?:-[a-z]{2,12}){0,2}")
_NO_TEXT_TABLES = re.compile(
    r"infobox|navbox|metadata|ambox|mbox|vertical-navbox|noprint|toccolours|sistersitebox", re.IGNORECASE
)
_CELL_ATTRIBUTES = re.compile(r"\s*(?:(?:[A-Za-z][\w-]*\s*=\s*(?:\"[^\"\n]*\"|'[^'\n]*'|[^\s\"'|]+)|nowrap)(?:\s+|$))+")
_MOST_ATTRIBUTES, _MOST_PIECES = 2000, 4

_FIRST = frozenset(
    ("nowrap", "nobr", "small", "smaller", "big", "larger", "abbr", "tooltip", "sup", "sub", "math", "mvar",
     "unicode", "script", "nihongo", "quote", "cquote", "blockquote", "quotation", "bq", "centered", "center",
     "flag", "flagcountry", "ill", "interlanguage_link", "strong", "em", "bold", "italic", "var", "code", "tt",
     "kbd", "samp", "linktext", "sic", "no_wrap", "unbulleted_list", "hlist", "plainlist", "ubl", "notatypo",
     "main_other", "strikethrough", "title", "val")
)  # fmt: skip
_LAST = frozenset(
    ["lang", "transl", "transliteration", "zh", "wikt-lang", "color", "font_color", "colour", "text", "colored_text"]
)
_SIGNS = {
    "'": "'", "=": "=", "!": "|", "ndash": "–", "mdash": "—", "snd": " – ", "spaced_ndash": " – ", "spnd": " – ",
    "dash": " – ", "emdash": "—", "endash": "–", "nbsp": " ", "space": " ", "pi": "π", "dot": " · ", "·": " · ",
    "bullet": " • ", "•": " • ", "pound": "£", "euro": "€", "times": "×", "shy": "", "clear": "", "-": "", "(": "{",
    ")": "}", "hash": "#", "sharp": "♯", "flat": "♭", "okina": "ʻ", "increase": "▲", "decrease": "▼",
}  # fmt: skip
_PREFIXED = {
    "circa": "c. ", "c.": "c. ", "ca.": "c. ", "as_of": "As of ", "us$": "US$", "usd": "US$", "£": "£", "gbp": "£",
    "€": "€", "eur": "€", "inr": "₹", "uss": "USS ", "hms": "HMS ", "ss": "SS ", "rms": "RMS ", "floruit": "fl. ",
    "ad": "AD ",
}  # fmt: skip
_SUFFIXED = {"bc": " BC", "bce": " BCE", "ce": " CE"}

_REDIRECT = re.compile(
    r"\s*#(?:redirect|weiterleitung|перенаправление|перенаправлення|redirection|rinvia|redirección|redirecionamento|"
    r"doorverwijzing|patrz|重定向|転送|넘겨주기|đổi|alih|yönlendi̇r|تحويل)\s*:?\s*\[\[",
    re.IGNORECASE,
)
_HEADING = re.compile(r"[ \t]*(={1,6})(.+)\1[ \t]*")
_ITEM = re.compile(r"([*#:;]+)[ \t]*")
_QUOTES = re.compile("'{5,}|'{2,3}")
_ENTITIES = {ord(character): f"&#{ord(character)};" for character in "&'=*#:;_"}
_MAGIC_WORDS = re.compile("__[A-Z]{3,30}__")
_OPENING_REF = re.compile(r"<ref(?:\s(?:[^<>/]*|(?:[^<>/\"]|\"[^\"]*\")*))?>", re.IGNORECASE)
_EMPTY_BRACKETS = re.compile(r" ?[(（](?:\s|[,;:，；：]|&nbsp;)*[)）]")
_GAP_IN_BRACKET = re.compile(r"(?<=[(（])(?:\s|&nbsp;)*[,;](?:\s|[,;])*")
_SPACES = re.compile(r"(?<=\S)[ \t]{2,}(?=\S)")
_SPACE_BEFORE_STOP = re.compile(r"(?<=\w) +(?=[,.;](?:\s|$))")
_BLANK_LINES = re.compile(r"\n(?:[ \t]*\n){2,}")

_LOOKED_AT = 50_000
_LINKS = re.compile(r"\[\[[^\[\]|\n]{1,120}(?:\|[^\[\]\n]{0,200})?\]\]")
_SURE_SIGNS = re.compile(
    r"'''[^'\n]{1,120}'''|^==+[^=\n]{1,100}==+[ \t]*$|\{\{(?:[Ii]nfobox|[Cc]ite|[Mm]ain|[Rr]eflist|"
    r"[Dd]efaultsort|DEFAULTSORT)"
    r"|\[\[(?:Category|File|Image|Datei|Fichier|Файл|Категория|Kategorie|Catégorie|Categoria|Categoría|分类|文件):"
    r"|^\{\|[ \t]*class=",
    re.MULTILINE,
)


def wikitext_to_text(text: str, context: DocumentContext) -> str:
    """Return the plain text of MediaWiki markup: of documents of the format wikitext, and of others that are clearly
    written in it."""
    if context.format == WIKITEXT or (context.format == "text" and is_wikitext(text)):
        return plain_text(text)
    return text


def is_wikitext(text: str) -> bool:
    """Return whether a text has links of MediaWiki and, in the same text, other marks that only MediaWiki has."""
    start = text[:_LOOKED_AT]
    links = len(_LINKS.findall(start))
    signs = {match[0][:3].strip() for match in _SURE_SIGNS.finditer(start)}
    return links >= 2 and bool(signs) and (links + len(signs)) * 1500 >= len(start)


def plain_text(markup: str) -> str:
    """Return the text of a page; of one that only redirects to another there is none."""
    if _REDIRECT.match(markup):
        return ""
    return _finish(_Reader(markup).read())


@dataclass
class _Frame:
    """Something open: what it is, its opening mark, and its parts, each a list of pieces; a table's parts are cells."""

    kind: str
    opening: str = ""
    parts: list[list[str]] = field(default_factory=lambda: [[]])

    def texts(self) -> list[str]:
        return ["".join(part) for part in self.parts]


_ROW, _CAPTION = "\x00row", "\x00caption"


class _Reader:
    """One pass over the markup; the frame at the bottom of the stack is the page.

    `_on_NAME` handles the marks that the group NAME of `_TOKEN` matches.
    """

    def __init__(self, markup: str) -> None:
        self._markup = markup.replace("\x00", "").replace("\r\n", "\n")
        self._stack = [_Frame("page")]
        self._open: Counter[str] = Counter()
        self._ends: dict[str, int] = {}
        self._position = 0

    def read(self) -> str:
        markup = self._markup
        while (token := _TOKEN.search(markup, self._position)) is not None:
            self._write(markup[self._position : token.start()])
            self._position = token.end()
            getattr(self, f"_on_{'tag' if token['tag'] else token.lastgroup}")(token)
        self._write(markup[self._position :])
        self._flatten(1)
        return "".join(self._stack[0].parts[0])

    def _write(self, text: str) -> None:
        if text:
            self._stack[-1].parts[-1].append(text)

    def _push(self, kind: str, opening: str) -> None:
        if len(self._stack) < _MOST_OPEN:
            self._stack.append(_Frame(kind, opening))
            self._open[kind] += 1

    def _flatten(self, depth: int) -> None:
        """Make frames from `depth` on part of the text below them: they have no end."""
        frames = self._stack[depth:]
        del self._stack[depth:]
        for frame in frames:
            self._open[frame.kind] -= 1
            self._write(_of_table(frame) if frame.kind == "table" else "|".join(frame.texts()))

    def _pop(self, kind: str) -> _Frame | None:
        """Close the nearest frame of a kind; None where there is none."""
        if not self._open[kind]:
            return None
        depth = len(self._stack) - 1
        while self._stack[depth].kind != kind:
            depth -= 1
        self._flatten(depth + 1)
        self._open[kind] -= 1
        return self._stack.pop()

    def _on_open(self, token: re.Match[str]) -> None:
        for _ in range(min(_MOST_OPEN, (token.end() - token.start()) // 2)):
            self._push("template", "{{")

    def _on_close(self, token: re.Match[str]) -> None:
        for _ in range(min(_MOST_OPEN, (token.end() - token.start()) // 2)):
            frame = self._pop("template")
            if frame is None:
                return
            self._write(_of_template(frame.texts()))

    def _on_link(self, _token: re.Match[str]) -> None:
        self._push("link", "[[")

    def _on_end(self, token: re.Match[str]) -> None:
        if self._stack[-1].kind == "address":
            self._position = token.start() + 1
            self._on_bracket(token)
            return
        frame = self._pop("link")
        if frame is not None:
            self._write(_of_link(frame.texts()))

    def _on_address(self, token: re.Match[str]) -> None:
        self._push("address", token[0])

    def _on_bracket(self, token: re.Match[str]) -> None:
        if self._stack[-1].kind != "address":
            self._write(token[0])
            return
        frame = self._pop("address")
        assert frame is not None
        self._write("|".join(frame.texts()).strip())

    def _on_bar(self, token: re.Match[str]) -> None:
        frame = self._stack[-1]
        if frame.kind in ("template", "link"):
            frame.parts += [[] for _ in token[0]]
        elif frame.kind == "table" and len(token[0]) == 2:
            frame.parts.append([])
        elif frame.kind == "table" and _are_attributes(frame.parts[-1]):
            frame.parts[-1] = []
        else:
            self._write(token[0])

    def _on_headers(self, token: re.Match[str]) -> None:
        if self._stack[-1].kind == "table":
            self._stack[-1].parts.append([])
        else:
            self._write(token[0])

    def _on_table(self, token: re.Match[str]) -> None:
        self._push("table", token[0])

    def _on_row(self, token: re.Match[str]) -> None:
        mark = token[0].strip()
        if not self._open["table"] or self._open_above_table():
            # In a template or link the bar separates arguments.
            self._position = token.start() + 1
            self._write("\n")
            while self._markup.startswith((" ", "\t"), self._position):
                self._position += 1
            return
        if mark == "|}":
            frame = self._pop("table")
            assert frame is not None
            self._write(_of_table(frame))
            return
        frame = self._stack[-1]
        if mark != "|+" and frame.parts[-2:] == [[_ROW], []]:
            return
        frame.parts += [[_CAPTION if mark == "|+" else _ROW], []]

    def _on_cell(self, token: re.Match[str]) -> None:
        if not self._open["table"] or self._open_above_table():
            self._position = token.end() - 1
            self._write(token[0][:-1])
            if token[0][-1] == "!":
                self._position = token.end()
                self._write("!")
            return
        self._stack[-1].parts.append([])

    def _open_above_table(self) -> bool:
        """Return whether a template or link is open in the cell; a link or address ends with its line."""
        while self._stack[-1].kind in ("link", "address"):
            self._flatten(len(self._stack) - 1)
        return self._stack[-1].kind != "table"

    def _on_comment(self, token: re.Match[str]) -> None:
        end = self._end_of("-->", token.end())
        if end >= 0:
            self._position = end + 3

    def _on_tag(self, token: re.Match[str]) -> None:
        name = token["name"].lower()
        if name not in _KNOWN_TAGS:
            self._write(token[0])
            return
        is_opening = not token[0].startswith("</") and not token[0].endswith("/>")
        if is_opening and (name in _DROPPED or name in _KEPT_RAW or name in _FORMULAS):
            end = self._end_of(f"</{name}", token.end())
            after = self._markup.find(">", end) + 1 if end >= 0 else 0
            # Where another reference opens before the end of one, this one has no end of its own.
            if after and not (name == "ref" and _OPENING_REF.search(self._markup, token.end(), end)):
                self._position = after
                content = self._markup[token.end() : end]
                if name in _FORMULAS:
                    self._write(f"${content.strip()}$".replace("'", "′"))
                elif name in _KEPT_RAW:
                    self._write(_protected(content))
                return
        self._write("\n" if name in _BREAKS else " " if name in ("td", "th") else "")

    def _end_of(self, mark: str, position: int) -> int:
        """Return where a closing mark is next, -1 for nowhere; each is searched once."""
        known = self._ends.get(mark, 0)
        if known < position and known >= 0:
            known = self._markup.find(mark, position)
            if known < 0 and mark.islower():
                found = re.compile(re.escape(mark), re.IGNORECASE).search(self._markup, position)
                known = found.start() if found else -1
            self._ends[mark] = known
        return known


def _protected(content: str) -> str:
    """Return text in which nothing is markup any more: marks are written as entities, which are decoded at the end."""
    return html.unescape(content).translate(_ENTITIES)


def _are_attributes(pieces: list[str]) -> bool:
    """Return whether the beginning of a cell is no text but says how it looks."""
    if len(pieces) > _MOST_PIECES or sum(map(len, pieces)) > _MOST_ATTRIBUTES:
        return False
    return _CELL_ATTRIBUTES.fullmatch("".join(pieces)) is not None


def _of_link(parts: list[str]) -> str:
    target = parts[0].strip()
    prefix = target.partition(":")[0].strip().lower().replace(" ", "_") if ":" in target else ""
    if prefix in _FILES or prefix in _CATEGORIES:
        return ""
    if len(parts) == 1:
        if _LANGUAGE.fullmatch(prefix):
            return ""
        return target.lstrip(":")
    shown = "|".join(parts[1:])
    if shown.strip():
        return shown
    return re.sub(r"^:?[^:]{1,20}:|(?<!\s)\s*\([^()]*\)$|,.*$", "", target)  # [[Help:Foo (bar)|]] shows Foo.


def _of_template(parts: list[str]) -> str:
    name = parts[0].strip().lower().replace(" ", "_")
    if name in _SIGNS:
        return _SIGNS[name]
    named = {key.strip(): value.strip() for key, equals, value in (part.partition("=") for part in parts[1:]) if equals}
    values = [part.strip() for part in parts[1:] if "=" not in part]
    shown = values or [named[key] for key in ("1", "text", "quote") if key in named]
    if not shown:
        return ""
    if name in _FIRST or name.startswith("lang-"):
        return shown[0]
    if name in _LAST:
        return shown[-1]
    if name in ("convert", "cvt"):
        is_range = len(shown) > 3 and shown[1] in "-–x"
        return f"{shown[0]}{shown[1]}{shown[2]} {shown[3]}" if is_range else " ".join(shown[:2])
    if name in ("frac", "fraction", "sfrac"):
        return "/".join(shown[-2:]) if len(shown) < 3 else f"{shown[0]} {shown[1]}/{shown[2]}"
    if name in _PREFIXED:
        return _PREFIXED[name] + shown[0]
    if name in _SUFFIXED:
        return shown[0] + _SUFFIXED[name]
    return " ".join(shown[:2]) if name == "ship" else ""


def _of_table(frame: _Frame) -> str:
    """Return a line for each row, with ` | ` between its cells."""
    if _NO_TEXT_TABLES.search(frame.opening):
        return ""
    rows: list[list[str]] = [[]]
    is_caption = False
    for cell in frame.texts():
        if cell in (_ROW, _CAPTION):
            rows.append([])
        else:
            rows[-1].append(" ".join(cell.split()))
            if is_caption:
                rows.append([""])
        is_caption = cell == _CAPTION
    # What is before the first cell of a row is no cell; a row of empty cells is for looks.
    lines = [" | ".join(row[1:] if not row[0] else row) for row in rows if any(row)]
    return "\n" + "\n".join(line.rstrip(" |") for line in lines) + "\n"


def _finish(text: str) -> str:
    """Return the text line by line, without marks of headings, lists and type faces, and without empty sections."""
    text = _QUOTES.sub("", _MAGIC_WORDS.sub("", text))
    text = _GAP_IN_BRACKET.sub("", _EMPTY_BRACKETS.sub("", text))
    lines: list[str] = []
    waiting: list[tuple[int, str]] = []
    numbers: dict[str, int] = {}
    for line in text.split("\n"):
        heading = _HEADING.fullmatch(line) if "=" in line else None
        if heading is not None:
            level = len(heading[1])
            while waiting and waiting[-1][0] >= level:
                waiting.pop()
            waiting.append((level, heading[2].strip()))
            continue
        item = _ITEM.match(line)
        if item is not None:
            line = _of_item(item[1], line[item.end() :], numbers)
        elif line and numbers:
            numbers.clear()
        if waiting and line.strip():
            for _, title in waiting:
                lines += ["", title, ""]
            waiting.clear()
        lines.append(line.rstrip())
    joined = _SPACE_BEFORE_STOP.sub("", _SPACES.sub(" ", "\n".join(lines)))
    return html.unescape(_BLANK_LINES.sub("\n\n", joined)).strip()


def _of_item(marks: str, text: str, numbers: dict[str, int]) -> str:
    """Return a list item: `- ` or its number, indented by its depth."""
    text = text.lstrip(" \t,;:–—")
    if not text.strip():
        return ""
    indent = "  " * (len(marks) - 1)
    if marks[-1] == "*":
        return f"{indent}- {text}"
    if marks[-1] == "#":
        for deeper in [known for known in numbers if len(known) > len(marks)]:
            del numbers[deeper]
        numbers[marks] = numbers.get(marks, 0) + 1
        return f"{indent}{numbers[marks]}. {text}"
    if marks[-1] == ";":
        term, colon, meaning = text.partition(" : ")
        return f"{term}: {meaning}" if colon else text
    return text
