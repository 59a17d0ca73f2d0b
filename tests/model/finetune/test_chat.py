"""A GPT that learns conversations: the answers' tokens alone carry loss, adapters alone change, answers are learnt."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from model.checkpoint.weights import describe_model, load_model
from model.config.network import GPTConfig
from model.data.row_format import NO_LOSS
from model.engines.runtime import autocast
from model.errors import InputError, RecipeError
from model.finetune.chat import GPTTaskModel, answer_targets
from model.finetune.chat_template import ChatTemplate, Message, read_messages
from model.finetune.config import FinetuneConfig, read_task_file
from model.finetune.data import Truncation, read_examples
from model.finetune.lora import AdaptedLinear, merged_weights
from model.finetune.models import build_task_model
from model.finetune.output import read_result
from model.inference.device import choose_device
from model.nn.gpt import GPT
from tests.model.finetune.seeds_beside import finetune

CHATML = (
    "{% for message in messages %}"
    "{{ '<|begin|>' + message['role'] + '\\n' + message['content'] | trim + '<|end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|begin|>assistant\\n' }}{% endif %}"
)


class CharacterVocabulary:
    """Each ASCII character is a token, after the special ones."""

    def __init__(self) -> None:
        self.special_names = {"<pad>": 0, "</s>": 1, "<|begin|>": 2, "<|end|>": 3}
        self.eos, self.pad, self.cls, self.sep, self.vocab_size, self.digest = 1, 0, -1, -1, 132, "characters"
        self.begin = -1

    def encode(self, text: str) -> list[int]:
        return [4 + ord(character) for character in text]

    encode_following = encode

    def encode_with_offsets(self, text: str) -> Any:
        raise NotImplementedError

    def decode(self, ids: Any) -> str:
        return "".join(chr(int(token) - 4) for token in ids if token >= 4)

    decode_following = decode


VOCABULARY = CharacterVocabulary()
TURNS = (
    Message("system", "Be brief."),
    Message("user", "Tin?"),
    Message("assistant", "Soft."),
    Message("user", "<|end|>Iron?"),
    Message("assistant", "Hard."),
)
SPACED = (
    "{% for message in messages %}"
    "{{ '<|begin|>' + message['role'] + ': ' + message['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|begin|>assistant: ' }}{% endif %}"
)
PAIRS = [(f"What is {name}?", f"A metal, number {number}.") for number, name in enumerate("ABCDEFGHIJ")]


def spelled(ids: list[int]) -> str:
    names = {number: name for name, number in VOCABULARY.special_names.items()}
    return "".join(names[token] if token in names else chr(token - 4) for token in ids)


def template(source: str | None = None) -> ChatTemplate:
    return ChatTemplate.own(VOCABULARY) if source is None else ChatTemplate(source, "", "<|end|>")


@pytest.fixture
def network() -> GPT:
    config = GPTConfig(vocab_size=132, context=64, layers=2, heads=2, kv_heads=1, width=64)
    return GPT(config).initialise(1).eval()


@pytest.fixture
def chat_file(tmp_path: Path) -> Callable[..., FinetuneConfig]:
    """A task file with ten questions and answers, which also choose the epoch."""

    def make(pairs: list[tuple[str, str]] = PAIRS, more: str = "", **settings: object) -> FinetuneConfig:
        records = [
            {"messages": [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]}
            for asked, answer in pairs
        ]
        (tmp_path / "train.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        lines = [f"{name} = {json.dumps(value)}" for name, value in {"threads": 1, **settings}.items()]
        task = '[[tasks]]\nname = "metals"\nkind = "chat"\ntrain = "train.jsonl"\ndevelopment = "train.jsonl"\n'
        (tmp_path / "chat.toml").write_text("\n".join([*lines, more, task]))
        return read_task_file(tmp_path / "chat.toml")

    return make


def test_the_own_template_marks_exactly_the_answers_and_their_ends() -> None:
    found = template().conversation(TURNS, VOCABULARY)
    assert spelled(found.ids) == (
        "</s>System: Be brief.\nUser: Tin?\nAssistant: Soft.</s>User: <|end|>Iron?\nAssistant: Hard.</s>"
    )
    marked = [token for token, is_answer in zip(found.ids, found.is_answer, strict=True) if is_answer]
    assert spelled(marked) == " Soft.</s> Hard.</s>"
    assert VOCABULARY.special_names["<|end|>"] not in found.ids


def test_a_tokenizers_template_marks_the_answers_too() -> None:
    found = template(CHATML).conversation(TURNS, VOCABULARY)
    marked = [token for token, is_answer in zip(found.ids, found.is_answer, strict=True) if is_answer]
    assert spelled(marked) == "Soft.<|end|>Hard.<|end|>"
    # What people write is text, whatever it spells.
    assert found.ids.count(VOCABULARY.special_names["<|end|>"]) == 5
    assert "<|begin|>user\n<|end|>Iron?<|end|>\n" in spelled(found.ids)
    assert template(CHATML).end(VOCABULARY) == 3
    assert template().end(VOCABULARY) == 1


@pytest.mark.parametrize(
    ("source", "asked", "answer"),
    [
        (CHATML, "Tin?", "Soft."),
        (CHATML.replace(" | trim", ""), "\n Tin? \n", " Soft.\n"),
        (CHATML.replace(" | trim", ".strip('\\n')"), " Tin? ", " Soft."),
        (CHATML.replace(" | trim", ".lstrip('\\n')"), " Tin? \n", " Soft.\n"),
    ],
)
def test_messages_are_trimmed_where_the_template_trims_them(source: str, asked: str, answer: str) -> None:
    turns = (Message("user", "\n Tin? \n"), Message("assistant", " Soft.\n"))
    found = template(source).conversation(turns, VOCABULARY)
    assert spelled(found.ids) == f"<|begin|>user\n{asked}<|end|>\n<|begin|>assistant\n{answer}<|end|>\n"
    marked = [token for token, is_answer in zip(found.ids, found.is_answer, strict=True) if is_answer]
    assert spelled(marked) == f"{answer}<|end|>"


def test_a_space_before_an_answer_is_its_own_in_the_prompt_too() -> None:
    whole = template(SPACED).conversation(TURNS, VOCABULARY)
    prompt = template(SPACED).prompt(TURNS[:-1], VOCABULARY)
    marked = [token for token, is_answer in zip(whole.ids, whole.is_answer, strict=True) if is_answer]
    assert spelled(marked) == " Soft.<|end|> Hard.<|end|>"
    assert spelled(whole.ids[len(prompt) :]) == " Hard.<|end|>"


@pytest.mark.parametrize("source", [None, CHATML, SPACED])
def test_the_prompt_is_what_exists_before_the_answer(source: str | None) -> None:
    whole = template(source).conversation(TURNS, VOCABULARY)
    prompt = template(source).prompt(TURNS[:-1], VOCABULARY)
    assert whole.ids[: len(prompt)] == prompt
    after = spelled(whole.ids[len(prompt) :])
    assert after.strip() in ("Hard.</s>", "Hard.<|end|>")


def test_targets_are_the_answers_tokens_at_the_places_before_them() -> None:
    whole = template().conversation(TURNS, VOCABULARY)
    inputs, targets = answer_targets(whole, len(whole.ids))
    assert inputs == whole.ids[:-1]
    assert spelled([target for target in targets if target != NO_LOSS]) == " Soft.</s> Hard.</s>"
    for place, target in enumerate(targets):
        assert target in (NO_LOSS, whole.ids[place + 1])


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("{% for m in messages %}{{ m['content'] }};{% endfor %}", "no special token"),
        ("{% for m in messages %}{{ m['content'] }}{% endfor %}", "nothing after the last answer"),
        ("{{ messages[0]['content'] }}</s>", "was expected once"),
        ("{{ raise_exception('no system') }}", "no system"),
        ("{% for %}", "^the chat template is no Jinja"),
        ("{{ ''.__class__.__mro__ }}", "cannot write"),
    ],
)
def test_a_template_that_cannot_be_learnt_from_is_refused(source: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        template(source).conversation(TURNS, VOCABULARY)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("hello", "must be a list"),
        ([], "must be a list"),
        ([{"role": "user"}], "message 1 must have a role and content"),
        ([{"role": "assistant", "content": "x"}], "message 1 has the role 'assistant'"),
        ([{"role": "user", "content": "x"}] * 2, "message 2 has the role 'user', where assistant was expected"),
        ([{"role": "user", "content": "x"}], "its last must be of assistant"),
        ([{"role": "system", "content": "x"}, {"role": "assistant", "content": "x"}], "where user was expected"),
    ],
)
def test_messages_in_another_order_are_refused_by_line(value: object, problem: str) -> None:
    with pytest.raises(InputError, match=f"^line 3.*{problem}"):
        read_messages(value, "line 3", answered=True)


def test_the_loss_is_that_of_the_answers_tokens(network: GPT, chat_file: Callable[..., FinetuneConfig]) -> None:
    config = chat_file()
    task_model = build_task_model(network, config, {"metals": ()}, VOCABULARY, seed=1)
    assert isinstance(task_model, GPTTaskModel)
    examples = read_examples(config.tasks[0].train, config.tasks[0])
    task_model.prepare([examples], [Truncation()])
    nats, count = 0.0, 0
    for asked, answer in PAIRS[:3]:
        ids = [1, *VOCABULARY.encode(f"User: {asked}\nAssistant: {answer}"), 1]
        tail = len(answer) + 2
        log = network(torch.tensor([ids[:-1]])).log_softmax(-1)[0].detach()
        nats -= float(sum(log[place - 1, ids[place]] for place in range(len(ids) - tail, len(ids))))
        count += tail
    assert float(task_model.loss([0, 1, 2]).detach()) == pytest.approx(nats / count, rel=1e-5)


def test_a_conversation_that_is_too_long_loses_its_end(
    network: GPT, chat_file: Callable[..., FinetuneConfig], tmp_path: Path
) -> None:
    config = chat_file([("What is A?", "A" * 100), ("B" * 100, "long")])
    task_model = build_task_model(network, config, {"metals": ()}, VOCABULARY, seed=1)
    assert isinstance(task_model, GPTTaskModel)
    cut = Truncation()
    ((inputs, targets),) = task_model.rows(read_examples(config.tasks[0].train, config.tasks[0]), cut)
    assert len(inputs) == 64
    assert targets[-1] == VOCABULARY.encode("A")[0]
    assert cut.describe().startswith("2 of 2 examples cut")
    assert "1 without an answer in 64 tokens" in cut.describe()


@pytest.mark.parametrize("split", ["development", "test"])
def test_conversations_none_of_which_can_be_scored_are_refused_before_training(
    network: GPT, chat_file: Callable[..., FinetuneConfig], tmp_path: Path, split: str
) -> None:
    config = chat_file()
    long = {"messages": [{"role": "user", "content": "x" * 100}, {"role": "assistant", "content": "Tin."}]}
    (tmp_path / "long.jsonl").write_text(json.dumps(long))
    tasks = (config.tasks[0].model_copy(update={split: tmp_path / "long.jsonl"}),)
    lines: list[str] = []
    with pytest.raises(InputError, match="no held-out conversation has an answer in its first 64 tokens"):
        finetune(
            network, "p", config.model_copy(update={"tasks": tasks}), VOCABULARY, tmp_path / "out", log=lines.append
        )
    assert not [line for line in lines if line.startswith("seed 1, epoch")]


def test_ten_answers_are_learnt_by_heart_and_then_others_by_adapters(
    network: GPT, chat_file: Callable[..., FinetuneConfig], tmp_path: Path
) -> None:
    config = chat_file(epochs=75, batch_size=5, learning_rate=4e-3)
    lines: list[str] = []
    found = finetune(network, "parent", config, VOCABULARY, tmp_path / "out", log=lines.append)
    assert found["scores"]["development"]["metals"]["likelihood"] > 0.95
    records = [{"messages": [{"role": "user", "content": asked}]} for asked, _ in PAIRS]
    learnt = read_result(tmp_path / "out", VOCABULARY)
    assert learnt.answers(0, records) == [answer for _, answer in PAIRS]
    others = [(asked, PAIRS[-number][1]) for number, (asked, _) in enumerate(PAIRS)]
    config = chat_file(others, "[lora]\nr = 16\nalpha = 32\n", epochs=60, batch_size=5, learning_rate=1e-2)
    trained = load_model(tmp_path / "out")
    finetune(trained, "parent", config, VOCABULARY, tmp_path / "others", log=lines.append)
    answerer = read_result(tmp_path / "others", VOCABULARY)
    assert answerer.answers(0, records) == [answer for _, answer in others]
    assert torch.equal(answerer.task_model.network.embedding.weight, trained.get_parameter("embedding.weight"))


def test_adapters_alone_change_and_merged_weights_compute_the_same(
    network: GPT, chat_file: Callable[..., FinetuneConfig]
) -> None:
    config = chat_file(more='[lora]\nr = 4\ntargets = ["attention_query", "attention_value", "mlp_gate"]\n')
    task_model = build_task_model(network, config, {"metals": ()}, VOCABULARY, seed=1)
    assert isinstance(task_model, GPTTaskModel)
    modules = task_model.modules()
    before = {name: weight.clone() for name, weight in modules.state_dict().items()}
    tokens = torch.randint(0, 132, (2, 20), generator=torch.Generator().manual_seed(1))
    # B is zero at first, so that training begins at the model.
    torch.testing.assert_close(task_model.network(tokens), network(tokens))
    task_model.prepare([read_examples(config.tasks[0].train, config.tasks[0])], [Truncation()])
    optimizer = torch.optim.AdamW([one for one in modules.parameters() if one.requires_grad], lr=0.05)
    for _ in range(5):
        task_model.loss(range(10)).backward()
        optimizer.step()
        optimizer.zero_grad()
    changed = {name for name, weight in modules.state_dict().items() if not torch.equal(weight, before[name])}
    assert changed == {name for name in before if ".adapter_" in name}
    assert len(changed) == 2 * 3 * 2
    assert sum(isinstance(one, AdaptedLinear) for one in modules.modules()) == 6
    merged = GPT(network.config).eval()
    merged.load_state_dict({name.removeprefix("network."): one for name, one in merged_weights(modules).items()})
    expected = task_model.network(tokens)
    torch.testing.assert_close(merged(tokens), expected, atol=1e-5, rtol=0)
    assert float((expected - network(tokens)).detach().abs().max()) > 0.1


def test_an_interrupted_training_resumes_to_the_same_bytes(
    network: GPT, chat_file: Callable[..., FinetuneConfig], tmp_path: Path
) -> None:
    config = chat_file(epochs=2, seeds=[1, 2], learning_rate=1e-3)

    def stop(line: str) -> None:
        if line.startswith("seed 2, epoch 1"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        finetune(network, "parent", config, VOCABULARY, tmp_path / "stopped", log=stop)
    lines: list[str] = []
    finetune(network, "parent", config, VOCABULARY, tmp_path / "stopped", log=lines.append)
    assert lines[0].startswith("seed 1 was trained before")
    finetune(network, "parent", config, VOCABULARY, tmp_path / "whole", log=lines.append)
    first, second = (load_model(tmp_path / name).state_dict() for name in ("stopped", "whole"))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_the_balance_of_experts_has_a_gradient_and_no_loss(
    chat_file: Callable[..., FinetuneConfig],
) -> None:
    found = {}
    for balance in (0.0, 0.5):
        config = GPTConfig(vocab_size=132, context=64, layers=1, heads=2, width=32, experts=4, balance=balance)
        settings = chat_file()
        task_model = build_task_model(GPT(config).initialise(1), settings, {"metals": ()}, VOCABULARY, seed=1)
        assert isinstance(task_model, GPTTaskModel)
        task_model.prepare([read_examples(settings.tasks[0].train, settings.tasks[0])], [Truncation()])
        loss = task_model.loss([0, 1, 2])
        loss.backward()
        router = task_model.network.get_parameter("blocks.0.experts.router.weight")
        assert router.grad is not None
        found[balance] = (float(loss.detach()), router.grad.clone())
        router.grad, balances = None, list[torch.Tensor]()
        task_model._hidden([task_model._rows[number] for number in (0, 1, 2)], balances)
        torch.stack(balances).sum().backward()
        assert router.grad is not None
        found["balance"] = (0.0, router.grad)
    assert found[0.0][0] == found[0.5][0]
    torch.testing.assert_close(found[0.5][1] - found[0.0][1], 0.5 * found["balance"][1])
    assert float(found["balance"][1].abs().max()) > 1e-4


def test_products_in_bfloat16_train_float32_weights_as_well(
    network: GPT, chat_file: Callable[..., FinetuneConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a CUDA device does, in the processor's own bfloat16."""
    config = chat_file(epochs=40, batch_size=5, learning_rate=4e-3)
    exact = finetune(network, "parent", config, VOCABULARY, tmp_path / "exact", log=lambda line: None)

    @contextmanager
    def rounded(device: str, description: Mapping[str, Any]) -> Iterator[None]:
        assert (device, description["train"]["dtype"]) == ("cpu", "bfloat16")
        with autocast("bfloat16", torch.device(device)):
            yield

    monkeypatch.setattr("model.finetune.trainer.training_on", rounded)
    narrow = {"device": "cuda", "dtype": "bfloat16"}
    found = finetune(network, "parent", config, VOCABULARY, tmp_path / "out", log=lambda line: None, trained_on=narrow)
    assert {weight.dtype for weight in load_model(tmp_path / "out").state_dict().values()} == {torch.float32}
    ours, theirs = (one["scores"]["development"]["metals"]["likelihood"] for one in (found, exact))
    assert ours != theirs
    assert ours == pytest.approx(theirs, abs=0.05)
    assert describe_model(tmp_path / "out")["train"] == narrow


