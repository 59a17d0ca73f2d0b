"""A base and this run's text: new rows behind the old, all of them used, text of the base untouched."""

import io
import os
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import sentencepiece
from pydantic import ValidationError

from model.errors import InputError
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import RunContext
from tasks.tokenizer import released
from tasks.tokenizer.model_file import read_model
from tasks.tokenizer.open import open_tokenizer
from tasks.tokenizer.sentencepiece import SentencePieceTokenizer
from tasks.vocab.base import prepare_base
from tasks.vocab.bpe import unreachable_tokens
from tasks.vocab.candidates import CandidateVocabulary, characters_to_cover, train_candidates
from tasks.vocab.config import VocabConfig
from tasks.vocab.scripts import SCRIPTS, Script
from tasks.vocab.stage import build_vocab

CHINESE, RUSSIAN = SCRIPTS["zh"], SCRIPTS["ru"]

DATA = Path(os.environ.get("BESSEMER_DATA", Path(__file__).resolve().parents[4] / "shared" / "data"))
MISTRAL = DATA / "tokenizers" / "mistral_v1_32k.model"
ENGLISH = [
    f"The converter blows air through melted iron for {number} minutes, and steel remains." for number in range(80)
]
CHINESE_TEXT = [f"转炉炼钢的时候，空气吹过铁水{number}分钟，钢水就炼成了。中国的钢铁厂很多。" for number in range(40)]
RUSSIAN_TEXT = [
    f"Конвертер продувает воздух через расплавленный чугун {number} минут, и остаётся сталь." for number in range(40)
]


def trained(**options: object) -> bytes:
    """A small English vocabulary as they are released: a blank before the first word, no padding."""
    model = io.BytesIO()
    settings = {"model_type": "bpe", "vocab_size": 340, "byte_fallback": True, "normalization_rule_name": "identity"}
    settings |= {"remove_extra_whitespaces": False, **options}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(ENGLISH), model_writer=model, num_threads=1, minloglevel=2, **settings
    )
    return model.getvalue()


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bases") / "english.model"
    path.write_bytes(trained())
    return path


@pytest.fixture
def documents(make_documents) -> Artifact:
    return make_documents(
        [
            [("en", text) for text in ENGLISH],
            [("zh", text) for text in CHINESE_TEXT] + [("ru", text) for text in RUSSIAN_TEXT],
        ]
    )


def test_rows_are_added_behind_the_base_and_all_are_emitted(context: RunContext, documents: Artifact, base: Path):
    vocab = build_vocab(context, documents, VocabConfig(base=base, extend={"zh": 60, "ru": 100}))
    before, after = base.read_bytes(), open_tokenizer(vocab).model
    old, new = ([(p.piece, p.score, p.type) for p in read_model(model).pieces] for model in (before, after))
    assert new[:340] == old
    assert len(new) == 340 + 60 + 100
    cyrillic = [RUSSIAN.admits(piece) for piece, _, _ in new[340:]]
    assert cyrillic == [True] * 100 + [False] * 60
    assert all(CHINESE.admits(piece) for piece, _, _ in new[440:])
    assert unreachable_tokens(after) == unreachable_tokens(before)
    assert vocab.report.facts["vocabulary"]["pieces"] == 500
    assert vocab.table("vocabulary").column("added").to_pylist() == [False] * 340 + [True] * 160


def test_the_report_says_what_the_extension_did(context: RunContext, documents: Artifact, base: Path):
    vocab = build_vocab(context, documents, VocabConfig(base=base, extend={"zh": 60}))
    facts = vocab.report.facts["vocabulary"]
    assert (facts["pieces"], facts["model_type"]) == (400, "bpe")
    assert facts["base"] == {"pieces": 340, "unreachable": len(unreachable_tokens(base.read_bytes())), "besides": 0}
    pieces = [piece.piece for piece in read_model(open_tokenizer(vocab).model).pieces]
    used = {pieces[token] for text in CHINESE_TEXT for token in open_tokenizer(vocab).encode(text)}
    unused = [piece for piece in pieces[340:] if piece not in used]
    added = facts["added"]["zh"]
    assert (added["rows"], added["unused"], added["unused_examples"]) == (60, len(unused), unused[:20])
    assert 0 < len(unused) < 60
    assert set(facts["bytes_per_token"]) == {"en", "zh", "ru"}
    reported = facts["languages"]["en"]  # The documents of this test all say that they are English.
    assert (reported["untouched_lines"], reported["moved_lines"]) == (len(ENGLISH) + len(RUSSIAN_TEXT), 0)
    before, after = reported["tokens"]
    assert before > after > 0


