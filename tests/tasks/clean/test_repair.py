"""Damaged text is repaired and undamaged text is left alone, in every script."""

import re
import time

import ftfy
import pytest
from ftfy.badness import is_bad
from hypothesis import assume, given
from hypothesis import strategies as st

from tasks.clean.document import DocumentContext
from tasks.clean.edits.unicode_repair import compose, remove_invisible, undo_entities, undo_mojibake
from tasks.clean.edits.wrong_encoding import undo_wrong_encoding

TEXT = DocumentContext("text")


def is_left_by_legacy_encodings(line):
    return all(undo_wrong_encoding(text) == text for text in (line, ftfy.fix_encoding(line)))


@pytest.mark.parametrize(
    "original", ["naïve café", "schön", "Привет, мир", "“quoted” — dash", "中文字符", "voilà le travail"]
)
def test_utf8_read_as_windows_1252_is_undone(original):
    broken = original.encode().decode("sloppy-windows-1252")
    assert undo_mojibake(f"sound line\n{broken}", TEXT) == f"sound line\n{original}"


@pytest.mark.parametrize(
    "sound",
    [
        "plain",
        "“curly” quotes—and ’more’",
        "Ｗｉｄｅ forms and ﬁ ligatures",
        "Ёлка и №5",
        "§ 5 – 10 €",
    ],
)
def test_undamaged_text_is_the_same_object(sound):
    assert undo_mojibake(sound, TEXT) == sound


def has_arabic_digits_left_by_ftfy(line):
    """Whether only we decode digits of the line: their byte A0 has become a space."""
    decoded = ftfy.fix_encoding(line)
    return bool(re.search("Ù[ \u00a0-\u00a9]", decoded) and re.search("[\u0621-\u064a]", decoded))


def test_a_flag_keeps_its_tags_and_a_hundred_thousand_of_them_take_under_a_second():
    scotland = "\U0001f3f4\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f"
    assert remove_invisible(f"a\U000e0041{scotland} b\U000e0042", TEXT) == f"a{scotland} b"
    many = "\U0001f3f4" + "\U000e0061" * 100_000
    begin = time.process_time()
    assert remove_invisible(many, TEXT) == many
    assert time.process_time() - begin < 1


@given(st.text(st.sampled_from("aZ .éÉâÂÃà°œŒ€™“”‘’—…\u00a0\u2060абвРСЂ中の한¡«»¦¤×²√≈‚ÄØÙ─\u0080\u0093")))
def test_whatever_ftfy_finds_bad_reaches_ftfy(line):
    if is_bad(line):
        assume(is_left_by_legacy_encodings(line) and not has_arabic_digits_left_by_ftfy(line))
        assert undo_mojibake(line, TEXT) == ftfy.fix_encoding(line)


@given(
    st.text(st.sampled_from("aZ .éÉâÂÃà°œŒ€™“”‘’—…\u00a0\u200aабвРСЂ中¡«»¦¤×²√≈‚Ø\u0093"), max_size=12),
    st.sampled_from(["a sound line ", "“так” — ", "他说：“好。”", "é "]),
)
def test_in_a_long_line_the_surroundings_of_signs_decide(piece, sound):
    line = sound * 9 + piece + sound * 9
    assume(is_left_by_legacy_encodings(line) and not has_arabic_digits_left_by_ftfy(line))
    assert undo_mojibake(f"x\n{line}\nx", TEXT) == f"x\n{ftfy.fix_encoding(line)}\nx"


def test_entities_are_undone_only_in_text_without_markup():
    assert undo_entities("caf&eacute; &amp; co", TEXT) == "café & co"
    assert undo_entities("a <b> &amp; c", TEXT) == "a <b> &amp; c"
    assert undo_entities("a &amp; c", DocumentContext("markdown")) == "a &amp; c"


def test_letters_and_marks_are_composed():
    assert compose("e\u0301", TEXT) == "é"
    assert compose("ﬁ ①", TEXT) == "ﬁ ①"


