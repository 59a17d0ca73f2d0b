"""What the bytes at the beginning and the end of a line, or at a position, are signs of: list items, addresses, tags.

Kernels of `structure.scan_structure`.
"""

import numpy as np

from model.kernels import kernel
from tasks.common.utf8 import byte_set, has_bytes

MAX_TAG_BYTES = 300
MAX_SPEAKER_BYTES = 24
MAX_ENTITY_BYTES = 64
MAX_FRONT_BYTES = 4096

SPACE, LETTER, CAPITAL, DIGIT, POINT, SIGN, TAIL, LEAD = range(8)
_ASKING_WORDS = (
    "q:", "q.", "q)", "q1", "q2", "a1", "a2", "a:", "question", "answer", "вопрос", "ответ", "domanda", "risposta",
    "问", "答", "問",
)  # fmt: skip


def _byte_classes() -> np.ndarray:
    """Return the class of each byte (uint8)."""
    classes = np.full(256, SIGN, np.uint8)
    classes[[9, 10, 11, 12, 13, 32]] = SPACE
    classes[ord("a") : ord("z") + 1] = LETTER
    classes[ord("A") : ord("Z") + 1] = CAPITAL
    classes[ord("0") : ord("9") + 1] = DIGIT
    classes[[ord(point) for point in ".,:;!?'\"()-"]] = POINT
    classes[0x80:0xC0] = TAIL
    classes[0xC0:] = LEAD
    return classes


CLASSES = _byte_classes()
BRACES = byte_set("{}()[]")

OPEN_ENDS = byte_set("(),:[\\")
"""With which a line of code ends that opens or closes a bracket, or goes on in the next."""

_ENDS_OF_ADDRESSES = byte_set('")<>]`|')
_TITLES = (
    "faq", "frequently asked", "questions and answers", "section quiz", "quiz", "domande", "常见问题", "常見問題",
    "问题与", "часто задаваем", "вопросы и",
)  # fmt: skip
_REFERENCES = (
    "references", "see also", "external links", "further reading", "bibliography", "works cited", "bibliografia",
    "collegamenti esterni", "voci correlate", "примечания", "литература", "ссылки", "см. также", "参考文献", "参考资料",
    "外部链接", "参见", "notes =", "footnotes =", "contributors", "acknowledg",
)  # fmt: skip
_STATEMENT_WORDS = (
    "def ", "class ", "import ", "from ", "return ", "if (", "for (", "while (", "} ", "pub ", "fn ", "let ", "const ",
    "var ", "function ", "use ", "#include", "#define", "$ ", "// ", "/// ", "/*", "* @", "<?php", "async ", "impl ",
    "struct ", "public ", "private ", "SELECT ", "INSERT ", "CREATE ", "echo ", "else", "try:", "export ", "#!",
)  # fmt: skip


