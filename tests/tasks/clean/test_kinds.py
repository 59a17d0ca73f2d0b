"""Kinds are recognised from structure, a source may set its own, and the rules of a kind spare what belongs to it."""

import json

import blake3
import numpy as np
import pyarrow as pa
import pytest

from tasks.artifacts.tables.schema import DOCUMENTS
from tasks.clean.batch import BatchContext, Texts
from tasks.clean.config import CleanConfig
from tasks.clean.document import KINDS, DocumentContext
from tasks.clean.kernels import structure_counts as st
from tasks.clean.kernels.measurements import Measurements
from tasks.clean.kinds import recognise_kinds
from tasks.clean.pipeline import clean_part
from tasks.clean.presets import PRESETS
from tasks.clean.rules import RULES
from tasks.clean.structure import Structure

PROSE = (
    "The old mill lay beside the river, and each spring the children of the village ran to see how its great wheel"
    " began to turn again.\n\nNobody could say who had built it. Some believed that a monk had drawn the plans; others"
    " held that the stones were older than the church."
)
RUSSIAN_DIALOGUE = (
    "Он вошёл и остановился у двери, не зная, что сказать.\n\n— Вы давно приехали? — спросила она наконец.\n\n"
    "— Вчера вечером, — ответил он, снимая перчатки.\n\n— И ничего не написали.\n\n— Не успел.\n"
)
CHINESE_POEM = "靜夜思 李白\n床前明月光，疑是地上霜。\n舉頭望明月，低頭思故鄉。\n"
CHINESE_SONG = "长相思 张先\n粉艳明。\n秋水盈。\n柳样纤柔花样轻。\n笑前双靥生。\n"
SONG = "Over hill, over dale,\nThorough bush, thorough brier,\nOver park, over pale,\nThorough flood, thorough fire.\n"
FREE_VERSE = "so much depends\nupon\n\na red wheel\nbarrow\n\nglazed with rain\nwater\n\nbeside the white\nchickens\n"
HAIKU = "the light of a candle\nis transferred to another candle\nspring twilight\n"
TITLES = "Read about the river\nPhotos of the old mill\nNews from the town\nA list of all places\n"
PYTHON = (
    "import json\n\n\ndef read(path):\n    with open(path) as stream:\n        return json.load(stream)\n\n\n"
    "class Reader:\n    def __init__(self, path):\n        self.path = path\n        self.lines = read(path)\n"
)
MANUAL = (
    "# Installing\n\nRun the installer with the name of the folder that you want to use.\n\n"
    "```\nmake\nmake\nmake\nmake install\n```\n\n- `--quiet` hides all messages.\n- `--force` replaces files.\n"
)
TABLE = "| city | people | river |\n|---|---|---|\n" + "".join(
    f"| City {n} | {n} thousand people | the river of {n} |\n" for n in range(1, 9)
)
COMMANDS = (
    "# git\n\n> Manage files.\n> More information: <https://git.example.org/documentation/of/the/command>.\n\n"
    "- Show the version:\n\n`git --version`\n\n- Show help:\n\n`git --help`\n"
)
INSTRUCTIONS = f"# Tools\n\n{PROSE}\n\n- saw\n- plane\n- rasp\n- file\n\n`make`\n"
"""A third of its lines are a list, but only one of twelve is code: no list of commands."""
QUESTIONS = (
    "Frequently asked questions\n\nWho may use the library?\n\nEverybody who lives in the town may borrow books.\n\n"
    "How long may I keep a book?\n\nYou may keep it for four weeks, and longer if nobody else asks for it.\n"
)
FORMULAS = (
    "Let $f$ be continuous on $[a, b]$. Then \\begin{equation} \\int_a^b f(x) dx = F(b) - F(a) \\end{equation} holds"
    " for every $F$ with $F' = f$, as \\frac{d}{dx} F(x) shows for all $x$.\n"
)
LOG = "12:01 anna: is the build broken?\n12:02 ben: yes, since noon\n12:03 anna: who looks at it?\n"
NAMED_LOG = "<anna> hi\n<ben> ok\n<anna> is the build broken?\n"
WIKITEXT = (
    "{{Infobox river|name=Po}}\n'''Po''' is the longest [[river]] in [[Italy]].\n\n== Course ==\n"
    "It rises on the [[Monviso]] and flows into the [[Adriatic Sea]].\n"
)


def structure_of(*texts: str) -> Structure:
    return Structure(Texts.of(texts)).scan(np.ones(len(texts), np.bool_))


def kind_of(text: str, format: str = "text") -> str:
    return KINDS[recognise_kinds(structure_of(text), [format])[0]]


