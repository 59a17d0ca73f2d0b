"""Prompts and accuracy on a model whose answers can be worked out by hand."""

import math

import pyarrow as pa
import pytest
import torch

from model.config.network import GPTConfig
from model.nn.gpt import GPT
from tasks.artifacts.tables.schema import ITEMS, LEAKS
from tasks.evaluate.benchmarks.items import (
    ExamplePool,
    Item,
    delimiter,
    items_of,
    leak_states,
    normalised,
    shuffle_items,
    words_of,
)
from tasks.evaluate.benchmarks.likelihood import CausalScorer
from tasks.evaluate.benchmarks.multiple_choice import MultipleChoiceTask, is_right
from tasks.evaluate.benchmarks.prompts import Requester, build_prompt, crosses_boundary
from tasks.evaluate.benchmarks.run import benchmark_scores
from tasks.evaluate.config import EvaluateConfig, Scoring
from tasks.evaluate.scores import mean_with_error
from tasks.tokenizer.base import EOS, Tokenizer
from tasks.tokenizer.sentencepiece import SentencePieceTokenizer
from tasks.vocab.config import VocabConfig
from tasks.vocab.train import train_sentencepiece
from tests.model.inference.reference import continuation_log_probabilities, generate_tokens

TEXT = "the cat sat on the mat. the dog sat on the log. the bird sang in the tree. " * 40


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return SentencePieceTokenizer(train_sentencepiece([TEXT], VocabConfig(vocab_size=310)))


def indifferent_network(vocab_size: int, context: int) -> GPT:
    """Every token is equally likely, so the log probability of a choice counts its tokens."""
    network = GPT(GPTConfig(vocab_size=vocab_size, context=context, layers=1, heads=1, width=8)).initialise(1)
    with torch.no_grad():
        network.embedding.weight.zero_()
    return network.eval()


def item(number: int, context: str = "", choices: tuple[str, ...] = ("yes", "no"), answer: int = 0) -> Item:
    context = context or f"question {number}?"
    return Item(f"id{number}", "en", context, choices, answer, context)


def scores(tokenizer, items, states=None, context=64, **settings):
    found = benchmark_scores(
        CausalScorer(indifferent_network(tokenizer.vocab_size, context)),
        tokenizer,
        "bench",
        items,
        states or {},
        EvaluateConfig(**{"shots": (0,), **settings}),
        advance=lambda done, total: None,
    )
    return {(row["metric"], row["shots"], row["subset"]): row for row in found.rows}


def test_sum_prefers_few_tokens_and_bytes_prefers_long_tokens(tokenizer):
    # " the cat sat" is 12 bytes in few tokens; "z" is spelled apart: 2 bytes in 2 tokens or fewer.
    short, long = "z", "the cat sat"
    assert len(tokenizer.encode(" " + short)) < len(tokenizer.encode(" " + long))
    assert len(tokenizer.encode(" " + long)) / 12 < len(tokenizer.encode(" " + short)) / 2
    items = [item(number, choices=(short, long), answer=1) for number in range(10)]
    found = scores(tokenizer, items)
    assert found["acc", 0, "all"]["value"] == found["acc_chars", 0, "all"]["value"] == 1.0
    assert found["acc_sum", 0, "all"]["value"] == 0.0
    assert found["acc", 0, "all"]["note"].startswith("per bytes; chance 0.500")
    assert scores(tokenizer, items, primary="sum")["acc", 0, "all"]["value"] == 0.0