def _joined(words: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return the bytes of all words in a row, and the bounds of the words in them."""
    return (
        np.frombuffer("".join(words).encode(), np.uint8).copy(),
        np.cumsum([0, *(len(word.encode()) for word in words)]),
    )


_STATEMENTS, _STATEMENT_BOUNDS = _joined(_STATEMENT_WORDS)
REFERENCES, REFERENCE_BOUNDS = _joined(_REFERENCES)
ASKING, ASKING_BOUNDS = _joined(_ASKING_WORDS)
TITLES, TITLE_BOUNDS = _joined(_TITLES)


@kernel
def starts(data, position, end, first, second, third):
    return (
        position + 2 < end and data[position] == first and data[position + 1] == second and data[position + 2] == third
    )


@kernel
def is_address(data, position, end):
    """Return whether `http://` or `https://` begins at a position."""
    if (
        position + 8 > end
        or data[position + 1] != ord("t")
        or data[position + 2] != ord("t")
        or data[position + 3] != ord("p")
    ):
        return False
    colon = position + 4 + (data[position + 4] == ord("s"))
    return data[colon] == ord(":") and data[colon + 1] == ord("/") and data[colon + 2] == ord("/")


@kernel
def end_of_address(data, position, end):
    while position < end and ord(" ") < data[position] < 0x80:
        if _ENDS_OF_ADDRESSES[data[position]]:
            break
        position += 1
    return position


@kernel
def end_of_target(data, position, end):
    """Return where the target in parentheses ends that follows `]`, on the same line; the position where none does."""
    begin = position
    while position < end and data[position] != ord("\n"):
        if data[position] == ord(")"):
            return position + 1
        position += 1
    return begin


@kernel
def end_of_tag(data, position, end):
    """Return where a tag ends that begins with `<`, on the same line; the position where none does. An address in
    angle brackets is no tag."""
    begin = position
    if position + 2 >= end:
        return begin
    following = data[position + 1]
    if (
        CLASSES[following] != LETTER
        and CLASSES[following] != CAPITAL
        and following != ord("/")
        and following != ord("!")
    ):
        return begin
    if following == ord("h") and is_address(data, position + 1, end):
        return begin
    end = min(end, position + MAX_TAG_BYTES)
    position += 1
    while position < end and data[position] != ord("\n") and data[position] != ord("<"):
        if data[position] == ord(">"):
            return position + 1
        position += 1
    return begin


@kernel
def end_of_template(data, position, end):
    """Return where a template tag ends that begins with `{%`, on the same line; the position where none does."""
    begin = position
    while position + 1 < end and data[position] != ord("\n"):
        if data[position] == ord("%") and data[position + 1] == ord("}"):
            return position + 2
        position += 1
    return begin


@kernel
def end_of_front_matter(data, begin, end):
    """Return where front matter ends that begins with a line `---`; the beginning where there is none."""
    if not _is_dashed(data, begin, end):
        return begin
    for position in range(begin + 4, min(end, begin + MAX_FRONT_BYTES)):
        if data[position - 1] == ord("\n") and _is_dashed(data, position, end):
            return position + 3
    return begin


@kernel
def _is_dashed(data, position, end):
    return starts(data, position, end, ord("-"), ord("-"), ord("-")) and (
        position + 3 == end or data[position + 3] <= ord(" ")
    )


@kernel
def ends_heading_mark(data, position, end, mark):
    """Return whether one to six marks and a space begin at a position."""
    begin = position
    while position < end and data[position] == mark:
        position += 1
    return position - begin <= 6 and position < end and data[position] == ord(" ")


@kernel
def is_dialogue(data, position, end):
    """Return whether a line begins with an en dash, an em dash or two hyphens."""
    if position + 3 >= end:
        return False
    if data[position] == ord("-"):
        return data[position + 1] == ord("-") and (data[position + 2] == ord(" ") or data[position + 2] >= 0x80)
    return data[position] == 0xE2 and data[position + 1] == 0x80 and 0x93 <= data[position + 2] <= 0x95


@kernel
def is_item(data, position, end):
    """Return whether a bullet or a number, and a space, begin at a position."""
    if position + 2 >= end:
        return False
    byte = data[position]
    if byte == ord("-") or byte == ord("*") or byte == ord("+"):
        return data[position + 1] == ord(" ")
    if byte == 0xE2:
        return data[position + 1] == 0x80 and (data[position + 2] == 0xA2 or data[position + 2] == 0xA3)
    if byte == ord("#"):
        return data[position + 1] == ord(".") and data[position + 2] == ord(" ")
    begin = position
    while position < end and CLASSES[data[position]] == DIGIT:
        position += 1
    if position == begin or position - begin > 3 or position + 1 >= end:
        return False
    return (data[position] == ord(".") or data[position] == ord(")")) and data[position + 1] == ord(" ")


@kernel
def ends_statement(last, last_byte, signs):
    return last == last_byte and (last == ord("{") or last == ord("}") or (last == ord(";") and signs > 0))


@kernel
def begins_statement(data, position, end):
    """Return whether a line begins as statements and comments of programming languages do."""
    for word in range(len(_STATEMENT_BOUNDS) - 1):
        begin, size = _STATEMENT_BOUNDS[word], _STATEMENT_BOUNDS[word + 1] - _STATEMENT_BOUNDS[word]
        if has_bytes(data, position, end, _STATEMENTS, begin, size):
            return True
    return False


@kernel
def is_checkbox(data, position, end):
    """Return whether a list item begins with `[ ]` or `[x]` and a space; `[s]ave` is a word with its shortcut."""
    while position < end and data[position] != ord("[") and _is_item_mark(data[position]):
        position += 1
    if position + 2 >= end or data[position] != ord("[") or data[position + 2] != ord("]"):
        return False
    return position + 3 == end or data[position + 3] == ord(" ")


@kernel
def _is_item_mark(byte):
    return byte == ord(" ") or byte == ord("*") or byte == ord("+") or byte == ord("-")


@kernel
def is_contraction(data, position, end):
    """Return whether an apostrophe and one of `t`, `m`, `re`, `ve`, `ll` are at a position."""
    if position + 2 >= end:
        return False
    byte, after = data[position + 1], data[position + 2]
    if byte == ord("t") or byte == ord("m"):
        return after <= ord(" ") or CLASSES[after] == POINT
    return (byte == ord("l") and after == ord("l")) or ((byte == ord("r") or byte == ord("v")) and after == ord("e"))


@kernel
def opens_literal(data, position, line_end):
    """Return whether a line opens a literal block of reStructuredText: ends with `::` and is no note or the like."""
    if line_end - position < 2 or data[line_end - 2] != ord(":"):
        return False
    if not starts(data, position, line_end, ord("."), ord("."), ord(" ")):
        return True
    return position + 3 < line_end and (data[position + 3] == ord("c") or data[position + 3] == ord("p"))


@kernel
def ends_with_wide_question(data, first, end):
    return end - first >= 3 and data[end - 3] == 0xEF and data[end - 2] == 0xBC and data[end - 1] == 0x9F


@kernel
def is_numbered_title(data, position, end):
    """Return whether a line begins with the number of a section, such as `6.1` or `6.1.2.`, and a space."""
    begin = position
    dots = 0
    while position < end and (CLASSES[data[position]] == DIGIT or data[position] == ord(".")):
        dots += data[position] == ord(".")
        position += 1
    return (
        dots > 0 and position - begin >= 3 and position < end and (data[position] == ord(" ") or data[position] == 0xC2)
    )


@kernel
def ends_with_punctuation(data, first, end):
    """Return whether a line ends with punctuation of any script."""
    if CLASSES[data[end - 1]] == POINT:
        return True
    if data[end - 1] < 0x80 or end - first < 3:
        return False
    lead, second = data[end - 3], data[end - 2]
    return (lead == 0xE2 and second == 0x80) or (lead == 0xE3 and second == 0x80) or (lead == 0xEF and second >= 0xBC)


@kernel
def is_capital(data, position):
    byte = data[position]
    if byte < 0x80:
        return CLASSES[byte] == CAPITAL
    if byte == 0xD0:
        return data[position + 1] < 0xB0
    return (byte == 0xC3 and data[position + 1] < 0xA0) or 0xE3 < byte < 0xEA


@kernel
def short_words(data, position, end):
    """Return the number of words of one to three letters in scripts that have capitals."""
    found = letters = 0
    while position < end:
        byte = data[position]
        if LETTER <= CLASSES[byte] <= CAPITAL or byte == ord("'") or 0xC3 <= byte <= 0xD1:
            letters += 1
        elif CLASSES[byte] != TAIL:
            found += 0 < letters <= 3
            letters = 0
        position += 1
    return found + (0 < letters <= 3)


@kernel
def is_chat(data, position, end):
    """Return whether a line begins with a time, as `12:34` or `[12:34]`, or a name in angle brackets."""
    if data[position] == ord("<"):
        name = position + 1
        while name < end and name < position + MAX_SPEAKER_BYTES and ord(" ") < data[name] != ord(">"):
            name += 1
        return name + 2 < end and name > position + 1 and data[name] == ord(">") and data[name + 1] == ord(" ")
    position += data[position] == ord("[")
    digits = 0
    while position < end and CLASSES[data[position]] == DIGIT:
        position += 1
        digits += 1
    return (
        1 <= digits <= 2 and position + 2 < end and data[position] == ord(":") and CLASSES[data[position + 1]] == DIGIT
    )


@kernel
def speaker_tag(data, position, end):
    """Return the bytes of the name in angle brackets that begins a line of a log, or follows its time; 0 where there is
    none. A name has at least three letters: shorter ones are elements of HTML that nothing closes."""
    latest = min(end, position + MAX_SPEAKER_BYTES)
    while position < latest and data[position] != ord("<"):
        position += 1
    stop = end_of_tag(data, position, end) if position < latest else position
    if stop - position < 5 or stop == end or data[stop] != ord(" "):
        return 0
    for place in range(position, stop):
        if data[place] <= ord(" ") or data[place] == ord("/"):
            return 0
    return stop - position


@kernel
def is_speaker(data, position, end):
    """Return whether a line begins with a name of at most three words and a colon, and goes on."""
    begin = position
    words = 1
    while position < end and position - begin <= MAX_SPEAKER_BYTES:
        byte = data[position]
        if byte == ord(":"):
            return position > begin + 1 and position + 4 < end and data[position + 1] == ord(" ") and words <= 3
        if byte == 0xEF and position + 6 < end and data[position + 1] == 0xBC and data[position + 2] == 0x9A:
            return position > begin + 1
        words += byte == ord(" ")
        if byte == ord(".") or byte == ord(","):
            return False
        position += 1
    return False


@kernel
def end_of_entity(data, position, end):
    """Return where an entity ends that begins with `&`; the position where none does."""
    begin = position
    position += 1
    while position < end and position < begin + MAX_ENTITY_BYTES:
        byte = data[position]
        if byte == ord(";"):
            return position + 1 if position > begin + 1 else begin
        if byte <= ord(" ") or byte >= 0x80 or byte == ord("&"):
            break
        position += 1
    return begin


@kernel
def begins_with_word(data, position, end, words, bounds):
    """Return whether a line begins with one of the words (lower case) in any case, after marks of headings and lists
    and a number with a point."""
    while position < end and (
        data[position] == ord("#")
        or data[position] == ord("*")
        or data[position] == ord("=")
        or data[position] == ord(" ")
    ):
        position += 1
    first = position
    while position < end and CLASSES[data[position]] == DIGIT:
        position += 1
    is_number = (
        first < position and position + 1 < end and data[position] == ord(".") and data[position + 1] == ord(" ")
    )
    position = position + 2 if is_number else first
    for word in range(len(bounds) - 1):
        size = bounds[word + 1] - bounds[word]
        if position + size > end:
            continue
        offset = 0
        while offset < size:
            byte, wanted = data[position + offset], words[bounds[word] + offset]
            if byte != wanted and not (ord("a") <= wanted <= ord("z") and byte | 32 == wanted):
                break
            offset += 1
        if offset == size:
            return True
    return False


@kernel
def starts_with_markup(data, begin, end):
    while begin < end and data[begin] <= ord(" "):
        begin += 1
    if begin + 2 >= end:
        return 0
    if data[begin] == ord("<"):
        return int(end_of_tag(data, begin, end) > begin)
    return int(
        (data[begin] == ord("{") and data[begin + 1] == ord("{"))
        or (data[begin] == ord("#") and data[begin + 1] == ord("R"))
    )