@pytest.mark.parametrize(
    ("broken", "repaired"),
    [
        ("a\r\nb\rc\x0cd\u2028e\tf", "a\nb\nc\nd\ne\tf"),
        ("nul\x00l bell\x07", "null bell"),
        ("zero\u200bwidth\ufeff soft\u00adhyphen", "zerowidth softhyphen"),
        ("if (admin\u202e\u2066) {}", "if (admin) {}"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("می\u200cخواهم", "می\u200cخواهم"),
        ("क्\u200dष", "क्\u200dष"),
        ("la\u200dtin \u200c", "latin "),
        ("👩\u200d🔬", "👩\u200d🔬"),
        ("hidden\U000e0041\U000e0042", "hidden"),
    ],
)
def test_invisible_characters_are_removed_and_needed_ones_kept(broken, repaired):
    assert remove_invisible(broken, TEXT) == repaired


@given(st.text())
def test_repairs_settle_after_one_pass(text):
    once = remove_invisible(compose(text, TEXT), TEXT)
    assert remove_invisible(once, TEXT) == once


RUSSIAN = "Вчера вечером мы долго гуляли по берегу реки и говорили о старых книгах."
SIMPLIFIED = "昨天晚上我们在河边散步，说起小时候读过的那些书。"
TRADITIONAL = "昨天晚上我們在河邊散步，說起小時候讀過的那些書。"
JAPANESE = "昨日の夜、川のそばを歩きながら、子どものころに読んだ本の話をしました。"
KOREAN = "어제 저녁에 우리는 강가를 걸으며 어릴 때 읽은 책 이야기를 했습니다."
GREEK = "Χθες το βράδυ περπατήσαμε δίπλα στο ποτάμι και μιλήσαμε για παλιά βιβλία."
POLISH = "Wczoraj wieczorem długo chodziliśmy nad rzeką i mówiliśmy o książkach, które czytaliśmy w młodości."
CZECH = "Včera večer jsme dlouho chodili podél řeky a mluvili o knížkách, které jsme četli v dětství."
TURKISH = "Dün akşam ırmağın kıyısında yürüdük ve çocukken okuduğumuz eski kitaplardan söz ettik, ışıklar yanıyordu."
GERMAN = """Gestern Abend gingen wir am Fluß spazieren und erzählten über Bücher, die wir früher schön fanden.
Später hörten wir Vögel über den Dächern; die Straße führte zurück, müde Füße, kühle Nächte, höfliche Grüße."""
LEGACY = [
    ("cp1251", RUSSIAN),
    ("koi8-r", RUSSIAN),
    ("cp866", RUSSIAN),
    ("iso8859-5", RUSSIAN),
    ("mac-cyrillic", RUSSIAN),
    ("cp1251", "Учора ввечері ми довго гуляли берегом річки і говорили про її старі книжки."),
    ("gbk", SIMPLIFIED),
    ("gbk", TRADITIONAL),
    ("big5", TRADITIONAL),
    ("cp932", JAPANESE),
    ("euc_jp", JAPANESE),
    ("euc_kr", KOREAN),
    ("cp1253", GREEK),
    ("cp1250", POLISH),
    ("iso8859-2", POLISH),
    ("cp1250", CZECH),
    ("cp1254", TURKISH),
    ("mac-roman", GERMAN),
]


@pytest.mark.parametrize("reader", ["latin-1", "sloppy-windows-1252"])
@pytest.mark.parametrize(("encoding", "original"), LEGACY)
def test_legacy_encodings_read_as_western_are_undone_once_and_twice(encoding, original, reader):
    broken = original.encode(encoding).decode(reader)
    assert undo_mojibake(broken, TEXT) == original
    assert undo_mojibake(broken.encode().decode(reader), TEXT) == original


def test_a_page_with_good_lines_and_broken_ones_keeps_the_good_ones():
    good = "L’été dernier, nous étions déjà à la plage : « ça va ? » — “très bien”, 10 €, où, élève, créée"
    broken = RUSSIAN.encode("cp1251").decode("latin-1")
    assert undo_mojibake(f"{good}\n{broken}\n{good}", TEXT) == f"{good}\n{RUSSIAN}\n{good}"


def test_short_lines_follow_the_rest_of_a_broken_page():
    original = f"№ 1\n{RUSSIAN}\nДа?\n{RUSSIAN}\nВ"
    assert undo_mojibake(original.encode("cp1251").decode("latin-1"), TEXT) == original


@pytest.mark.parametrize(
    "sound",
    [
        "L’œuvre a été créée à l’automne, où l’élève naïf goûtait déjà des crêpes.",
        "Größe, Äpfel, Öl, Übermut: äöüÄÖÜß",
        "Não há ninguém à espera; são três irmãs, e a mãe está só. ÀÁÂÃ",
        "Không có gì quý hơn độc lập tự do; và bà ấy đã về nhà.",
        "Það er gott að þú sért hér, því að ég þarf að tala við þig um þýðingu á íslensku.",
        "Dün akşam ırmağın kıyısında yürüdük; şöyle böyle, ağır ağır.",
        "På en ö låg en å, där växte körsbär; ÅÄÖ åäö",
        "Příliš žluťoučký kůň úpěl ďábelské ódy.",
        "ÀÁÂÃÄÅÆÇÈÉÊËÌÍÎÏÐÑÒÓÔÕÖ ØÙÚÛÜÝÞ àáâãäåæçèéêëìíîïðñòóôõö øùúûüýþÿ",
        "àâäéèêëîïôöùûüÿç, [a-zà-öø-ÿ], õäöü ÕÄÖÜ",
        "acc | 0.4185 ± 0.0041 | 0.4472 ± 0.0041 | 117.3µs | ½ × ¾ | £60 and £1,250,000 | 25°–30°",
        "├──\u00a0\u00a0src, → 1º, 2ª — “so…” ‘it’s’ ©®™ ••• ¡¿Qué?! §§ 5–7 `¬´",
        "MÄ£ÄM ÌÑÌ Q £ÄGÌ GÄLÄW ÑÍCH SÖÄ£ ÑÝÄ $ÚÄMÌ",
    ],
)
def test_good_western_text_is_the_same(sound):
    assert undo_mojibake(sound, TEXT) == sound
    assert undo_mojibake(sound.upper(), TEXT) == sound.upper()
    assert undo_mojibake("\n".join([sound] * 40), TEXT) == "\n".join([sound] * 40)


@pytest.mark.parametrize(
    ("broken", "repaired"),
    [
        ("Xem clip hĂ i, phim hĂ i má»›i hay nháşĄt", "Xem clip hài, phim hài mới hay nhất"),
        ("أكثر Ù…Ù† Ù Ù Ù¡ Ø¨Ù„Ø¯", "أكثر من ٠٠١ بلد"),
        ("MISUTÂ\u00a0AJIKKO", "MISUTÂ\u00a0AJIKKO"),
        ("L'OS pi√π usato √® questo", "L'OS più usato è questo"),
        ("(-1/2)! = √π", "(-1/2)! = √π"),
    ],
)
def test_what_ftfy_leaves_of_utf8(broken, repaired):
    assert undo_mojibake(broken, TEXT) == repaired