@pytest.mark.usefixtures("cuda")
def test_a_device_learns_and_answers_what_the_processor_does(
    network: GPT, chat_file: Callable[..., FinetuneConfig], tmp_path: Path
) -> None:
    records = [{"messages": [{"role": "user", "content": asked}]} for asked, _ in PAIRS[:3]]
    likelihoods, answers = [], []
    for device in ("cpu", "cuda"):
        config = chat_file(epochs=4, batch_size=5, learning_rate=4e-3, device=device)
        found = finetune(network, "parent", config, VOCABULARY, tmp_path / device, log=print)
        likelihoods.append(found["scores"]["development"]["metals"]["likelihood"])
        answers.append(read_result(tmp_path / device, VOCABULARY).answers(0, records))
    assert likelihoods[1] == pytest.approx(likelihoods[0], rel=1e-3)
    assert answers[1] == answers[0]


def test_it_computes_where_the_training_did_or_says_why_not(
    network: GPT, chat_file: Callable[..., FinetuneConfig], tmp_path: Path
) -> None:
    trained_on = {"device": "cuda", "dtype": "bfloat16"}
    if torch.cuda.is_available():
        assert choose_device(None, {"train": trained_on}) == "cuda"
        return
    assert choose_device(None, {"train": trained_on}) == "cpu"
    with pytest.raises(RecipeError, match=r"device is cuda, and PyTorch .* finds none"):
        finetune(network, "parent", chat_file(device="cuda"), VOCABULARY, tmp_path / "out", log=lambda line: None)


def test_what_a_gpt_cannot_learn_is_refused(network: GPT, bert, chat_file: Callable[..., FinetuneConfig]) -> None:
    config = chat_file()
    adapted = chat_file(more='[lora]\ntargets = ["mlp_up"]\n')
    text = config.tasks[0].model_copy(update={"kind": "text"})
    for model, chosen, kind, message in (
        (bert, config, RecipeError, "only a GPT learns conversations"),
        (network, config.model_copy(update={"template": "base"}), InputError, "template is base"),
        (network, adapted, RecipeError, "lora.targets names mlp_up"),
        (network, config.model_copy(update={"tasks": (text,)}), RecipeError, "learns one task of kind"),
    ):
        with pytest.raises(kind, match=re.escape(message)):
            build_task_model(model, chosen, {"metals": ()}, VOCABULARY, seed=1)
