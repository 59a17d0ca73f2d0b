"""Forms of tasks on networks whose answers can be worked out, and measures beside values from their papers."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from model.config.network import GPTConfig, T5Config
from model.errors import InputError
from model.nn.gpt import GPT
from model.nn.t5 import T5
from tasks.evaluate.benchmarks.generative import (
    ExtractionTask,
    GenerationTask,
    SummaryTask,
    TranslationTask,
    last_number,
    longest_common_subsequence,
    rouge,
)
from tasks.evaluate.benchmarks.items import Item
from tasks.evaluate.benchmarks.likelihood import CausalScorer, LikelihoodScorer, SpanScorer, read_until_stop
from tasks.evaluate.benchmarks.multiple_choice import MultipleChoiceTask, PartialScoringTask
from tasks.evaluate.benchmarks.prompts import Prompt, Requester, Response
from tasks.evaluate.benchmarks.run import benchmark_scores
from tasks.evaluate.config import PRIMARY_METRICS, EvaluateConfig, Scoring
from tasks.tokenizer.base import EOS, Tokenizer
from tasks.tokenizer.sentencepiece import SentencePieceTokenizer
from tasks.vocab.config import VocabConfig
from tasks.vocab.train import train_sentencepiece
from tests.model.inference.reference import continuation_log_probabilities, generate_tokens

TEXT = "the cat sat on the mat. the dog sat on the log. the bird sang in the tree. " * 40


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return SentencePieceTokenizer(train_sentencepiece([TEXT], VocabConfig(vocab_size=310)))


@pytest.fixture(scope="module")
def network(tokenizer: Tokenizer) -> GPT:
    return GPT(GPTConfig(vocab_size=310, context=64, layers=1, heads=2, width=16)).initialise(5).eval()


def written(text: str, *answers: str, context: str = "?", lang: str = "en") -> Response:
    item = Item("1", lang, context, answers[:1], 0, "", free=True, answers=answers)
    return Response(item, Prompt((EOS,), 0, fits=True), text=text)


def test_of_a_minimal_pair_the_likelier_sentence_is_the_answer(tokenizer: Tokenizer, network: GPT) -> None:
    pair = ("the cat sat on the mat.", "the mat sat on the cat.")
    sums = continuation_log_probabilities(network, [((EOS,), tokenizer.encode(text)) for text in pair])
    likelier = sums.index(max(sums))
    form = MultipleChoiceTask(PRIMARY_METRICS["pairs"], "sum")
    requester = Requester(CausalScorer(network), tokenizer, Scoring(form="pairs"), "")
    for answer in (0, 1):
        (one,) = form.request(requester, [(Item(str(answer), "en", "", pair, answer, ""), ())])
        assert one is not None
        assert one.log_probabilities == pytest.approx(tuple(sums))
        assert form.value(one) == float(answer == likelier)
        assert [figure.metric for figure in form.metrics([one])] == ["acc", "acc_bytes", "acc_chars"]


def test_a_winograd_schema_is_scored_by_its_ending_alone(tokenizer: Tokenizer, network: GPT) -> None:
    choices = ("the cat sat on the log", "the dog in the tree sat on the log")
    ends = [(EOS, *tokenizer.encode("the cat")), (EOS, *tokenizer.encode("the dog in the tree"))]
    ending = tokenizer.encode_following(" sat on the log")
    expected = continuation_log_probabilities(network, [(context, ending) for context in ends])
    requester = Requester(CausalScorer(network), tokenizer, Scoring(form="partial"), "")
    (one,) = PartialScoringTask().request(
        requester, [(Item("1", "en", "", choices, 0, "", ending="sat on the log"), ())]
    )
    assert one is not None
    assert one.log_probabilities == pytest.approx(tuple(expected))
    assert PartialScoringTask().value(one) == float(expected[0] >= expected[1])
    assert PartialScoringTask().request(requester, [(Item("2", "en", "", choices, 0, ""), ())]) == [None]


def test_the_context_of_a_schema_is_read_before_its_beginnings(tokenizer: Tokenizer, network: GPT) -> None:
    requester = Requester(CausalScorer(network), tokenizer, Scoring(form="partial"), "")
    pairs = [("", ("the cat sat on the log", "the dog sat on the log")), ("the cat", ("sat on the log",) * 2)]
    asked = [(Item(context, "en", context, choices, 0, "", ending="on the log"), ()) for context, choices in pairs]
    alone, after = PartialScoringTask().request(requester, asked)
    assert alone is not None
    assert after is not None
    assert after.log_probabilities == (alone.log_probabilities[0],) * 2


def test_all_beginnings_of_a_schema_follow_as_many_examples(tokenizer: Tokenizer) -> None:
    """Before the shorter one there would be room for the example."""
    choices, example = ("the cat sat on", "the dog and the cat sat on"), Item("2", "en", "on the", ("log",), 0, "")
    asked = Item("1", "en", "", choices, 0, "", ending="sat on")
    room = 1 + len(tokenizer.encode("on the log\n\nthe cat"))

    class Recording(LikelihoodScorer):
        prepends_opening = True
        max_choice_tokens = 99

        def __init__(self, most: int) -> None:
            self.most, self.seen = most, list[str]()

        def max_prompt_tokens(self, choice: int) -> int:
            return self.most

        def score(self, prompt: Sequence[int], choices: Sequence[Sequence[int]]) -> list[float]:
            self.seen.append(tokenizer.decode(prompt[1:]))
            return [0.0]

    for most, shown, shots in ((room, "", 0), (2 * room, "on the log\n\n", 1)):
        scorer = Recording(most)
        (found,) = PartialScoringTask().request(
            Requester(scorer, tokenizer, Scoring(form="partial"), ""), [(asked, [example])]
        )
        assert found is not None
        assert found.prompt.shots == shots
        assert scorer.seen == [f"{shown}the cat", f"{shown}the dog and the cat"]


def test_a_gpt_writes_what_it_generates_up_to_a_stop(tokenizer: Tokenizer, network: GPT) -> None:
    prompt = (EOS, *tokenizer.encode("the cat"))
    text = tokenizer.decode_following(generate_tokens(network, prompt, max_new_tokens=12, temperature=0.0, stop=EOS))
    choices = CausalScorer(network)
    assert choices.generate_texts([prompt], tokenizer, 12, ()) == [text]
    stop = text[4:6]
    assert choices.generate_texts([prompt], tokenizer, 12, (stop,)) == [text[: text.index(stop)]]


def test_nothing_is_drawn_behind_a_stop(tokenizer: Tokenizer) -> None:
    drawn: list[int] = []

    def tokens() -> Any:
        for token in tokenizer.encode("the cat sat on the mat. the dog"):
            drawn.append(token)
            yield token

    assert read_until_stop(tokens(), tokenizer, (".", "zzz")) == "the cat sat on the mat"
    assert tokenizer.decode(drawn) == "the cat sat on the mat."


def test_a_t5_writes_between_its_sentinels(tokenizer: Tokenizer) -> None:
    sentinels = {tokenizer.encode("z")[-1]}
    (mark,) = sentinels
    cat = tokenizer.encode("the cat")
    dog = tokenizer.encode_following(" the dog")
    assert read_until_stop([mark, *cat, mark, *dog], tokenizer, (), between=sentinels) == "the cat"
    assert read_until_stop([*cat, mark, *dog], tokenizer, (), between=sentinels) == "the cat"


def test_a_t5_that_fills_spans_writes_behind_a_prompt(tokenizer: Tokenizer) -> None:
    t5 = T5(T5Config(vocab_size=310, context=32, layers=1, heads=1, width=8)).eval()
    with torch.no_grad():
        for weight in t5.parameters():
            weight.zero_()
    # All tokens are equally likely and the first of equals is the unknown one, which has no bytes.
    assert SpanScorer(t5, 3, EOS, (7,)).generate_texts([tokenizer.encode("the")], tokenizer, 5, ()) == [""]


def test_a_written_benchmark_has_rows_for_every_subset(tokenizer: Tokenizer, network: GPT) -> None:
    item = Item("1", "en", "the cat", ("x",), 0, "", free=True, answers=("x",))
    requester = Requester(CausalScorer(network), tokenizer, Scoring(form="generation", answer_tokens=4), "")
    right = requester.generate_all([(item, ())])[0].text.strip()
    items = [
        Item("a", "en", "the cat", (right,), 0, "", free=True, answers=(right,)),
        Item("b", "en", "the cat", ("zzz",), 0, "", free=True, answers=("zzz",)),
    ]
    config = EvaluateConfig.model_validate(
        {"shots": (0,), "benchmarks": {"bench": {"form": "generation", "answer_tokens": 4}}}
    )
    found = benchmark_scores(
        CausalScorer(network), tokenizer, "bench", items, {"a": "leaked"}, config, advance=lambda done, total: None
    )
    values = {(row["metric"], row["subset"]): row["value"] for row in found.rows}
    assert values == {("exact", "all"): 0.5, ("exact", "clean"): None, ("exact", "leaked"): 1.0}
    assert not any("share a token with their context" in row["note"] for row in found.rows), "no choice was scored"


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("She pays $1,234.50.", "1234.5"),
        ("9 * 2 = <<9*2=18>>18 dollars.\n#### 18", "18"),
        ("about -3 or 007", "7"),
        ("5.00 and then 12.", "12"),
        ("-0.0", "0"),
        ("of 1.50", "1.5"),
        ("20-3", "3"),
        ("(4+5)-.5", "0.5"),
        ("COVID-19", "19"),
        ("$-7", "-7"),
        ("-.5", "-0.5"),
        ("none", None),
        ("", None),
    ],
)
def test_the_last_number_of_a_text(text: str, number: str | None) -> None:
    assert last_number(text) == number


def test_sums_are_right_by_their_last_number() -> None:
    form = GenerationTask(Scoring(form="generation", extract="last_number"))
    assert form.value(written(" 9 * 2 = 18. It is $18.00", "so 9*2.\n#### 18")) == 1.0
    assert form.value(written(" 18 of 19", "#### 18")) == 0.0
    assert form.value(written(" nothing", "nothing")) == 0.0


def test_free_text_is_right_as_squad_compares() -> None:
    form = GenerationTask(Scoring(form="generation"))
    assert form.value(written(" The Cat!", "dog", "a cat")) == 1.0
    assert form.value(written("two cats", "a cat")) == 0.0


def test_extracted_answers_are_compared_by_words_and_in_chinese_by_characters() -> None:
    form = ExtractionTask("f1")
    assert form.value(written("the big cat", "big dog", "cat")) == pytest.approx(2 / 3)
    assert form.value(written("光荣和", "光荣", context="由光荣开发", lang="zh")) == pytest.approx(4 / 5)
    figures = {figure.metric: figure for figure in form.metrics([written("cat", "the cat"), written("dog", "cat")])}
    assert (figures["f1"].measured.value, figures["exact"].measured.value) == (0.5, 0.5)
    assert figures["f1"].measured.stderr == pytest.approx(0.5)


def test_translations_are_those_of_sacrebleu() -> None:
    form = TranslationTask(Scoring(form="translation", target="zh"))
    same = written("敏捷的棕色狐狸", "敏捷的棕色狐狸")
    assert form.value(same) == pytest.approx(100.0)
    figures = {figure.metric: figure for figure in form.metrics([same, same])}
    assert figures["bleu"].measured.value == pytest.approx(100.0)
    assert figures["chrf"].measured.value == pytest.approx(100.0)
    assert "tok:zh" in figures["bleu"].note
    assert TranslationTask(Scoring()).value(written("abc", "xyz")) == 0.0


@pytest.mark.parametrize(
    ("lang", "tokeniser"),
    [("en", "13a"), ("zh-Hans", "zh"), ("ZH", "zh"), ("yue", "zh"), ("ja", "char"), ("km", "char"), ("ko", "char")],
)
def test_bleu_counts_characters_where_spaces_do_not_part_words(lang: str, tokeniser: str) -> None:
    figures = TranslationTask(Scoring()).metrics([written("abc", "abc", lang=lang)])
    assert f"tok:{tokeniser}|" in next(figure.note for figure in figures if figure.metric == "bleu")


@pytest.mark.parametrize("wrong", [{"shots": (-1,)}, {"temperatures": (-0.5,)}, {"benchmarks": {"b": {"stop": [""]}}}])
def test_settings_that_no_item_could_be_asked_with_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"should (be greater than or equal to 0|have at least 1 character)"):
        EvaluateConfig.model_validate(wrong)


def test_chrf_is_that_of_its_definition() -> None:
    # chrF2 of `ab` for `abc`: precision 1 and recall 2/3 of characters, 1 and 1/2 of pairs; no longer n-grams to match.
    precision, recall = (1 + 1) / 2, (2 / 3 + 1 / 2) / 2
    expected = 100 * 5 * precision * recall / (4 * precision + recall)
    assert TranslationTask(Scoring()).value(written("ab", "abc")) == pytest.approx(expected)


def test_rouge_of_a_sentence_from_its_paper() -> None:
    # Lin 2004, section 3: `police killed the gunman` beside `police kill the gunman` and `the gunman kill police`.
    right = ["police", "killed", "the", "gunman"]
    assert rouge(["police", "kill", "the", "gunman"], right, "rouge_l") == pytest.approx(3 / 4)
    assert rouge(["the", "gunman", "kill", "police"], right, "rouge_l") == pytest.approx(2 / 4)
    assert rouge(["police", "kill", "the", "gunman"], right, "rouge_1") == pytest.approx(3 / 4)
    assert rouge(["police", "kill", "the", "gunman"], right, "rouge_2") == pytest.approx(1 / 3)
    assert rouge([], right, "rouge_l") == 0.0
    assert SummaryTask("rouge_l").value(written("The gunman.", "a gunman", "the gunman")) == 1.0


@pytest.mark.parametrize(("one", "other", "length"), [("abcbdab", "bdcaba", 4), ("", "a", 0), ("aaa", "aa", 2)])
def test_the_longest_common_subsequence(one: Sequence[str], other: Sequence[str], length: int) -> None:
    assert longest_common_subsequence(one, other) == longest_common_subsequence(other, one) == length


def test_a_single_choice_is_not_compared(tokenizer: Tokenizer, network: GPT) -> None:
    free = Item("a", "en", "the cat", ("x",), 0, "", free=True, answers=("x",))
    config = EvaluateConfig.model_validate({"shots": (0,), "benchmarks": {"bench": {"form": "choice"}}})
    with pytest.raises(InputError, match=r"form = choice compares choices, and the item `a` has none"):
        benchmark_scores(
            CausalScorer(network), tokenizer, "bench", [free], {}, config, advance=lambda done, total: None
        )


def test_the_right_choice_can_be_asked_for_as_a_text(tokenizer: Tokenizer, network: GPT) -> None:
    item = Item("a", "en", "the cat", ("zz", "sat on"), 1, "", answers=("sat on",))
    config = EvaluateConfig.model_validate({"shots": (0,), "benchmarks": {"bench": {"form": "cloze"}}})
    found = benchmark_scores(
        CausalScorer(network), tokenizer, "bench", [item], {}, config, advance=lambda done, total: None
    )
    ids = (EOS, *tokenizer.encode("the cat"))
    (nats,) = continuation_log_probabilities(network, [(ids, tokenizer.encode_following(" sat on"))])
    bits = next(row["value"] for row in found.rows if row["metric"] == "answer_bits_per_byte")
    assert bits == pytest.approx(-nats / math.log(2) / 7, rel=1e-5)