def test_old_text_keeps_its_ids_and_new_text_takes_fewer(context: RunContext, documents: Artifact, base: Path):
    vocab = build_vocab(context, documents, VocabConfig(base=base, extend={"zh": 60, "ru": 100}))
    before, after = SentencePieceTokenizer(base.read_bytes()), open_tokenizer(vocab)
    assert [before.encode(text) for text in ENGLISH] == [after.encode(text) for text in ENGLISH]
    for texts in (CHINESE_TEXT, RUSSIAN_TEXT):
        assert sum(len(after.encode(text)) for text in texts) < 0.4 * sum(len(before.encode(text)) for text in texts)
        assert [after.decode(after.encode(text)) for text in texts] == texts


def test_transformers_reads_the_same_ids(context: RunContext, documents: Artifact, base: Path, tmp_path: Path):
    from transformers import LlamaTokenizer

    vocab = build_vocab(context, documents, VocabConfig(base=base, extend={"zh": 60, "ru": 100}))
    tokenizer = open_tokenizer(vocab)
    (tmp_path / "tokenizer.model").write_bytes(tokenizer.model)
    converted = LlamaTokenizer.from_pretrained(tmp_path)
    texts = [*ENGLISH, *CHINESE_TEXT, *RUSSIAN_TEXT, "é😀\nサターン"]
    assert converted(texts, add_special_tokens=False)["input_ids"] == [tokenizer.encode(text) for text in texts]


def test_thousands_of_random_strings_come_back(context: RunContext, documents: Artifact, base: Path):
    tokenizer = open_tokenizer(build_vocab(context, documents, VocabConfig(base=base, extend={"zh": 60, "ru": 100})))
    generator = random.Random(1)
    pool = "".join([*CHINESE_TEXT, *RUSSIAN_TEXT, ENGLISH[0], " \u2581\t\n\0\u3000\ufeff\u0301ﬁ①😀👩\u200d👧"])
    strings = ["".join(generator.choices(pool, k=generator.randrange(9))) for _ in range(4000)]
    strings += ["".join(chr(generator.randrange(0xD800)) for _ in range(generator.randrange(9))) for _ in range(4000)]
    for text, ids in zip(strings, tokenizer.encode_batch(strings), strict=True):
        assert tokenizer.decode(ids) == text
        assert tokenizer.unk not in ids


def test_without_rows_to_add_the_artifact_holds_the_base_as_it_is(context: RunContext, documents: Artifact, base: Path):
    vocab = build_vocab(context, documents, VocabConfig(base=base))
    assert open_tokenizer(vocab).model == base.read_bytes()
    counts = vocab.report.source("en")
    assert counts.documents_in == counts.documents_out == 80


def test_the_base_counts_by_its_content_wherever_it_lies(
    context: RunContext, documents: Artifact, base: Path, tmp_path: Path
):
    config = VocabConfig(base=base, extend={"zh": 60})
    first = build_vocab(context, documents, config)
    moved, other = tmp_path / "moved.model", tmp_path / "other.model"
    moved.write_bytes(base.read_bytes())
    other.write_bytes(trained(vocab_size=341))
    assert build_vocab(context, documents, config.model_copy(update={"base": moved})).reused
    second = build_vocab(context, documents, config.model_copy(update={"base": other}))
    assert not second.reused
    assert "the input `base` has other content" in second.cause
    assert second.content != first.content


