"""Our scorer and EleutherAI's harness agree on local tasks: log probabilities, accuracy, bits per byte, exact match."""

import json
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from model.config.network import GPTConfig
from model.errors import InputError
from model.nn.gpt import GPT
from tasks.evaluate.benchmarks.items import Item
from tasks.evaluate.benchmarks.likelihood import CausalScorer
from tasks.evaluate.benchmarks.multiple_choice import MultipleChoiceTask
from tasks.evaluate.benchmarks.prompts import Requester
from tasks.evaluate.benchmarks.run import benchmark_scores
from tasks.evaluate.config import PRIMARY_METRICS, EvaluateConfig, Scoring
from tasks.evaluate.heldout import HeldoutDocument, encode_sources
from tasks.evaluate.perplexity import heldout_scores, unigram_code_lengths
from tasks.tokenizer.base import Tokenizer
from tasks.tokenizer.sentencepiece import SentencePieceTokenizer
from tasks.vocab.config import VocabConfig
from tasks.vocab.train import train_sentencepiece

pytest.importorskip("lm_eval", reason="the extra `lmeval` is not installed")

from lm_eval.tasks import TaskManager

from flows.models.harness import HarnessModel, evaluate, harness_scores
from tasks.models.load import Trained

TEXT = "the cat sat on the mat. the dog sat on the log. the bird sang in the tree. 猫坐在垫子上。狗坐在木头上。 " * 40
QUIZ = [
    {"id": str(number), "question": question, "choices": ["on the mat", "in the tree", "log"], "answer": number % 3}
    for number, question in enumerate(
        [
            "where did the cat sit?",
            "where did the bird sing?",
            "the dog sat",
            "the cat",
            "the bird in the tree sat",
            "a log",
        ]
    )
]
CHINESE = [
    {"id": "zh1", "question": "猫坐在", "choices": ["垫子上", "木头上"], "answer": 0},
    {"id": "zh2", "question": "狗坐在木", "choices": ["头上", "子上。"], "answer": 0},
]
CHOICES = """
task: {name}
dataset_path: json
dataset_kwargs:
  data_files: {{test: {file}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{answer}}}}"
target_delimiter: "{delimiter}"
metric_list: [{{metric: acc}}, {{metric: acc_norm}}]
"""
ROLLING = """
task: text
dataset_path: json
dataset_kwargs:
  data_files: {{test: {file}}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{{{text}}}}"
metric_list: [{{metric: bits_per_byte}}, {{metric: word_perplexity}}]
"""
WRITTEN = """
task: written
dataset_path: json
dataset_kwargs:
  data_files: {{test: {file}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{answer}}}}"
generation_kwargs: {{until: ["."], max_gen_toks: 8, do_sample: false}}
metric_list: [{{metric: exact_match}}]
"""


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return SentencePieceTokenizer(train_sentencepiece([TEXT], VocabConfig(vocab_size=350)))


@pytest.fixture(scope="module")
def network(tokenizer: Tokenizer) -> GPT:
    network = GPT(GPTConfig(vocab_size=tokenizer.vocab_size, context=64, layers=2, heads=2, width=32))
    return network.initialise(11).eval()


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The library that reads the harness's files keeps copies: here."""
    import datasets.config

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)


def task(folder: Path, name: str, yaml: str, records: list[dict[str, Any]], **words: str) -> TaskManager:
    file = folder / f"{name}.jsonl"
    file.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records), encoding="utf-8")
    tasks = folder / "tasks"
    tasks.mkdir(exist_ok=True)
    (tasks / f"{name}.yaml").write_text(yaml.format(name=name, file=file, **words), encoding="utf-8")
    return TaskManager(include_path=str(tasks), include_defaults=False)


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize(("name", "records", "lang", "blank"), [("quiz", QUIZ, "en", " "), ("zh", CHINESE, "zh", "")])
def test_choices_have_the_same_log_probabilities_and_accuracy(
    tmp_path: Path, tokenizer: Tokenizer, network: GPT, name: str, records: list[Any], lang: str, blank: str
) -> None:
    found = evaluate(
        HarnessModel(network, tokenizer), task(tmp_path, name, CHOICES, records, delimiter=blank), [name], shots=0
    )
    theirs = {
        sample["doc"]["id"]: [float(one[0]) for one in sample["filtered_resps"]] for sample in found["samples"][name]
    }
    items = [
        Item(one["id"], lang, one["question"], tuple(one["choices"]), one["answer"], one["question"]) for one in records
    ]
    choices = CausalScorer(network)
    requester = Requester(choices, tokenizer, Scoring(), "")
    normed = 0
    for item in items:
        (ours,) = MultipleChoiceTask(PRIMARY_METRICS["choice"], "sum").request(requester, [(item, ())])
        assert ours is not None
        assert list(ours.log_probabilities) == pytest.approx(theirs[item.item_id], rel=1e-5)
        by_length = [reported / len(text) for reported, text in zip(ours.log_probabilities, item.choices, strict=True)]
        normed += by_length.index(max(by_length)) == item.answer
    scored = benchmark_scores(
        choices, tokenizer, name, items, {}, EvaluateConfig(shots=(0,)), advance=lambda done, total: None
    )
    accuracy = next(row["value"] for row in scored.rows if (row["metric"], row["subset"]) == ("acc_sum", "all"))
    assert found["results"][name]["acc,none"] == pytest.approx(accuracy)
    assert found["results"][name]["acc_norm,none"] == pytest.approx(normed / len(items))


