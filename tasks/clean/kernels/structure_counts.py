"""Names of what `structure.scan_structure` counts: line kinds, columns of its counts, bounds of lines."""

BLANK, LABEL, TEXT, DIALOGUE, LIST, HEADING, TABLE, CODE, RULE = range(9)
"""Line kinds. LABEL is a line of tags, a directive or a field; RULE has neither letters nor digits, or is front
matter."""

LINE_KINDS = 9

HASHED_LINES = (LABEL, TEXT, DIALOGUE)
"""Lines that leave a hash."""

LINES = 0
"""Lines of a kind: `LINES + TEXT` and so on; those after BLANK are not blank."""

CHARACTERS = LINE_KINDS
"""Characters in lines of a kind: `CHARACTERS + TEXT` and so on."""

_REST = 2 * LINE_KINDS

LETTERS = _REST
"""Letters outside addresses and tags, ideographs among them."""

IDEOGRAPHS = _REST + 1
"""Chinese and Japanese characters."""

WORDS = _REST + 2
"""Runs of other letters, outside code and front matter."""

DIGITS = _REST + 3

TEXT_LETTERS = _REST + 4
"""LETTERS outside code and tables."""

LINK_CHARACTERS = _REST + 5
"""Characters of addresses, and of the text in brackets before them."""

TAG_CHARACTERS = _REST + 6
"""Characters of tags in angle brackets."""

RUN_CHARACTERS = _REST + 7
"""Characters in unbroken runs of LONG_RUN and more characters of ASCII outside addresses: data and minified code."""

SENTENCES = _REST + 8
"""Runs of at least SENTENCE_WORDS words that end with a full stop, a question mark or an exclamation mark."""

SENTENCE_CHARACTERS = _REST + 9

FINISHED_LINES = _REST + 10
"""Lines of text that end with any punctuation."""

SHORT_LINES = _REST + 11
"""Lines of text of at most SHORT_LINE columns; an ideograph takes two."""

CAPITAL_LINES = _REST + 12
"""Lines of text that begin with a capital letter or an ideograph."""

MATH_SIGNS = _REST + 13
"""Commands with a backslash, dollar signs around formulas, and mathematical operators beyond ASCII, outside code."""

WIKI_SIGNS = _REST + 14
"""`[[`, `{{` and `'''` of MediaWiki, outside code."""

CHAT_LINES = _REST + 15
"""Lines that begin with a time or a name in angle brackets, as logs of conversations do."""

SPEAKER_LINES = _REST + 16
"""Lines that begin with a short name and a colon, and go on."""

QUESTION_LINES = _REST + 17
"""Lines outside code that end with a question mark."""

ASKING_LINES = _REST + 18
"""Lines that begin with `Q:`, `A:` or words for question and answer."""

CHAT_SIGNS = _REST + 19
"""Signs of talk: emoji, `@name` and `#name`, exclamation and question marks, contractions such as `don't`."""

PARAGRAPHS = _REST + 20

CODE_SIGNS = _REST + 21
"""Lines outside fences that begin or end as statements of programming languages do."""

MARKUP_START = _REST + 22
"""1 where the text begins with a tag, a template or a redirect."""

FIRST_QUESTION = _REST + 23
"""1 where the first line is a question."""

ASKING_TITLES = _REST + 24
"""Titles such as `FAQ`, on the first line or in headings."""

PLACEHOLDERS = _REST + 25
"""Signs of what was lost: `<unk>`, the replacement character, empty boxes."""

CONTENT_CHARACTERS = _REST + 26
"""Characters in sentences, and in lines of text and lists that are longer than CONTENT_LINE without links and tags; not
below headings such as `References`."""

CHECKBOXES = _REST + 27
"""List items that begin with `[ ]` or `[x]`."""

EMPTY_HEADINGS = _REST + 28
"""Headings with marks (`#`, `=`) that have nothing between them and the next heading or the end."""

HANDLES = _REST + 29
"""Words that begin with `@` or `#`."""

OPEN_END = _REST + 30
"""1 where the last line ends with a question mark or a colon."""

CODE_BLOCKS = _REST + 31
"""Fenced blocks, and runs of lines of code elsewhere."""

SHORT_WORDS = _REST + 32
"""Words of at most three letters, mostly articles, prepositions and pronouns, in short lines of text that do not begin
with a capital; words of scripts without capitals do not count."""

COUNTS = _REST + 33

LONG_RUN = 60
SHORT_LINE = 60

CONTENT_LINE = 45
"""Columns above which a line is no title."""

SENTENCE_WORDS = 4

MIN_WRAPPED = 40
"""Columns from which a line may be one of a paragraph that is wrapped, so that its sentence goes on in the next."""