def test_subsets_follow_the_leaks_and_unmatchable_items_count_in_all_only(tokenizer):
    items = [item(number, choices=("the cat sat", "z"), answer=number % 2) for number in range(6)]
    states = {"id0": "leaked", "id2": "leaked", "id1": "clean", "id3": "clean", "id4": "clean", "id5": "unmatchable"}
    found = scores(tokenizer, items, states)
    by_subset = {subset: found["acc", 0, subset] for subset in ("all", "clean", "leaked")}
    assert [row["n"] for row in by_subset.values()] == [6, 3, 2]
    assert [row["value"] for row in by_subset.values()] == [0.5, pytest.approx(1 / 3), 1.0]
    assert by_subset["all"]["stderr"] == pytest.approx(math.sqrt(0.25 / 5))
    assert "1 unmatchable items count in `all` only" in by_subset["all"]["note"]
    assert "fewer than 50 clean items" in by_subset["clean"]["note"]


def test_a_subset_without_items_has_no_value(tokenizer):
    row = scores(tokenizer, [item(1)])["acc", 0, "leaked"]
    assert (row["n"], row["value"], row["stderr"]) == (0, None, None)


def test_accuracy_and_its_standard_error():
    assert mean_with_error([]) == (None, None)
    assert mean_with_error([True]) == (1.0, None)
    assert mean_with_error([True] * 50 + [False] * 50) == (0.5, pytest.approx(math.sqrt(0.25 / 99)))


def test_an_item_is_never_its_own_example_nor_is_its_double(tokenizer):
    twin = Item("twin", "en", "QUESTION one...?", ("yes", "no"), 0, "other")
    items = [item(1, "Question  one?"), twin, item(2, "question two?"), item(3, "question three?")]
    pool = ExamplePool(items)
    for shots in (1, 2, 5):
        ids = [example.item_id for example in pool.examples(items[0], shots)]
        assert ids == ["id3", "id2"][:shots]
    assert [example.item_id for example in pool.examples(items[2], 5)] == ["id3", "twin", "id1"]


def test_same_passage_to_look_for_is_the_same_text():
    one = Item("a", "en", "context one", ("x",), 0, "the shared passage")
    two = Item("b", "en", "context two", ("x",), 0, "The shared passage!")
    assert ExamplePool([one, two]).examples(one, 1) == []


def test_a_prompt_shows_examples_with_their_right_answers(tokenizer):
    examples = [item(1, "the cat?", ("sat", "log"), 0), item(2, "the dog?", ("sat", "log"), 1)]
    asked = item(3, "the bird?")
    prompt = build_prompt(asked, examples, tokenizer, instruction="Answer.", max_tokens=1000)
    assert tokenizer.decode(prompt.ids) == "Answer.\n\nthe dog? log\n\nthe cat? sat\n\nthe bird?"
    assert prompt.ids[0] == EOS
    assert (prompt.shots, prompt.fits) == (2, True)


def test_a_full_window_drops_whole_examples_from_the_front(tokenizer):
    examples = [item(1, "the cat?", ("sat",)), item(2, "the dog?", ("log",))]
    asked = item(3, "the bird?")
    whole = build_prompt(asked, examples, tokenizer, instruction="", max_tokens=1000)
    tight = build_prompt(asked, examples, tokenizer, instruction="", max_tokens=len(whole.ids) - 1)
    assert tokenizer.decode(tight.ids) == "the cat? sat\n\nthe bird?"
    assert (tight.shots, tight.fits) == (1, True)
    none = build_prompt(asked, examples, tokenizer, instruction="", max_tokens=3)
    assert tokenizer.decode(none.ids) == "the bird?"
    assert (none.shots, none.fits) == (0, False)


def test_more_shots_than_fit_ask_the_same_as_fewer(tokenizer):
    examples = [item(1, "the cat?", ("sat",)), item(2, "the dog?", ("log",))]
    asked = item(3, "the bird?")
    one = build_prompt(asked, examples[:1], tokenizer, instruction="", max_tokens=1000)
    assert build_prompt(asked, examples, tokenizer, instruction="", max_tokens=len(one.ids)) == one


def test_notes_count_what_did_not_fit(tokenizer):
    items = [item(number) for number in range(8)]
    found = scores(tokenizer, items, context=24, shots=(5,), max_items=4)
    note = found["acc", 5, "all"]["note"]
    assert "4 of 8 items drawn" in note
    assert "examples on average: 4 of 4 items leave room for less than 5" in note
    assert found["acc", 5, "all"]["n"] == 4


