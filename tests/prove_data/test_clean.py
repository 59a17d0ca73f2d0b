"""Clean on real text: languages, quality on sources that the classifier has not seen."""

import gzip
import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ftfy
import justext
import numpy as np
import pytest

from tasks.clean.document import DocumentContext
from tasks.clean.edits.unicode_repair import undo_mojibake
from tasks.clean.filters.quality import Examples, auc, middle
from tasks.common.numeric import wilson_interval
from tests.tasks.clean.references import identify_language

pytestmark = pytest.mark.prove_data

Measured = Callable[..., None]
IN_ONE_LANGUAGE = {
    "en": ("en_books", "en_speech_drama", "en_wiki", "en_textbook_guides", "en_techdocs_md"),
    "zh": ("zh_techdocs", "zh_classic_prose", "zh_poetry", "wiki_zh_ru"),
    "ru": ("ru_novels", "ru_techdocs", "wiki_zh_ru"),
    "it": ("it_techdocs",),
}
GOOD = ("en_books", "zh_classic_prose", "en_textbook_guides", "ru_novels", "en_wiki", "en_speech_drama", "wiki_zh_ru",
        "it_techdocs", "zh_techdocs", "ru_techdocs")  # fmt: skip
REST = ("web_html_raw", "social_emoji")
LONG = 200
HALVINGS = 6
MOST_DOCUMENTS = 400