@pytest.mark.usefixtures("offline")
def test_bits_per_byte_are_the_same(tmp_path: Path, tokenizer: Tokenizer, network: GPT) -> None:
    texts = ["the cat sat on the mat. " * 30, "狗坐在木头上。"]
    manager = task(tmp_path, "text", ROLLING, [{"text": text} for text in texts])
    found = evaluate(HarnessModel(network, tokenizer), manager, ["text"])
    rows = heldout_scores(
        network,
        tokenizer.eos,
        encode_sources(tokenizer, {"all of it": [HeldoutDocument(b"", 0, text, None) for text in texts]}),
        unigram_code_lengths(pa.table({"token": [0], "count": [0]}), tokenizer.vocab_size),
        EvaluateConfig(batch_tokens=256, bootstrap_rounds=10, seed=1),
        advance=lambda done: None,
    ).rows
    ours = next(row["value"] for row in rows if row["metric"] == "bits_per_byte")
    assert found["results"]["text"]["bits_per_byte,none"] == pytest.approx(ours, rel=1e-6)
    assert math.log2(tokenizer.vocab_size) > ours


@pytest.mark.usefixtures("offline")
def test_written_answers_match_as_often(tmp_path: Path, tokenizer: Tokenizer, network: GPT) -> None:
    scoring = Scoring(form="generation", stop=(".",), answer_tokens=8)
    requester = Requester(CausalScorer(network), tokenizer, scoring, "")
    item = Item("a", "en", "the cat", ("x",), 0, "", free=True, answers=("x",))
    said = requester.generate_all([(item, ())])[0].text
    records = [{"question": "the cat", "answer": said}, {"question": "the dog", "answer": "never said"}]
    manager = task(tmp_path, "written", WRITTEN, records)
    found = evaluate(HarnessModel(network, tokenizer), manager, ["written"])
    assert found["results"]["written"]["exact_match,none"] == 0.5


@pytest.mark.usefixtures("offline")
def test_a_task_that_is_not_there_is_named(tmp_path: Path, tokenizer: Tokenizer, network: GPT) -> None:
    task(tmp_path, "quiz", CHOICES, QUIZ, delimiter=" ")
    trained = Trained(tmp_path, network, tokenizer, {})
    with pytest.raises(InputError, match=r"has no task `piqa` \(it has quiz\)"):
        harness_scores(trained, tmp_path / "tasks", ["piqa"])
    scores = harness_scores(trained, tmp_path / "tasks", ["quiz"], shots=0, limit=3)
    assert 0 <= scores["quiz"]["acc,none"] <= 1


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize(
    ("right", "wrong", "reported"),
    [
        ("quiz.jsonl", "absent.jsonl", r"FileNotFoundError: .*absent\.jsonl.*relative paths in `data_files`"),
        ("{{question}}", "{{no_field}}", "'no_field' is undefined"),
        ("multiple_choice", "many_choices", "invalid output_type 'many_choices'"),
    ],
)
def test_a_task_that_the_harness_cannot_load_is_no_bug_of_ours(
    right: str, wrong: str, reported: str, tmp_path: Path, tokenizer: Tokenizer, network: GPT
) -> None:
    task(tmp_path, "quiz", CHOICES, QUIZ, delimiter=" ")
    (file,) = (tmp_path / "tasks").glob("*.yaml")
    text = file.read_text()
    file.write_text(text.replace(right, wrong))
    assert file.read_text() != text
    with pytest.raises(InputError, match=f"(?s)harness: quiz: .*{reported}"):
        harness_scores(Trained(tmp_path, network, tokenizer, {}), tmp_path / "tasks", ["quiz"])


@pytest.mark.usefixtures("offline")
def test_an_error_of_our_model_stays_a_bug_and_a_folder_that_is_none_is_named(
    tmp_path: Path, tokenizer: Tokenizer, network: GPT, monkeypatch: pytest.MonkeyPatch
) -> None:
    task(tmp_path, "quiz", CHOICES, QUIZ, delimiter=" ")
    trained = Trained(tmp_path, network, tokenizer, {})
    with pytest.raises(InputError, match=r"--folder .*nowhere is no folder"):
        harness_scores(trained, tmp_path / "nowhere", ["quiz"])

    def broken(*_: Any) -> float:
        raise ValueError("a fault of the scorer")

    monkeypatch.setattr(CausalScorer, "score", broken)
    with pytest.raises(ValueError, match="a fault of the scorer"):
        harness_scores(trained, tmp_path / "tasks", ["quiz"])