def test_a_choice_longer_than_the_window_takes_its_item_out_and_is_counted(tokenizer):
    found = scores(tokenizer, [item(1), item(2, choices=("yes", "zq" * 40))], context=16)
    assert found["acc", 0, "all"]["n"] == 1
    assert "1 items not scored" in found["acc", 0, "all"]["note"]


def test_a_context_longer_than_the_window_is_cut_the_same_for_every_choice(tokenizer):
    found = scores(tokenizer, [item(1, "the cat sat on the mat. " * 30)], context=16)
    assert "1 contexts cut to the window" in found["acc", 0, "all"]["note"]


def test_free_answers_are_measured_in_bits_per_byte(tokenizer):
    free = Item("free", "en", "what?", ("the cat",), 0, "what?", free=True)
    found = scores(tokenizer, [free])
    row = found["answer_bits_per_byte", 0, "all"]
    tokens = len(tokenizer.encode(" the cat"))
    assert row["value"] == pytest.approx(tokens * math.log2(310) / 8, rel=1e-5)
    assert ("acc", 0, "all") not in found
    # All tokens are equally likely, and the first of equals, the unknown token, spells nothing.
    assert found["exact", 0, "all"]["value"] == 0.0


def test_an_answer_is_spelled_when_the_likeliest_tokens_are_its_own(tokenizer):
    network = GPT(GPTConfig(vocab_size=310, context=16, layers=1, heads=2, width=16)).initialise(3).eval()
    context = tokenizer.encode("the cat")
    likeliest = generate_tokens(network, context, max_new_tokens=4, temperature=0.0)
    can_generate = CausalScorer(network).is_greedy
    assert can_generate(context, likeliest)
    assert not can_generate(context, [*likeliest[:3], (likeliest[3] + 1) % 310])
    assert not can_generate(context, [(likeliest[0] + 1) % 310, *likeliest[1:]])


@pytest.mark.parametrize(
    ("context", "choice", "lang", "expected"),
    [
        ("Is it?", "yes", "en", " "),
        ("Is it? ", "yes", "en", ""),
        ("Is it?", " yes", "en", ""),
        ("", "yes", "en", ""),
        ("是吗？", "是", "zh", ""),
        ("是吗？", "是", "zh-Hans", ""),
        ("是吗？", "是", None, ""),
        ("Is it?", "yes", None, " "),
        ("作者是", "《红楼梦》的", None, ""),
        ("一共有几个？", "42", None, ""),
        ("How many?", "42", None, " "),
        ("Who said it?", "“Nobody.”", None, " "),
        ("1 + 1 =", "2", None, " "),
        ("ﾊｲ?", "ﾊｲ", None, ""),
        ("ແມ່ນບໍ?", "ແມ່ນ", None, ""),
        ("ཨིན་ནམ།", "ཨིན", None, ""),
    ],
)
def test_a_blank_is_before_the_answer_only_in_scripts_with_blanks(context, choice, lang, expected):
    assert delimiter(context, choice, lang) == expected


def test_normalised_text_ignores_case_width_and_punctuation():
    assert normalised("Ｑｕｅｓｔｉｏｎ, One!") == "questionone"


def test_items_are_drawn_by_their_ids_alone():
    items = [item(number) for number in range(20)]
    forward = shuffle_items(items, "bench", 1)
    assert forward == shuffle_items(items[::-1], "bench", 1)
    assert forward != items
    assert forward != shuffle_items(items, "bench", 2)


def leaks_of_a_run(benchmark: str, **states: str) -> pa.Table:
    rows = [
        {"benchmark": benchmark, "item_id": item, "state": state, "form": "", "matched": 0, "total": 1, "remains": 0}
        for item, state in states.items()
    ]
    return pa.Table.from_pylist(rows, schema=LEAKS)