def records(data: Path, corpus: str) -> Iterator[dict[str, Any]]:
    for path in sorted((data / corpus).glob("part-*.jsonl.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            yield from map(json.loads, lines)


def test_languages_of_long_documents(data: Path, measured: Measured) -> None:
    """Labels are of the page's file, so that untranslated and half-translated pages count as errors here."""
    right = tried = 0
    for language, corpora in IN_ONE_LANGUAGE.items():
        found = [
            identify_language(record["text"])[0] == language
            for corpus in corpora
            for record in records(data, corpus)
            if len(record["text"]) > LONG and record["lang"].partition("-")[0] == language
        ]
        right, tried = right + sum(found), tried + len(found)
        low, high = wilson_interval(sum(found), len(found))
        share = sum(found) / len(found)
        note = f"{len(found)} documents over {LONG} characters"
        measured("clean", f"language {language} recognised", share, at_least=0.98, low=low, high=high, note=note)
    low, high = wilson_interval(right, tried)
    measured(
        "clean", "language recognised, all", right / tried, at_least=0.99, low=low, high=high, note=f"{tried} documents"
    )


def test_quality_on_sources_that_training_has_not_seen(data: Path, measured: Measured) -> None:
    """Good text against raw web and chat; half of the sources of every kind are unseen, in six random halvings."""
    generator = np.random.default_rng(0)
    texts, sources, good = [], [], []
    for corpus in (*GOOD, *REST):
        by_source: dict[str, list[str]] = defaultdict(list)
        for record in records(data, corpus):
            source = record["source"].split(":")[-1 if corpus == "web_html_raw" else 0]
            by_source[f"{corpus}/{source}"].append(record["text"])
        for source, of_source in sorted(by_source.items()):
            for number in generator.permutation(len(of_source))[:MOST_DOCUMENTS]:
                texts.append(middle(np.frombuffer(of_source[number].encode(), np.uint8)))
                sources.append(source)
                good.append(corpus in GOOD)
    examples, names, is_good = Examples.of(texts), np.array(sources), np.array(good)
    found = []
    for seed in range(HALVINGS):
        draw = np.random.default_rng(seed)
        unseen: set[str] = set()
        for corpus in (*GOOD, *REST):
            of_corpus = sorted({name for name in sources if name.startswith(f"{corpus}/")})
            unseen |= set(draw.permutation(of_corpus)[: len(of_corpus) // 2].tolist())
        left_out = np.isin(names, sorted(unseen))
        weights, bias = examples.train(is_good, np.flatnonzero(~left_out), seed)
        rows = np.flatnonzero(left_out)
        found.append(auc(examples.scores(weights, bias, rows), is_good[rows]))
    low, high = min(found), max(found)
    note = f"mean of {HALVINGS} halvings of the sources, least and most beside it"
    measured(
        "clean", "quality, AUC on unseen sources", sum(found) / HALVINGS, at_least=0.9, low=low, high=high, note=note
    )


LEGACY = (
    ("cp1251", "ru", ("ru_novels", "ru_techdocs", "wiki_zh_ru")),
    ("koi8-r", "ru", ("ru_novels", "ru_techdocs", "wiki_zh_ru")),
    ("cp866", "ru", ("ru_novels", "ru_techdocs", "wiki_zh_ru")),
    ("gbk", "zh", ("zh_techdocs", "zh_classic_prose", "zh_poetry", "wiki_zh_ru")),
    ("cp950", "zh-Hant", ("zh_poetry", "wiki_zh_ru", "tldr_short_md")),
    ("cp932", "ja", ()),
    ("euc_kr", "ko", ()),
)
"""Encoding, language and corpora of text that is read as Latin-1 and as Windows-1252."""

JAPANESE = """昨日の夜、川のそばを歩きながら、子どものころに読んだ本の話をしました。
駅前の小さな店では、毎朝早くから焼きたてのパンを売っています。
このプログラムは、ファイルを一行ずつ読み込んで、結果を画面に表示します。
来週の会議は火曜日の午後二時からに変更になりましたので、ご注意ください。
山の上から見た景色は、言葉では表せないほど美しかった。
彼女は大学で歴史を勉強していますが、将来は新聞記者になりたいそうです。
雨が降り始めたので、急いで家に帰って窓を閉めた。
新しい図書館には、約十万冊の本と静かな読書室があります。
設定を変更した場合は、必ずサーバーを再起動してください。
祖父は若いころ、船に乗って世界中の港を回ったと聞いています。
最近は電車の中で本を読む人が少なくなったような気がする。
この料理の作り方はとても簡単で、材料も三つしか使いません。
市役所の前の広場で、土曜日ごとに野菜の市場が開かれる。
エラーが発生したら、まずログの最後の行を確認しましょう。
春になると、川沿いの桜が一斉に咲いて、多くの人が散歩に来る。
先生は黒板に大きな円を描いて、面積の求め方を説明した。
私たちは古い地図を頼りに、森の奥へと進んで行った。
その映画を見た後、しばらく誰も口を開かなかった。
データは毎晩バックアップされ、別の建物に保管されています。
冬の朝、湖には薄い氷が張り、白い鳥が静かに立っていた。"""
KOREAN = """어제 저녁에 우리는 강가를 걸으며 어릴 때 읽은 책 이야기를 했습니다.
역 앞의 작은 가게에서는 매일 아침 일찍 갓 구운 빵을 팝니다.
이 프로그램은 파일을 한 줄씩 읽어서 결과를 화면에 보여 줍니다.
다음 주 회의는 화요일 오후 두 시로 바뀌었으니 확인해 주세요.
산 위에서 본 경치는 말로 다 할 수 없을 만큼 아름다웠다.
그는 대학에서 역사를 공부하지만 나중에는 기자가 되고 싶다고 한다.
비가 오기 시작해서 서둘러 집으로 돌아가 창문을 닫았다.
새 도서관에는 책이 약 십만 권 있고 조용한 열람실도 있습니다.
설정을 바꾼 경우에는 반드시 서버를 다시 시작하십시오.
할아버지는 젊었을 때 배를 타고 세계의 여러 항구를 다녔다고 합니다."""
GERMAN = """Gestern Abend gingen wir am Fluss spazieren und erzählten von Büchern, die wir früher schön fanden.
Die Straße führt über den Hügel, an alten Häusern und großen Gärten vorbei, bis zum Bahnhof.
Für die Lösung der Aufgabe müssen zunächst alle Größen in Meter umgerechnet werden.
Überall hörte man Vögel, während die Wärme des frühen Sommers durch die geöffneten Fenster strömte.
Der Schlüssel hängt neben der Tür; bitte schließen Sie nachts ab und löschen Sie das Licht.
Ältere Geräte können das Format nicht lesen, deshalb empfehlen wir, vorher eine Kopie anzulegen.
Natürlich wäre es möglich gewesen, früher zurückzukehren, aber niemand hätte darüber gesprochen.
Fünf Brücken führen über den Kanal, und an jeder hängt ein Schild mit der zulässigen Höhe.
Das Frühstück gibt es von sieben bis zehn Uhr in der großen Küche im Erdgeschoß.
Während der Prüfung dürfen keine Wörterbücher benützt werden, außer für Schüler mit Ausnahme."""
OWN_TEXTS = {"ja": JAPANESE, "ko": KOREAN, "de": GERMAN}
GOOD_TEXTS = {
    "en": ("en_books", "en_speech_drama", "en_textbook_guides", "en_techdocs_md", "social_emoji"),
    "it": ("it_techdocs", "social_emoji", "tldr_short_md"),
    "ru": ("ru_novels", "ru_techdocs", "wiki_zh_ru", "social_emoji"),
    "zh": ("zh_techdocs", "zh_classic_prose", "zh_poetry", "wiki_zh_ru"),
    "zh-Hant": ("zh_poetry", "wiki_zh_ru", "tldr_short_md"),
}
WORD_LISTS = ("German", "French", "Portuguese", "Vietnamese", "Icelandic", "Turkish")
"""Languages without a corpus: texts of frequent words, drawn from the lists that come with justext."""

BROKEN_EACH, GOOD_EACH = 400, 1900
MOST_CHARACTERS = 3000


def texts_in(data: Path, language: str, corpora: tuple[str, ...]) -> list[str]:
    texts = [record["text"] for corpus in corpora for record in records(data, corpus) if record["lang"] == language]
    own = OWN_TEXTS.get(language, "")
    texts += own.splitlines() + ([own] if own else [])
    chosen = np.random.default_rng(0).permutation(len(texts))
    return [texts[number][:MOST_CHARACTERS] for number in chosen.tolist()]


def repaired(text: str) -> str:
    return undo_mojibake(text, DocumentContext("text"))


def broken_pairs(texts: list[str], encoding: str, reader: str) -> list[tuple[str, str]]:
    """Pairs of (text as it can be written in the encoding, read wrongly) with at least ten bytes outside ASCII."""
    pairs = []
    for text in texts:
        raw = text.encode(encoding, errors="ignore")
        if sum(byte >= 0x80 for byte in raw) >= 10 and len(pairs) < BROKEN_EACH:
            pairs.append((raw.decode(encoding), raw.decode(reader)))
    return pairs


def test_wrongly_decoded_text_is_repaired(data: Path, measured: Measured) -> None:
    """Read as Latin-1, as Windows-1252, and a second time after that as UTF-8."""
    cases = [(encoding, language, corpora) for encoding, language, corpora in LEGACY]
    cases += [("utf-8", "it", ("it_techdocs",)), ("utf-8", "de", ())]
    for encoding, language, corpora in cases:
        texts = texts_in(data, language, corpora)
        for reader in ("latin-1", "sloppy-windows-1252"):
            pairs = broken_pairs(texts, encoding, reader)
            right = sum(repaired(broken) == text for text, broken in pairs)
            twice = sum(repaired(broken.encode().decode(reader)) == text for text, broken in pairs)
            for what, count in (("", right), (", twice", twice)):
                low, high = wilson_interval(count, len(pairs))
                name = f"{encoding} of {language} read as {reader}{what}"
                note = f"{count} of {len(pairs)}"
                measured("clean", name, count / len(pairs), at_least=0.95, low=low, high=high, note=note)


def test_good_text_is_never_changed(data: Path, measured: Measured) -> None:
    good: dict[str, list[str]] = {
        language: texts_in(data, language, corpora)[:GOOD_EACH] for language, corpora in GOOD_TEXTS.items()
    }
    generator = np.random.default_rng(0)
    for name in WORD_LISTS:
        words = sorted(justext.get_stoplist(name))
        lengths = generator.integers(3, 60, GOOD_EACH).tolist()
        good[name] = [" ".join(generator.choice(words, length)).capitalize() + "." for length in lengths]
    assert sum(map(len, good.values())) >= 20_000
    for language, texts in good.items():
        changed = sum(repaired(text) != text for text in texts)
        measured("clean", f"good {language} changed", changed, at_most=0, note=f"{len(texts)} texts")


def test_cases_of_ftfy(data: Path, measured: Measured) -> None:
    """Its answers have straight quotes and no ligatures, too: these fixes are done to both before comparing."""
    rest = ftfy.TextFixerConfig(fix_encoding=False)
    cases = list(records(data, "mojibake"))
    right = sum(
        ftfy.fix_text(repaired(case["text"]), config=rest) == ftfy.fix_text(case["fixed"], config=rest)
        for case in cases
    )
    known = sum(case["expect"] == "fail" for case in cases)
    note = f"{right} of {len(cases)}; {known} of them ftfy says it fails"
    measured("clean", "cases of ftfy", right, at_least=len(cases) - 1, note=note)


def test_mojibake_made_from_documents(data: Path, measured: Measured) -> None:
    with gzip.open(data / "mojibake_synthetic" / "docs.jsonl.gz", "rt", encoding="utf-8") as lines:
        cases = [case for case in map(json.loads, lines) if not case["lossy"]]
    right = sum(repaired(case["text"]) == case["clean"] for case in cases)
    measured("clean", "wrong decodes without loss", right / len(cases), at_least=1.0, note=f"{right} of {len(cases)}")