def documents(*rows: tuple[str, str, str]) -> pa.Table:
    """Return rows of (source, format, text)."""
    return pa.Table.from_pylist(
        [
            {
                "doc_id": number.to_bytes(16, "big"),
                "piece": 0,
                "source": source,
                "lang": None,
                "text": text,
                "text_digest": blake3.blake3(text.encode()).digest(length=16),
                "origin": {"path": "a", "record": number, "byte": 0},
                "meta": json.dumps({"format": format}),
            }
            for number, (source, format, text) in enumerate(rows)
        ],
        schema=DOCUMENTS,
    )


@pytest.mark.parametrize(
    ("kind", "text", "format"),
    [
        ("prose", PROSE, "text"),
        ("prose", RUSSIAN_DIALOGUE, "text"),
        ("prose", "She called it &quot;a fine day&quot; and walked on.", "text"),
        ("documentation", MANUAL, "markdown"),
        ("code", PYTHON, "text"),
        ("code", PROSE, "code"),
        ("chat", "omg i can't even, who does that?", "text"),
        ("chat", LOG, "text"),
        ("chat", NAMED_LOG, "text"),
        ("chat", NAMED_LOG.replace("<", "[12:01] <"), "text"),
        ("markup", NAMED_LOG.replace("hi", "<em>hi</em>"), "text"),
        ("markup", NAMED_LOG.replace("anna", "li").replace("ben", "li"), "text"),
        ("markup", NAMED_LOG.replace("\n", "</msg>\n"), "text"),
        ("markup", NAMED_LOG.replace("anna>", 'a href="b">'), "text"),
        ("question_answer", QUESTIONS, "text"),
        ("verse", SONG, "text"),
        ("verse", CHINESE_POEM, "text"),
        ("verse", CHINESE_SONG, "text"),
        ("verse", FREE_VERSE, "text"),
        ("verse", HAIKU, "text"),
        ("documentation", TITLES, "text"),
        ("documentation", "a saw\n\nthe plane\n\nan old rasp\n\nthe file\n", "text"),
        ("documentation", "git\nvim\nsed\nawk\nmake\nbison\n", "text"),
        ("documentation", "matrix inverse\nvector product\nprime number\nrandom walk\n", "text"),
        ("documentation", INSTRUCTIONS, "markdown"),
        ("documentation", "首页。\n关于\n联系\n帮助\n地图\n", "text"),
        ("table", TABLE, "markdown"),
        ("table", COMMANDS, "markdown"),
        ("maths", FORMULAS, "text"),
        ("web_page", PROSE, "html"),
        ("markup", WIKITEXT, "text"),
    ],
)
def test_kinds_are_recognised_from_structure(kind: str, text: str, format: str):
    assert kind_of(text, format) == kind


def test_verse_of_short_lines_is_kept():
    result = clean_part(CleanConfig(), documents(("p", "text", FREE_VERSE), ("p", "text", HAIKU)), 0)
    assert result.tables["documents"].column("text").to_pylist() == [FREE_VERSE, HAIKU]


def test_short_words_are_counted_by_their_letters():
    """Two- and three-letter words of Latin and Cyrillic; an apostrophe is within its word, a Chinese sign is none."""
    texts = [
        "so much depends\nupon the red\nAnd so on\n",
        "и не видно мне ни зги\n",
        "it's don't 'tis\n",
        "我 的\n",
        "a" * 90 + "\n",
    ]
    assert structure_of(*texts).count_of(st.SHORT_WORDS).tolist() == [3, 5, 0, 0, 0]


def test_words_with_which_lines_begin_are_found_whole():
    asking = structure_of("Question 1\nAnswer: four weeks\nQ: who?\nA: all\nNo answer\n", "FAQ\n", "Faq of it\n")
    assert asking.count_of(st.ASKING_LINES).tolist() == [4, 0, 0]
    assert asking.count_of(st.ASKING_TITLES).tolist() == [0, 1, 1]


def test_lines_of_logs_begin_with_a_time_or_a_name_in_angle_brackets():
    log, other = "12:01 is it?\n[12:30] yes, of course\n<anna> who looks?\n", "<anna>no\n<a b> no\n<> no\n123:45 no\n"
    logs = structure_of(log, other)
    assert logs.count_of(st.CHAT_LINES).tolist() == [3, 0]


def test_korean_words_are_counted_by_their_spaces():
    assert structure_of("철은 차갑다 오늘은\n", "한 두 세 네\n").count_of(st.WORDS).tolist() == [3, 4]


def test_one_line_is_no_code():
    assert kind_of("they are gone(all of them)\n" * 2) == "code"
    assert kind_of("they are gone(all of them)\n") != "code"
    assert kind_of("they are gone(all of them)\n", "code") == "code"