def test_an_item_is_leaked_by_one_run_and_clean_where_every_run_searched_for_it():
    last = leaks_of_a_run("bench", a="clean", b="clean", c="clean", d="unmatchable")
    earlier = leaks_of_a_run("bench", a="leaked", b="unmatchable", c="clean", d="clean", gone="leaked")
    assert leak_states([last], "bench") == {"a": "clean", "b": "clean", "c": "clean", "d": "unmatchable"}
    expected = {"a": "leaked", "b": "unmatchable", "c": "clean", "d": "unmatchable"}
    assert leak_states([earlier, last], "bench") == expected
    other = leaks_of_a_run("other", a="clean", b="leaked", c="clean")
    assert leak_states([other, last], "bench") == dict.fromkeys("abcd", "unmatchable")


def test_an_item_that_shares_thirteen_words_is_no_example():
    words = [f"w{number}" for number in range(40)]
    asked = item(1, " ".join(words[:20]))
    twelve = item(2, " ".join([*words[8:20], "other", "end"]))
    thirteen = item(3, " ".join(["start", *words[4:17], "stop"]))
    others = [item(number, f"entirely different question number {number}") for number in range(4, 8)]
    pool = ExamplePool([asked, twelve, thirteen, *others])
    chosen = {example.item_id for example in pool.examples(asked, 10)}
    assert chosen == {"id2", "id4", "id5", "id6", "id7"}


def test_thirteen_characters_are_thirteen_words_where_there_are_no_blanks():
    asked = item(1, "敏捷的棕色狐狸跳过了那只懒惰的狗和猫")
    near = item(2, "敏捷的棕色狐狸跳过了那只懒鸟")
    far = item(3, "敏捷的棕色狐狸跳过了，两只鸟")
    pool = ExamplePool([asked, near, far, item(4, "今天天气很好"), item(5, "明天下雨")])
    assert {example.item_id for example in pool.examples(asked, 10)} == {"id3", "id4", "id5"}
    assert words_of("GPT敏捷 the Кот-2x") == ["gpt", "敏", "捷", "the", "кот", "2x"]
    assert words_of("ພາສາ ལགཔ་") == ["ພ", "າ", "ສ", "າ", "ལགཔ"]
    assert words_of("हिन्दी में مَرْحَبًا ดีมาก") == ["हिन्दी", "में", "مَرْحَبًا", "ดี", "ม", "า", "ก"]


def test_the_form_of_asking_of_a_benchmark_gives_nothing_away():
    template = "the following paragraphs each describe a set of five objects arranged in a fixed order"
    items = [item(number, f"{template} case {number}") for number in range(30)]
    assert len(ExamplePool(items).examples(items[0], 5)) == 5


def test_choices_are_in_an_order_of_the_items_own_so_that_equals_favour_no_place():
    columns = {"benchmark": "bench", "lang": "en", "context": "", "match_text": "", "choices": ["good", "bad"]}
    rows = [{**columns, "item_id": f"id{number}", "answer": "0"} for number in range(400)]
    items = items_of(pa.Table.from_pylist(rows, schema=ITEMS), "bench")
    assert all(one.choices[one.answer] == "good" for one in items)
    first = sum(one.answer == 0 for one in items)
    assert 160 < first < 240
    assert items == items_of(pa.Table.from_pylist(rows[::-1], schema=ITEMS), "bench")[::-1]