def test_a_base_replaced_between_its_digest_and_the_reading_is_an_error(
    context: RunContext, documents: Artifact, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path, other = tmp_path / "base.model", tmp_path / "other.model"
    path.write_bytes(base.read_bytes())
    other.write_bytes(trained(vocab_size=341))
    whole = released.read_base

    def replaced(*given):
        path.write_bytes(other.read_bytes())
        return whole(*given)

    with monkeypatch.context() as patched:
        patched.setattr(released, "read_base", replaced)
        with pytest.raises(InputError, match=r"base\.model was changed"):
            build_vocab(context, documents, VocabConfig(base=path))
    assert not list(context.root.glob("artifacts/vocab/*"))
    assert open_tokenizer(build_vocab(context, documents, VocabConfig(base=path))).model == other.read_bytes()


def test_the_same_rows_whatever_the_order_of_languages_and_parts(context: RunContext, make_documents, base: Path):
    rows = [[("zh", text) for text in CHINESE_TEXT], [("ru", text) for text in RUSSIAN_TEXT]]
    one = build_vocab(context, make_documents(rows), VocabConfig(base=base, extend={"zh": 60, "ru": 90}))
    other = build_vocab(
        context, make_documents([[*rows[0], *rows[1]]]), VocabConfig(base=base, extend={"ru": 90, "zh": 60})
    )
    assert open_tokenizer(one).model == open_tokenizer(other).model


def test_forced_rebuild_reproduces(context: RunContext, documents: Artifact, base: Path):
    config = VocabConfig(base=base, extend={"zh": 60})
    first = build_vocab(context, documents, config)
    again = build_vocab(replace(context, forced=frozenset({"vocab"})), documents, config)
    assert again.content == first.content
    assert not again.reused


def test_too_many_rows_name_how_many_there_are(context: RunContext, documents: Artifact, base: Path):
    with pytest.raises(InputError, match=r"vocab\.extend\.ru is 5000.*gives \d+ tokens at most") as caught:
        build_vocab(context, documents, VocabConfig(base=base, extend={"ru": 5000}))
    most = int(str(caught.value).split("vocab.extend.ru = ")[1].split()[0])
    vocab = build_vocab(context, documents, VocabConfig(base=base, extend={"ru": most}))
    assert open_tokenizer(vocab).vocab_size == 340 + most


def test_languages_of_one_script_share_its_words(context: RunContext, make_documents, base: Path):
    """Words that the first of them took are no candidates of the second one, for which others are left."""
    draw = random.Random(5)
    syllables = [first + second for first in "бвгдклмнпрст" for second in "аеиоу"]
    words = ["".join(draw.choices(syllables, k=3)) for _ in range(200)]
    documents = make_documents([[("ru", " ".join(draw.choices(words, k=40))) for _ in range(100)]])
    for extend in ({"ru": 500}, {"ru": 300, "uk": 200}):
        vocab = build_vocab(context, documents, VocabConfig(base=base, extend=extend))
        assert open_tokenizer(vocab).vocab_size == 340 + 500


def test_a_script_that_the_text_does_not_hold_is_named(context: RunContext, make_documents, base: Path):
    with pytest.raises(InputError, match=r"vocab\.extend\.zh: the sampled text has no character"):
        build_vocab(
            context, make_documents([[("en", text) for text in ENGLISH]]), VocabConfig(base=base, extend={"zh": 9})
        )


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            lambda: trained(normalization_rule_name="nmt_nfkc"),
            r"normaliser \(nmt_nfkc\) maps characters.*normaliser = ",
        ),
        (lambda: trained(remove_extra_whitespaces=True), r"normaliser drops spaces"),
        (lambda: trained(model_type="char", vocab_size=300), "neither a BPE nor a Unigram model"),
        (lambda: trained(treat_whitespace_as_suffix=True), "marks spaces after words"),
        (lambda: b"\xffnot a model", "no SentencePiece model"),
    ],
)
def test_a_base_that_cannot_serve_is_refused(
    context: RunContext, documents: Artifact, tmp_path: Path, model, message: str
):
    path = tmp_path / "base.model"
    path.write_bytes(model())
    with pytest.raises(InputError, match=message):
        build_vocab(context, documents, VocabConfig(base=path))


def test_a_base_that_is_not_there_is_named_before_any_work(context: RunContext, documents: Artifact, tmp_path: Path):
    with pytest.raises(InputError, match=r"vocab\.base: .*nowhere\.model does not exist"):
        build_vocab(context, documents, VocabConfig(base=tmp_path / "nowhere.model"))
    with pytest.raises(InputError, match="is a folder"):
        build_vocab(context, documents, VocabConfig(base=tmp_path))