def test_names_agree():
    assert set(KINDS) == set(CleanConfig.model_fields["kinds"].annotation.__args__[1].__args__)
    assert set(KINDS) < set(PRESETS)
    used = {name for kind in KINDS for name in PRESETS[kind].rules}
    assert used >= {name for name in RULES if name.startswith("kind_")}


def test_lines_are_counted_by_what_they_are():
    counts = structure_of(MANUAL)
    assert [int(counts.lines(kind)[0]) for kind in (st.HEADING, st.TEXT, st.CODE, st.LIST)] == [1, 1, 6, 2]
    assert int(counts.characters(st.CODE)[0]) == len("```makemakemakemakeinstall```")
    assert int(structure_of("1. Open the door.\n2. Close it.\n13) Wait.\n- Go.\n* Stay.\n").lines(st.LIST)[0]) == 5
    dialogue = structure_of(RUSSIAN_DIALOGUE)
    assert (int(dialogue.lines(st.DIALOGUE)[0]), int(dialogue.lines(st.LIST)[0])) == (4, 0)


def test_counts_do_not_depend_on_neighbours():
    texts = [PROSE, RUSSIAN_DIALOGUE, CHINESE_POEM, SONG, PYTHON, MANUAL, TABLE, QUESTIONS, FORMULAS, LOG, WIKITEXT, ""]
    together = structure_of(*texts)
    for row, text in enumerate(texts):
        alone = structure_of(text)
        assert [int(together.count_of(n)[row]) for n in range(st.COUNTS)] == [
            int(alone.count_of(n)[0]) for n in range(st.COUNTS)
        ]


def test_changed_texts_are_counted_again():
    texts = Texts.of(["One line of text.", "# A title"])
    structure = Structure(texts).scan(np.ones(2, np.bool_))
    texts.replace({0: "# Now it is a title as well"})
    assert structure.scan(np.ones(2, np.bool_)).lines(st.HEADING).tolist() == [1, 1]


def measure(name: str, text: str) -> float:
    measurements = Measurements(Texts.of([text]), BatchContext.of(DocumentContext()), np.ones(1, np.bool_))
    return float(RULES[name].measure(measurements, RULES[name].limit)[0])


def test_measures_can_be_counted_by_hand():
    assert measure("kind_words", "three plain words") == 3
    assert measure("kind_words", "我们明天去北京大学学习中文课程吧") == pytest.approx(16 / 1.7)
    assert measure("kind_words", "```\nno words here\n```\n") == 0
    assert measure("kind_letters", "ab 12 ??") == 2 / 6
    assert measure("kind_letters", "ab 12 ??\n\n```\nx = 3\n```\n\n| a | 1 |\n") == 2 / 6
    assert measure("kind_letters", "中文 12") == 6 / 8
    assert np.isnan(measure("kind_letters", "| a | 1 |\n| b | 2 |\n"))
    assert measure("kind_digits", "ab 123 4") == 4 / 6
    assert np.isnan(measure("kind_digits", "The loss fell in every run of the table. " * 15 + "\n\n" + "1234 " * 99))
    assert measure("kind_table_words", "- List it:\n\n```\nls\n```\n\n- Go there:\n\n```\ncd x\n```\n") == 4 + 4
    assert measure("kind_table_words", "- See the other page:\n\n```\nman ls\n```\n") == 4
    assert measure("kind_links", "[a](http://b.c) abcde") == 15 / 20
    assert measure("kind_data", "a1" * 40 + " words") == 80 / 85
    assert measure("kind_data", "folder/" * 20 + " words") == 0
    assert measure("kind_data", "```\n+" + "-" * 70 + "+\n```\n") == 0
    assert np.isnan(measure("kind_unfinished_words", "It is a full sentence."))
    assert measure("kind_unfinished_words", "A title of six words here") == 6
    assert measure("kind_checkboxes", "- [ ] one\n- [x] two\n- [ ] three\nfour") == 3 / 4
    assert measure("kind_checkboxes", "- [s]ave\n- [p]rint\n- [x]\nfour") == 0
    assert measure("kind_checkboxes", "- [s]ave\n- [x]\n- [x]\n- [x]") == 3 / 4
    assert np.isnan(measure("kind_checkboxes", PROSE + "\n- [x] one\n- [x] two\n- [ ] three\n"))
    assert measure("kind_empty_headings", "# A\n\n## B\n\n## C\n\nSome text.\n") == 2 / 4
    assert measure("kind_placeholders", "the long <unk> of the wide <unk> river") == 2 / 8
    assert measure("kind_handles", "@ann #one two") == 2 / 3
    assert measure("kind_boilerplate", "Lorem ipsum dolor sit amet") == 5
    assert np.isnan(measure("kind_boilerplate", "This command is an alias of `list`, and sorts by name."))
    assert measure("kind_open_end", "Sound problems\n\nWhich of the following is yours?") == 2


