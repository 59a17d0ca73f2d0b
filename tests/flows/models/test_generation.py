"""A GPT goes on, a T5 fills blanks or goes on, a BERT fills them: through the command, from a folder with its words."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from flows.cli import app
from flows.models.generate import Blanks, decoded
from model.checkpoint.weights import save_model
from model.config.network import BERTConfig, GPTConfig, T5Config
from model.errors import InputError
from model.nn.factory import make_network
from tasks.models.load import write_vocabulary
from tasks.tokenizer.base import Tokenizer
from tasks.tokenizer.sentencepiece import SentencePieceTokenizer
from tasks.vocab.config import VocabConfig
from tasks.vocab.train import train_sentencepiece

SPECIAL = ("[CLS]", "[SEP]", "[MASK]")
SENTENCE = "the cat sat on a mat while some other dog ran far away from that old house near our green river"
WORDS = SENTENCE.split()
TEXTS = [" ".join(WORDS[(a * b) % len(WORDS)] for b in range(1, 12)) + "." for a in range(1, 60)]
SIZES = {"layers": 1, "heads": 2, "width": 16}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    config = VocabConfig.model_validate({"vocab_size": 400, "special_tokens": SPECIAL, "sentinels": 3})
    return SentencePieceTokenizer(train_sentencepiece(TEXTS, config))


@pytest.fixture
def model(tokenizer: Tokenizer, tmp_path: Path) -> Callable[..., Path]:
    """The folder of a network that was never trained, with its vocabulary."""

    def make(config: type[GPTConfig] | type[BERTConfig] | type[T5Config], **description: object) -> Path:
        chosen = config.model_validate({"vocab_size": tokenizer.vocab_size, "context": 32} | SIZES)
        weights = make_network(chosen).initialise(2).state_dict()
        save_model(tmp_path, chosen, weights, {"tokenizer_digest": tokenizer.digest, **description})
        write_vocabulary(tmp_path, tokenizer)
        return tmp_path

    return make


def generate(folder: Path, *words: str) -> Result:
    return CliRunner().invoke(app, ["model", "generate", str(folder), *words])


def test_a_gpt_writes_several_texts_of_one_seed(model: Callable[..., Path]) -> None:
    folder = model(GPTConfig)
    reported = generate(folder, "--prompt", "the cat", "--tokens", "8", "--samples", "3", "--top-k", "40")
    parts = re.split(r"^\[\d\]\n", reported.stdout, flags=re.MULTILINE)
    assert [part[:7] for part in parts] == ["", "the cat", "the cat", "the cat"]
    assert len(set(parts)) == 4
    found = json.loads(generate(folder, "--prompt", "the cat", "--tokens", "8", "--top-k", "40", "--json").stdout)
    assert parts[1] == f"the cat{found['text']}\n"


def test_it_says_what_of_a_long_prompt_no_longer_fits(model: Callable[..., Path]) -> None:
    folder, long = model(GPTConfig), "the cat sat on a mat. " * 20
    for more in ((), ("--samples", "2"), ("--json",)):
        reported = generate(folder, "--prompt", long, "--prompt", "the cat", "--tokens", "2", *more)
        assert len(re.findall(r"tokens the model reads the last 32", reported.stderr)) == 1
    assert generate(folder, "--prompt", "the cat", "--tokens", "2").stderr == ""


@pytest.mark.parametrize("words", [("model", "generate", "x", "--prompt"), ("data", "tokens")])
def test_a_text_that_is_not_utf_8_is_refused(words: tuple[str, ...]) -> None:
    """As the shell gives it: a byte that is no character is half of a surrogate pair."""
    done = CliRunner().invoke(app, [*words, "the \udcff"])
    assert done.exit_code == InputError.exit_code
    assert "is not UTF-8" in done.stderr


def test_a_t5_fills_holes_and_goes_on(model: Callable[..., Path]) -> None:
    folder = model(T5Config)
    prompt = "the ___ sat on <extra_id_0> mat."
    found = json.loads(generate(folder, "--prompt", prompt, "--tokens", "3", "--json").stdout)
    assert len(found["blanks"]) == 2
    assert re.fullmatch(r"the.+ sat on.+ mat\.", found["text"], re.DOTALL)
    on = generate(folder, "--prompt", "the cat", "--tokens", "3", "--seed", "5").stdout
    assert on.startswith("the cat")
    assert len(on.strip()) > len("the cat")


def test_a_fine_tuned_t5_answers_without_the_prompt(model: Callable[..., Path]) -> None:
    reported = generate(model(T5Config, finetuned={}), "--prompt", "question: the cat?", "--tokens", "5")
    assert reported.exit_code == 0
    assert "question" not in reported.stdout


def test_a_bert_fills_holes_and_says_what_else_it_thought_of(model: Callable[..., Path]) -> None:
    folder = model(BERTConfig)
    reported = generate(folder, "--prompt", "the ___ sat on [MASK] mat.", "--temperature", "0")
    assert re.fullmatch(r"the \S+ sat on \S+ mat\.\n", reported.stdout)
    assert reported.stderr.count("blank ") == 2
    found = json.loads(generate(folder, "--prompt", "___ cat", "--temperature", "0", "--json").stdout)
    (blank,) = found["blanks"]
    assert found["text"] == f"{blank['text']} cat"
    assert blank["likeliest"][0] == {"text": blank["text"], "probability": blank["probability"]}
    assert len(blank["likeliest"]) == 5


def test_a_bert_without_a_hole_says_what_to_write(model: Callable[..., Path]) -> None:
    reported = generate(model(BERTConfig), "--prompt", "the cat")
    assert reported.exit_code == 3
    assert "write ___ or [MASK]" in reported.stderr
    tuned = generate(model(BERTConfig, finetuned={}), "--prompt", "the ___")
    assert tuned.exit_code == 3
    assert "bessemer model predict" in tuned.stderr


def test_a_folder_with_half_a_vocabulary_is_refused(model: Callable[..., Path]) -> None:
    folder = model(GPTConfig)
    (folder / "tokenizer.model").unlink()
    reported = generate(folder, "--prompt", "the cat")
    assert reported.exit_code == 3
    assert "0 vocabularies" in reported.stderr


def test_a_blank_before_a_hole_belongs_to_its_filling(tokenizer: Tokenizer) -> None:
    blanks = Blanks.in_text("the ___ sat un___able")
    ids, places = blanks.encoded(tokenizer, [tokenizer.mask] * 2)
    assert [ids[place] for place in places] == [tokenizer.mask] * 2
    assert tokenizer.decode_bytes(ids[: places[0]]) == b"the"
    assert tokenizer.decode_bytes(ids[places[0] + 1 : places[1]]) == b" sat un"
    after_blank, inside = blanks.allowed(tokenizer, tokenizer.vocab_size)
    pieces = tokenizer.piece_bytes
    assert {pieces[i][:1] for i in after_blank.nonzero().flatten()} == {b" "}
    assert b" " not in {pieces[i][:1] for i in inside.nonzero().flatten()}
    assert not after_blank[list(tokenizer.special)].any()
    assert not inside[list(tokenizer.special)].any()
    assert blanks.filled(tokenizer, [" cat", "ask"]) == "the cat sat unaskable"
    assert Blanks.in_text("___ sat").filled(tokenizer, [" A cat"]) == "A cat sat"


def test_text_is_reported_in_whole_characters() -> None:
    written = [bytes([byte]) for byte in "aé中b".encode()]
    parts = list(decoded(iter(range(7)), lambda ids: b"".join(written[i] for i in ids).decode(errors="replace")))
    assert parts == ["a", "é", "中", "b"]
    cut = list(decoded(iter(range(5)), lambda ids: b"".join(written[i] for i in ids).decode(errors="replace")))
    assert "".join(cut) == "aé\ufffd"