def test_what_a_choice_is_worth_without_the_question_is_divided_out(tokenizer):
    """A network that finds every token equally likely finds every choice as likely with the question as without."""
    items = [item(number, choices=("z", "the cat sat"), answer=number % 2) for number in range(10)]
    found = scores(tokenizer, items)
    assert found["acc_unconditional", 0, "all"]["value"] == 0.5
    assert found["acc_bytes" if ("acc_bytes", 0, "all") in found else "acc", 0, "all"]["value"] == 0.5
    network = GPT(GPTConfig(vocab_size=310, context=64, layers=1, heads=2, width=16)).initialise(3).eval()
    requester = Requester(CausalScorer(network), tokenizer, Scoring(), "")
    (one,) = MultipleChoiceTask(("sum", "unconditional"), "unconditional").request(requester, [(items[0], ())])
    assert one is not None
    continuations = [tokenizer.encode_following(text) for text in items[0].continuations]
    alone = continuation_log_probabilities(network, [((EOS, *tokenizer.encode("Answer:")), c) for c in continuations])
    asked = continuation_log_probabilities(
        network, [((EOS, *tokenizer.encode("question 0?")), c) for c in continuations]
    )
    assert one.unconditional == pytest.approx(tuple(alone))
    gains = [reported - without for reported, without in zip(asked, alone, strict=True)]
    assert is_right(one, "unconditional", items[0].continuations) is (gains.index(max(gains)) == 0)


def test_choices_whose_tokens_lie_across_the_border_are_counted(tokenizer):
    # Where no blank is between, `the c` and `at` are read as `the cat` together.
    across = Item("across", "zh", "on the c", ("at", "zz"), 0, "")
    assert crosses_boundary(tokenizer, "on the c", "at")
    assert not crosses_boundary(tokenizer, "on the", " cat")
    assert not crosses_boundary(tokenizer, "", "cat")
    note = scores(tokenizer, [across])["acc", 0, "all"]["note"]
    assert "1 of 2 choices share a token with their context" in note


def test_the_primary_of_a_benchmark_is_declared_and_kept_for_every_item(tokenizer):
    short, long = "z", "the cat sat"
    items = [item(number, choices=(short, long), answer=1) for number in range(4)]
    config = EvaluateConfig.model_validate({"shots": (0, 1), "benchmarks": {"bench": {"primary": "sum", "shots": [0]}}})
    choices = CausalScorer(indifferent_network(tokenizer.vocab_size, 64))
    states = {"id0": "leaked", "id1": "clean"}
    found = benchmark_scores(choices, tokenizer, "bench", items, states, config, advance=lambda done, total: None)
    assert {row["shots"] for row in found.rows} == {0}
    assert next(row for row in found.rows if row["metric"] == "acc")["note"].startswith("per sum")
    kept = {row["item_id"]: (row["metric"], row["shots"], row["state"], row["value"]) for row in found.items}
    assert kept["id0"] == ("acc", 0, "leaked", 0.0)
    assert kept["id3"] == ("acc", 0, "unmatchable", 0.0)
    assert [(row["leaked_n"], row["clean_n"], row["difference"]) for row in found.gaps] == [(1, 1, 0.0)]


def test_leaked_items_that_score_beyond_chance_are_reported(tokenizer):
    items = [item(number, choices=("the cat sat", "z"), answer=int(number >= 30)) for number in range(60)]
    states = {f"id{number}": "leaked" if number < 30 else "clean" for number in range(60)}
    config = EvaluateConfig(shots=(0,))
    choices = CausalScorer(indifferent_network(tokenizer.vocab_size, 64))
    found = benchmark_scores(choices, tokenizer, "bench", items, states, config, advance=lambda done, total: None)
    (gap,) = found.gaps
    assert (gap["difference"], gap["beyond_chance"], gap["p"]) == (1.0, True, 1e-4)
    rows = {row["subset"]: row["note"] for row in found.rows if row["metric"] == "acc"}
    for subset in ("clean", "leaked"):
        assert "leaked items score 1.000 above clean ones, beyond chance (p 0.0001)" in rows[subset]
    assert "beyond chance" not in rows["all"]


def test_a_primary_that_its_form_does_not_have_is_refused():
    with pytest.raises(ValueError, match="f1 is not a metric of choice"):
        EvaluateConfig.model_validate({"benchmarks": {"quiz": {"form": "choice", "primary": "f1"}}})