def test_content_is_sentences_and_long_lines():
    assert measure("kind_content", "Home\nAbout us\nContact\nImprint\n") == 0
    assert measure("kind_content", PROSE) == 1
    assert np.isnan(measure("kind_content", PYTHON))
    assert measure("kind_content", "我们今天学习中文课程。\nfunction_name\n") == (1 + 3 * 10) / (1 + 3 * 10 + 13)
    marked = "word " * 20 + "<b>bold</b>" + "[here](https://example.org/a/page)"
    assert measure("kind_content", marked) == 21 * 4 / (21 * 4 + len("<b></b>" + "[here](https://example.org/a/page)"))
    for title in ("References", "6. References"):
        references = f"Works of the author are listed here in full.\n\n# {title}\n\n" + "A. Author. 1996. A book.\n" * 9
        assert measure("kind_content", references) < 0.25


def test_lines_of_code_tables_headings_and_lists_are_no_repetition():
    repeated = "```\nmake\nmake\nmake\n```\n| a | b |\n| a | b |\n# T\n\n# T\n\n- one\n- one\n"
    assert measure("kind_repeated_lines", repeated) == 0
    assert measure("kind_repeated_lines", "aaaa bb\naaaa bb\n") == 0.5


def test_dashes_of_dialogue_are_no_bullets_for_gopher():
    def bullets(text: str) -> float:
        measurements = Measurements(Texts.of([text]), BatchContext.of(DocumentContext()), np.ones(1, np.bool_))
        return float(RULES["gopher_bullet_lines"].measure(measurements, 0)[0])

    assert bullets(RUSSIAN_DIALOGUE) == 0
    assert bullets("– Oui, dit-il.\n-- Да, сказал он.\n— Sì, disse.\n") == 0
    assert bullets("- one\n* two\n• three\nfour") == 0.75


def test_edits_leave_repeated_lines_of_code_verse_and_tables():
    refrain = "Sing all a green willow,\n" * 4 + SONG
    rows = "".join("| 1 | 2 | a few words of text |\n" for _ in range(9))
    calls = "def f(x):\n" + "    g(x)\n" * 5
    result = clean_part(CleanConfig(), documents(("a", "text", refrain), ("b", "text", rows), ("c", "text", calls)), 0)
    assert result.tables["documents"].column("text").to_pylist() == [refrain, rows, calls]
    assert result.tables["documents"].column("text_kind").to_pylist() == ["verse", "table", "code"]


def test_a_source_may_set_its_kind():
    config = CleanConfig(kinds={"songs": "verse"})
    result = clean_part(config, documents(("songs", "text", PROSE), ("other", "text", PROSE)), 0)
    assert result.tables["documents"].column("text_kind").to_pylist() == ["verse", "prose"]
    facts = result.report.facts
    size = len(PROSE.encode())
    assert facts["kind_bytes_read"] == facts["kind_bytes_kept"] == {"verse": size, "prose": size}
    assert facts["kind_bytes_dropped"] == {}


def test_dropped_bytes_are_counted_by_kind():
    titles = "Sound\n\nPrinters\n\nScreen and keyboard\n"
    result = clean_part(CleanConfig(), documents(("s", "text", titles), ("s", "text", PROSE)), 0)
    assert result.report.facts["kind_bytes_dropped"] == {"documentation": len(titles.encode())}
    (row,) = result.tables["ledger"].to_pylist()
    assert row["rule"].startswith("kind_")
    assert row["limit"] == RULES[row["rule"]].limit


def test_other_presets_record_the_kind_and_keep_their_rules():
    result = clean_part(CleanConfig(preset="gopher"), documents(("s", "text", SONG), ("s", "text", PROSE)), 0)
    assert result.report.source("s").dropped == {"gopher_words_min": 1 + (len(PROSE.split()) < 50)}
    assert result.report.facts["kind_bytes_read"]["verse"] == len(SONG)


def test_long_documents_are_kept():
    def word(number: int) -> str:
        return "".join(chr(ord("a") + int(digit)) for digit in str(number))

    generator = np.random.default_rng(0)
    sentences = [" ".join(map(word, generator.integers(0, 1 << 40, 12).tolist())) + "." for _ in range(9000)]
    words = " ".join(sentence.capitalize() for sentence in sentences)
    assert len(words.split()) > 100_000
    assert clean_part(CleanConfig(), documents(("s", "text", words)), 0).tables["documents"].num_rows == 1
