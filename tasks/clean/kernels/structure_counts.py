"""Names of what `structure.scan_structure` counts: line kinds, columns of its counts, bounds of lines."""

LINE_KINDS = 9

BLANK, LABEL, TEXT, DIALOGUE, LIST, HEADING, TABLE, CODE, RULE = range(LINE_KINDS)
"""Line kinds. LABEL is a line of tags, a directive or a field; RULE has neither letters nor digits, or is front
matter."""

HASHED_LINES = (LABEL, TEXT, DIALOGUE)
"""Lines that leave a hash."""

LINES = 0
"""Lines of a kind: `LINES + TEXT` and so on; those after BLANK are not blank."""

CHARACTERS = LINE_KINDS
"""Characters in lines of a kind: `CHARACTERS + TEXT` and so on."""

(
    LETTERS,  # outside addresses and tags, ideographs among them
    IDEOGRAPHS,  # Chinese and Japanese characters
    WORDS,  # runs of other letters, outside code and front matter
    DIGITS,
    TEXT_LETTERS,  # LETTERS outside code and tables
    LINK_CHARACTERS,  # of addresses, and of the text in brackets before them
    TAG_CHARACTERS,  # of tags in angle brackets
    RUN_CHARACTERS,  # in unbroken runs of LONG_RUN and more of ASCII, outside addresses: data and minified code
    SENTENCES,  # of at least SENTENCE_WORDS words, up to a full stop, a question mark or an exclamation mark
    SENTENCE_CHARACTERS,
    FINISHED_LINES,  # lines of text that end with any punctuation
    SHORT_LINES,  # lines of text of at most SHORT_LINE columns; an ideograph takes two
    CAPITAL_LINES,  # lines of text that begin with a capital letter or an ideograph
    MATH_SIGNS,  # commands with a backslash, dollar signs around formulas, operators beyond ASCII, outside code
    WIKI_SIGNS,  # `[[` and `{{` of MediaWiki, outside code
    CHAT_LINES,  # lines that begin with a time or a name in angle brackets, as logs of conversations do
    SPEAKER_TAG_BYTES,  # of names in angle brackets in such lines, which TAG_CHARACTERS has too
    SPEAKER_LINES,  # lines that begin with a short name and a colon, and go on
    QUESTION_LINES,  # lines outside code that end with a question mark
    ASKING_LINES,  # lines that begin with `Q:`, `A:` or words for question and answer
    CHAT_SIGNS,  # emoji, `@name` and `#name`, exclamation and question marks, contractions such as `don't`
    PARAGRAPHS,
    CODE_SIGNS,  # lines outside fences that begin or end as statements of programming languages do
    MARKUP_START,  # 1 where the text begins with a tag, a template or a redirect
    FIRST_QUESTION,  # 1 where the first line is a question
    ASKING_TITLES,  # titles such as `FAQ`, on the first line or in headings
    PLACEHOLDERS,  # signs of what was lost: `<unk>`, the replacement character, empty boxes
    CONTENT_CHARACTERS,  # in sentences and lines above CONTENT_LINE, without links and tags; not below `References`
    CHECKBOXES,  # list items that begin with `[ ]` or `[x]`
    EMPTY_HEADINGS,  # headings with marks (`#`, `=`) that have nothing up to the next heading or the end
    HANDLES,  # words that begin with `@` or `#`
    OPEN_END,  # 1 where the last line ends with a question mark or a colon
    CODE_BLOCKS,  # fenced blocks, and runs of lines of code elsewhere
    SHORT_WORDS,  # of at most three letters (articles, pronouns), in short lines of text that begin in lower case
    COUNTS,
) = range(2 * LINE_KINDS, 2 * LINE_KINDS + 35)

LONG_RUN = 60
SHORT_LINE = 60

CONTENT_LINE = 45
"""Columns above which a line is no title."""

SENTENCE_WORDS = 4

MIN_WRAPPED = 40
"""Columns from which a line may be one of a paragraph that is wrapped, so that its sentence goes on in the next."""