def test_without_its_normaliser_a_base_gives_every_text_back_and_keeps_the_ids_of_text_it_left_alone(tmp_path: Path):
    path = tmp_path / "base.model"
    path.write_bytes(trained(normalization_rule_name="nmt_nfkc", remove_extra_whitespaces=True))
    theirs = sentencepiece.SentencePieceProcessor(model_proto=path.read_bytes())
    ours = SentencePieceTokenizer(prepare_base(VocabConfig(base=path, normaliser="none")))
    assert [ours.encode(text) for text in ENGLISH] == theirs.encode(ENGLISH)
    odd = " two  blanks，and a line\nend ﬁ"
    assert theirs.decode(theirs.encode(odd)) != odd
    assert ours.decode(ours.encode(odd)) == odd


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"extend": {"zh": 10}}, "`extend` applies only to a base"),
        ({"normaliser": "none"}, "`normaliser` applies only to a base"),
        ({"embedding_rows": 400}, "`embedding_rows` applies only to a base"),
        ({"model_type": "byte_level", "character_coverage": 0.99}, "does not apply to `byte_level`"),
        ({"base": Path("a.model"), "vocab_size": 400}, "`vocab_size` cannot be set with `base`"),
        ({"base": Path("a.model"), "model_type": "unigram"}, "`model_type` cannot be set with `base`"),
        ({"base": Path("a.model"), "extend": {"zh": 0}}, "greater than or equal to 1"),
        ({"base": Path("a.model"), "extend": {"it": 10}}, "Input should be 'ar', 'el', .* or 'zh'"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, object], message: str):
    with pytest.raises(ValidationError, match=message):
        VocabConfig.model_validate(settings)


def test_a_donor_counts_characters_and_the_merges_that_make_words():
    donor = train_candidates(lambda: ["钢铁厂"] * 40 + ["钢铁"] * 20 + ["转炉"] * 30, 3, 1.0)
    assert donor.characters == {"钢": 60, "铁": 60, "厂": 40, "转": 30, "炉": 30}
    assert dict(donor.words) == {"钢铁": 60, "钢铁厂": 40, "转炉": 30}


def test_candidates_are_in_the_order_of_the_tokens_that_they_save():
    """A character of three bytes saves two tokens wherever it is, a word one at each merge that makes it."""
    script = Script(CHINESE.ranges, ("炉",), spaced=False)
    donor = CandidateVocabulary(Counter({"钢": 60, "铁": 60, "厂": 10}), Counter({"钢铁": 60, "铁厂": 19}))
    assert donor.ranked(script) == ["钢", "铁", "钢铁", "厂", "铁厂", "炉"]
    assert CandidateVocabulary(Counter({"钢": 1000}), Counter({"钢铁": 39})).ranked(script) == ["钢", "炉", "钢铁"]


def test_characters_that_cover_a_share_of_the_text():
    counts = Counter("中中中中中中中中国人")
    assert [characters_to_cover(counts, share) for share in (0.8, 0.85, 0.95, 1.0)] == [1, 2, 3, 3]


def test_runs_are_the_stretches_of_a_script():
    assert list(CHINESE.runs("in 2015 中国steel，钢铁。")) == ["中国", "，钢铁。"]
    assert list(RUSSIAN.runs("да, нет  или steel сталь")) == ["да", " нет", " или", " сталь"]
    assert not CHINESE.occurs_in("steel, сталь")


@pytest.mark.skipif(not MISTRAL.exists(), reason="the folder of real vocabularies is not there")
def test_a_real_base_of_32000_pieces(context: RunContext, documents: Artifact):
    vocab = build_vocab(context, documents, VocabConfig(base=MISTRAL, extend={"zh": 2000}))
    before, after = SentencePieceTokenizer(MISTRAL.read_bytes()), open_tokenizer(vocab)
    assert after.vocab_size == 34_000
    assert before.leading_space
    assert unreachable_tokens(after.model) == []
    unmoved = [*ENGLISH, *RUSSIAN_TEXT, "   def indented(self):\n\treturn 0x1F\n"]
    assert [before.encode(text) for text in unmoved] == [after.encode(text) for text in unmoved]
    assert all(after.decode(after.encode(text)) == text for text in [*unmoved, *CHINESE_TEXT])
    assert sum(map(len, after.encode_batch(CHINESE_TEXT))) < 0.5 * sum(map(len, before.encode_batch(CHINESE_TEXT)))


def test_files_beside_a_base_that_say_how_texts_begin_are_an_input(
    context: RunContext, documents: Artifact, base: Path, tmp_path: Path
) -> None:
    mine, settings = tmp_path / "tokenizer.model", tmp_path / "tokenizer_config.json"
    mine.write_bytes(base.read_bytes())
    plain = build_vocab(context, documents, VocabConfig(base=mine))
    settings.write_text('{"add_bos_token": false}')
    assert build_vocab(context, documents, VocabConfig(base=mine)).path == plain.path
    settings.write_text('{"add_bos_token": true}')
    begun = build_vocab(context, documents, VocabConfig(base=mine))
    assert begun.path != plain.path
    assert (open_tokenizer(plain).begin, open_tokenizer(begun).begin) == (-1, 1)
