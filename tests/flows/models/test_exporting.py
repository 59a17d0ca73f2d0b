"""`bessemer model export`: transformers loads model and tokenizer, and computes and tokenizes as here. `bessemer model
presets`."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from typer.testing import CliRunner

from flows.cli import app
from flows.models.load import open_trained
from flows.recipe.counts import parse_size
from flows.runs.record import list_runs
from model.checkpoint.weights import load_model, save_model
from model.checksummed_json import write_sealed
from model.config.network import BERTConfig, GPTConfig, NetworkConfig, T5Config
from model.config.presets import PRESETS
from model.digests import digest_file
from model.errors import InputError, RecipeError
from model.huggingface.io import export_network, split_into_shards
from model.inference.generate import Sampling, stream_tokens
from model.nn.factory import make_network
from tasks.models.load import FINETUNED, ModelSource, chat_template, write_vocabulary
from tasks.tokenizer.base import Tokenizer
from tasks.tokenizer.open import tokenizer_of
from tasks.tokenizer.sentencepiece import SentencePieceTokenizer
from tasks.vocab.config import VocabConfig
from tasks.vocab.train import train_byte_level, train_sentencepiece, train_wordpiece

transformers = pytest.importorskip("transformers")
TEXTS = Path(json.decoder.__file__).read_text(encoding="utf-8").splitlines()
TEXT = "the  old dog ran,\nand 7 cats — unseen — sat."
SIZES: dict[str, Any] = {"context": 64, "layers": 2, "heads": 2, "width": 16, "init_std": 0.3}
CLOSE: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-5}


def pieces(**settings: Any) -> Tokenizer:
    return SentencePieceTokenizer(
        train_sentencepiece(TEXTS, VocabConfig.model_validate({"vocab_size": 400, **settings}))
    )


@pytest.fixture
def trained(tmp_path: Path) -> Callable[[Tokenizer, NetworkConfig], Path]:
    """The folder of a network that was never trained, with its vocabulary."""

    def make(tokenizer: Tokenizer, config: Any) -> Path:
        folder = tmp_path / "trained"
        folder.mkdir()
        weights = make_network(config).initialise(2).state_dict()
        save_model(folder, config, weights, {"tokenizer_digest": tokenizer.digest})
        write_vocabulary(folder, tokenizer)
        return folder

    return make


def exported(model: Path, class_name: str) -> tuple[Any, Any]:
    """What transformers loads of the exported model: the network and its tokenizer."""
    reported = CliRunner().invoke(app, ["model", "export", str(model), str(model.parent / "out")])
    assert reported.exit_code == 0, reported.output
    assert f"transformers.{class_name}" in reported.output
    network = getattr(transformers, class_name).from_pretrained(model.parent / "out")
    return network.eval(), transformers.AutoTokenizer.from_pretrained(model.parent / "out")


@pytest.mark.parametrize("kind", ["sentencepiece", "byte-level"])
def test_a_gpt_computes_and_tokenizes_alike(kind: str, trained: Callable[..., Path]) -> None:
    byte_level = VocabConfig(vocab_size=400, model_type="byte_level")
    tokenizer = pieces() if kind == "sentencepiece" else tokenizer_of(train_byte_level(TEXTS, byte_level))
    model = trained(tokenizer, GPTConfig(vocab_size=tokenizer.vocab_size, **SIZES))
    theirs, their_tokenizer = exported(model, "Qwen3ForCausalLM")
    ids = tokenizer.encode(TEXT)
    assert their_tokenizer(TEXT)["input_ids"] == ids
    assert their_tokenizer.decode(ids) == TEXT
    assert (their_tokenizer.eos_token_id, their_tokenizer.pad_token_id) == (tokenizer.eos, tokenizer.pad)
    assert theirs.config.eos_token_id == tokenizer.eos
    tokens = torch.tensor([ids])
    torch.testing.assert_close(theirs(tokens).logits, load_model(model)(tokens), **CLOSE)


@pytest.mark.parametrize("head", ["tied", "own"])
def test_weights_in_several_files_have_the_index_of_transformers_and_come_back(
    head: str, trained: Callable[..., Path], tmp_path: Path
) -> None:
    tokenizer = pieces()
    model = trained(tokenizer, GPTConfig(vocab_size=tokenizer.vocab_size, tied_head=head == "tied", **SIZES))
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    words = ["model", "export", str(model), str(ours), "--shard-size", "9KB"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    network = transformers.AutoModelForCausalLM.from_pretrained(ours)
    network.save_pretrained(theirs, max_shard_size="9KB")
    index = json.loads((ours / "model.safetensors.index.json").read_text())
    expected = json.loads((theirs / "model.safetensors.index.json").read_text())
    # Tensors are in another order there.
    assert index["metadata"] == expected["metadata"]
    assert index["weight_map"].keys() == expected["weight_map"].keys()
    for name, file in index["weight_map"].items():
        with safe_open(ours / file, framework="pt") as opened:
            assert name in opened.keys()  # noqa: SIM118
    sizes = [path.stat().st_size for path in ours.glob("*.safetensors")]
    assert len(sizes) == len(set(index["weight_map"].values())) > 3
    # The table of 400 rows is larger than a file and has one to itself; a header is a few hundred bytes.
    assert sorted(size > 10_000 for size in sizes) == [False] * (len(sizes) - 1 - (head == "own")) + [True] * (
        1 + (head == "own")
    )
    before, back = load_model(model).state_dict(), open_trained(tmp_path, str(ours)).network.state_dict()
    assert before.keys() == back.keys()
    assert [name for name in before if not torch.equal(before[name], back[name])] == []


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_weights_are_exported_in_16_bits_where_that_is_asked_for(
    dtype: str, trained: Callable[..., Path], tmp_path: Path
) -> None:
    tokenizer = pieces()
    model = trained(tokenizer, GPTConfig(vocab_size=tokenizer.vocab_size, **SIZES))
    done = CliRunner().invoke(app, ["model", "export", str(model), str(tmp_path / "out"), "--dtype", dtype])
    assert done.exit_code == 0, done.output
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert theirs.dtype == getattr(torch, dtype)
    # As `transformers` rounds the weights of the export in 32 bits.
    whole = tmp_path / "whole"
    assert CliRunner().invoke(app, ["model", "export", str(model), str(whole)]).exit_code == 0
    rounded = transformers.AutoModelForCausalLM.from_pretrained(whole, dtype=getattr(torch, dtype)).state_dict()
    assert [name for name, tensor in theirs.state_dict().items() if not torch.equal(tensor, rounded[name])] == []
    back = open_trained(tmp_path, str(tmp_path / "out")).network.state_dict()
    for name, tensor in load_model(model).state_dict().items():
        torch.testing.assert_close(back[name], tensor.to(getattr(torch, dtype)).float(), rtol=0, atol=0)


def test_weights_beyond_16_bits_are_refused(trained: Callable[..., Path], tmp_path: Path) -> None:
    tokenizer = pieces()
    config = GPTConfig(vocab_size=tokenizer.vocab_size, **SIZES)
    network = make_network(config).initialise(1)
    with torch.no_grad():
        network.final_norm.weight[0] = 1e5
    (tmp_path / "out").mkdir()
    with pytest.raises(RecipeError, match=r"model\.norm\.weight has weights beyond the range of torch\.float16"):
        export_network(tmp_path / "out", config, network.state_dict(), {}, dtype="float16")
    assert export_network(tmp_path / "out", config, network.state_dict(), {}, dtype="bfloat16") == "Qwen3ForCausalLM"


CHATS = "{% for message in messages %}{{ bos_token + message['content'] + eos_token }}{% endfor %}"


def test_chat_template_and_generation_settings_of_the_base_are_kept(
    trained: Callable[..., Path], tmp_path: Path
) -> None:
    def export(model: Path, out: str, *more: str) -> tuple[Path, str]:
        words = ["model", "export", str(model), str(tmp_path / out), "--root", str(tmp_path), *more]
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output
        return tmp_path / out, done.stderr

    tokenizer = pieces()
    model = trained(tokenizer, GPTConfig(vocab_size=400, **SIZES))
    base, _ = export(model, "base")
    generation = {"eos_token_id": [2, 399], "temperature": 0.6, "suppress_tokens": [7]}
    (base / "chat_template.jinja").write_text(CHATS)
    (base / "generation_config.json").write_text(json.dumps(generation))
    digest = ModelSource(base).digest()
    record: dict[str, Any] = {"run": {"base": {"folder": str(base), "digest": digest}}}
    (model / "reproduction.json").write_text(json.dumps(record))
    out, reported = export(model, "first")
    assert "left out" not in reported
    assert json.loads((out / "generation_config.json").read_text()) == generation
    chat = [{"role": "user", "content": "tin"}]
    words = transformers.AutoTokenizer.from_pretrained(out)
    assert words.apply_chat_template(chat, tokenize=False) == "<s>tin</s>"
    # So they are of a published folder itself, and of a model that went on from one that went on from it.
    assert json.loads((export(base, "same")[0] / "generation_config.json").read_text()) == generation
    second = tmp_path / "second"
    shutil.copytree(model, second)
    own = {"run": {"base": {"folder": str(model), "digest": ModelSource(model).digest()}}}
    (second / "reproduction.json").write_text(json.dumps(own))
    assert chat_template(open_trained(tmp_path, str(export(second, "third")[0]))) is not None
    # A token that does not exist, and one with another id.
    (base / "generation_config.json").write_text(json.dumps({"eos_token_id": 400}))
    settings = json.loads((base / "tokenizer_config.json").read_text())
    named = {"content": "<|im_start|>", "special": True}
    (base / "tokenizer_config.json").write_text(json.dumps({**settings, "added_tokens_decoder": {"400": named}}))
    out, reported = export(model, "fourth", "--dtype", "bfloat16")
    said = " ".join(reported.split())
    assert "whose token 400 does not exist" in said
    noted = [note["note"] for run in list_runs(tmp_path) for note in run["notes"]]
    assert sum("whose token 400 does not exist" in text for text in noted) == 1, "in the record of the run, too"
    assert "whose special tokens <|im_start|> have no or another id here" in said
    assert not (out / "generation_config.json").exists()
    assert "chat_template" not in json.loads((out / "tokenizer_config.json").read_text())
    record["run"]["base"]["digest"] = "another"
    (model / "reproduction.json").write_text(json.dumps(record))
    assert "holds another model now" in " ".join(export(model, "fifth")[1].split())


def test_the_same_export_is_not_written_again(trained: Callable[..., Path], tmp_path: Path) -> None:
    tokenizer = pieces()
    model, out = trained(tokenizer, GPTConfig(vocab_size=400, **SIZES)), tmp_path / "out"

    def export(*words: str) -> Any:
        return CliRunner().invoke(app, ["model", "export", str(model), str(out), *words])

    assert export().exit_code == 0
    record = json.loads((out / "export.json").read_text())
    assert record["asked"]["model"] == digest_file(model / "model.json")
    before = {path.name: path.stat().st_mtime_ns for path in out.iterdir()}
    again = export()
    assert again.exit_code == 0
    assert "exported before, unchanged" in again.output
    assert {path.name: path.stat().st_mtime_ns for path in out.iterdir()} == before
    other = export("--shard-size", "10KB")
    assert (other.exit_code, "Name a new folder" in other.output) == (InputError.exit_code, True)
    content = (out / "model.safetensors").read_bytes()
    (out / "model.safetensors").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    damaged = export()
    assert (damaged.exit_code, "Name a new folder" in damaged.output) == (InputError.exit_code, True)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_qwen2_with_another_splitter_names_the_class_that_reads_its_tokens(
    trained: Callable[..., Path], tmp_path: Path
) -> None:
    tokenizer = tokenizer_of(train_byte_level(TEXTS, VocabConfig(vocab_size=400, model_type="byte_level")))
    choices = {**SIZES, "qk_norm": "none", "qkv_biases": True}
    model = trained(tokenizer, GPTConfig.model_validate({"vocab_size": tokenizer.vocab_size, **choices}))
    done = CliRunner().invoke(app, ["model", "export", str(model), str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert "transformers.Qwen2ForCausalLM.from_pretrained and PreTrainedTokenizerFast" in " ".join(done.output.split())
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path / "out")
    assert theirs(TEXT)["input_ids"] == tokenizer.encode(TEXT)


@pytest.mark.parametrize("most", [1, 7, 10, 19, 1000])
def test_tensors_are_split_among_files_as_transformers_splits_them(most: int) -> None:
    sizes = {"a": 6, "b": 6, "c": 2, "d": 12, "e": 2, "f": 2, "g": 1}
    hub = pytest.importorskip("huggingface_hub")
    tensors = {name: torch.zeros(size, dtype=torch.uint8) for name, size in sizes.items()}
    expected = hub.split_torch_state_dict_into_shards(tensors, max_shard_size=most).filename_to_tensors
    assert split_into_shards(sizes, most) == expected


@pytest.mark.parametrize(("text", "size"), [("5GB", 5 * 10**9), ("1.5kb", 1500), ("300 MB", 3 * 10**8), ("7B", 7)])
def test_sizes_of_files_are_read_as_transformers_reads_them(text: str, size: int) -> None:
    assert parse_size(text) == size
    for wrong in ("5", "GB", "0GB", "-1GB", "5GiB"):
        with pytest.raises(RecipeError, match="write a size such as 5GB"):
            parse_size(wrong)


def test_transformers_writes_the_same_tokens(trained: Callable[..., Path]) -> None:
    tokenizer = pieces()
    model = trained(tokenizer, GPTConfig(vocab_size=400, **SIZES))
    theirs, their_tokenizer = exported(model, "Qwen3ForCausalLM")
    prompt = their_tokenizer("the old", return_tensors="pt", return_token_type_ids=False)
    written = theirs.generate(**prompt, max_new_tokens=8, do_sample=False)[0].tolist()
    ids, greedy = tokenizer.encode("the old"), Sampling(temperature=0.0)
    assert written == [*ids, *stream_tokens(load_model(model), ids, greedy, max_new_tokens=8, stop=tokenizer.eos)]


def test_a_bert_computes_and_tokenizes_alike(trained: Callable[..., Path]) -> None:
    tokenizer = tokenizer_of(
        train_wordpiece(TEXTS, VocabConfig(vocab_size=400, model_type="wordpiece", lowercase=True))
    )
    model = trained(tokenizer, BERTConfig(vocab_size=tokenizer.vocab_size, **SIZES))
    theirs, their_tokenizer = exported(model, "BertForPreTraining")
    ids = [tokenizer.cls, *tokenizer.encode("The old dog ran."), tokenizer.mask, tokenizer.sep]
    assert their_tokenizer("The old dog ran.", add_special_tokens=False)["input_ids"] == ids[1:-2]
    assert (their_tokenizer.cls_token_id, their_tokenizer.mask_token_id) == (tokenizer.cls, tokenizer.mask)
    tokens = torch.tensor([ids])
    types, every = torch.zeros_like(tokens), torch.ones_like(tokens, dtype=torch.bool)
    network = load_model(model)
    hidden = network.hidden(tokens, types, every)
    expected = theirs(input_ids=tokens)
    logits = network.masked_logits(hidden, torch.arange(len(ids))[None])
    torch.testing.assert_close(expected.prediction_logits, logits, **CLOSE)
    torch.testing.assert_close(expected.seq_relationship_logits.flip(1), network.next_logits(hidden), **CLOSE)


@pytest.mark.parametrize("choices", [{}, {"activation": "geglu_tanh", "tied_head": False}])
def test_a_t5_computes_and_tokenizes_alike(choices: dict[str, Any], trained: Callable[..., Path]) -> None:
    tokenizer = pieces(model_type="unigram", sentinels=3)
    sizes = {name: value for name, value in SIZES.items() if name != "init_std"}
    model = trained(tokenizer, T5Config(vocab_size=tokenizer.vocab_size, **sizes, **choices))
    theirs, their_tokenizer = exported(model, "T5ForConditionalGeneration")
    ids = tokenizer.encode("the old dog ran.")
    assert their_tokenizer("the old dog ran.")["input_ids"] == ids
    assert their_tokenizer("<extra_id_1>")["input_ids"] == [tokenizer.sentinels[1]]
    assert theirs.config.decoder_start_token_id == tokenizer.pad
    tokens, starts = torch.tensor([[*ids, tokenizer.eos]]), torch.tensor([[tokenizer.pad, tokenizer.sentinels[0]]])
    every = torch.ones_like(tokens, dtype=torch.bool)
    network = load_model(model)
    logits = network.logits(network.decode(starts, network.encode(tokens, every), every))
    torch.testing.assert_close(theirs(input_ids=tokens, decoder_input_ids=starts).logits, logits, **CLOSE)


def test_what_cannot_be_exported_leaves_nothing_behind(trained: Callable[..., Path]) -> None:
    model = trained(pieces(), GPTConfig(vocab_size=400, embedding_norm=True, **SIZES))
    out = model.parent / "out"
    reported = CliRunner().invoke(app, ["model", "export", str(model), str(out)])
    assert reported.exit_code == RecipeError.exit_code
    assert "Train with train.model.embedding_norm = false to be able to export the model" in reported.output
    assert [path.name for path in model.parent.iterdir()] == ["trained"]


def test_a_folder_with_something_in_it_is_left_alone(trained: Callable[..., Path]) -> None:
    model = trained(pieces(), GPTConfig(vocab_size=400, **SIZES))
    reported = CliRunner().invoke(app, ["model", "export", str(model), str(model)])
    assert reported.exit_code == InputError.exit_code
    assert "exists and is not empty; nothing was written" in reported.output
    assert sorted(path.name for path in model.iterdir())[0] == "model.json"


def wordpiece() -> Tokenizer:
    return tokenizer_of(train_wordpiece(TEXTS, VocabConfig(vocab_size=400, model_type="wordpiece", lowercase=True)))


def byte_level() -> Tokenizer:
    return tokenizer_of(train_byte_level(TEXTS, VocabConfig(vocab_size=400, model_type="byte_level")))


@pytest.mark.parametrize(
    ("vocabulary", "kind", "settings"),
    [
        (pieces, GPTConfig, {"init_std": 0.3}),
        (byte_level, GPTConfig, {"init_std": 0.3}),
        (wordpiece, BERTConfig, {"init_std": 0.3}),
        (lambda: pieces(model_type="unigram", sentinels=3), T5Config, {}),
    ],
)
def test_an_exported_folder_is_a_model_like_others(
    vocabulary: Callable[[], Tokenizer], kind: type, settings: dict[str, Any], trained: Callable[..., Path]
) -> None:
    tokenizer = vocabulary()
    model = trained(
        tokenizer, kind(vocab_size=tokenizer.vocab_size, context=64, layers=2, heads=2, width=16, **settings)
    )
    out = model.parent / "out"
    assert CliRunner().invoke(app, ["model", "export", str(model), str(out)]).exit_code == 0
    before, after = open_trained(model.parent, str(model)), open_trained(model.parent, str(out))
    assert after.tokenizer.description() == {**before.tokenizer.description(), "digest": after.tokenizer.digest}
    assert after.tokenizer.encode(TEXT) == before.tokenizer.encode(TEXT)
    for name, weights in before.network.state_dict().items():
        assert torch.equal(after.network.state_dict()[name], weights), name
    words = ["--prompt", "the ___ dog" if kind is BERTConfig else "the old", "--tokens", "4", "--temperature", "0"]
    reported = [CliRunner().invoke(app, ["model", "generate", str(folder), *words]) for folder in (model, out)]
    assert reported[1].exit_code == 0, reported[1].output
    assert reported[0].stdout == reported[1].stdout


def test_an_exported_model_has_no_task_to_answer(trained: Callable[..., Path]) -> None:
    tokenizer = pieces(model_type="unigram", sentinels=3)
    model = trained(tokenizer, T5Config(vocab_size=tokenizer.vocab_size, context=64, layers=1, heads=2, width=16))
    description = json.loads((model / "model.json").read_text())
    description[FINETUNED] = {"tasks": [{"name": "mood", "fields": ["text"]}]}
    (model / "model.json").write_text(json.dumps(description))
    out = model.parent / "out"
    exported(model, "T5ForConditionalGeneration")
    assert open_trained(model.parent, str(out)).description == {FINETUNED: {"mood": {"prefix": "mood text: "}}}
    reported = CliRunner().invoke(app, ["model", "predict", str(out), "--field", "text=so so"])
    assert reported.exit_code == InputError.exit_code
    assert "Name the folder that `bessemer model finetune` wrote" in reported.output


def test_a_vocabulary_larger_than_the_table_is_refused(trained: Callable[..., Path]) -> None:
    tokenizer = pieces()
    model = trained(tokenizer, GPTConfig(vocab_size=400, **SIZES))
    exported(model, "Qwen3ForCausalLM")
    (model.parent / "out" / "tokenizer.model").write_bytes(pieces(vocab_size=410).model)
    reported = CliRunner().invoke(app, ["model", "generate", str(model.parent / "out")])
    assert reported.exit_code == InputError.exit_code
    assert "has 410 tokens, and the model has 400 embedding rows: they do not belong together" in reported.output


def test_presets_lists_all_and_their_parameters() -> None:
    found = json.loads(CliRunner().invoke(app, ["model", "presets", "--json"]).stdout)
    assert [one["name"] for one in found] == list(PRESETS)
    assert found[0]["parameters"] == 124_439_808
    lines = [line.split() for line in CliRunner().invoke(app, ["model", "presets"]).stdout.splitlines()]
    assert ["opt-175b", "gpt", "174,604,468,224", "2,793.7", "1,076.47"] in lines


def test_the_card_of_its_run_lies_beside_the_model(
    trained: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = trained(pieces(), GPTConfig(**SIZES, vocab_size=400))
    run = tmp_path / "runs" / "20270115T080000Z-abcdef"
    run.mkdir(parents=True)
    entry = {"stage": "train", "path": str(folder), "outcome": "built"}
    record = {
        "run_id": run.name,
        "recipe_name": "small",
        "root": str(tmp_path),
        "state": "completed",
        "stages": [entry],
    }
    write_sealed(run / "run.json", record)
    source = {"name": "books", "licence": "CC-BY-SA-4.0"}
    write_sealed(run / "recipe.json", {"sample": {"sources": [source]}})
    root = ["--root", str(tmp_path)]
    refused = CliRunner().invoke(
        app, ["model", "export", str(folder), str(tmp_path / "out"), "--licence", "MIT", *root]
    )
    assert refused.exit_code == 2
    assert "books (CC-BY-SA-4.0)" in refused.output
    assert not (tmp_path / "out").exists()
    passed = CliRunner().invoke(
        app, ["model", "export", str(folder), str(tmp_path / "out"), "--licence", "CC-BY-SA-4.0", *root]
    )
    assert passed.exit_code == 0, passed.output
    card = (tmp_path / "out" / "README.md").read_text()
    assert card.startswith("---\nlicense: cc-by-sa-4.0\n")
    assert "import AutoTokenizer, Qwen3ForCausalLM" in card
    # By a relative path and by a link it is the same model.
    monkeypatch.chdir(tmp_path)
    Path("link").symlink_to("trained")
    for number, named in enumerate(("trained", "link")):
        out = tmp_path / f"out-{number}"
        again = CliRunner().invoke(app, ["model", "export", f"./{named}", str(out), "--licence", "CC-BY-SA-4.0", *root])
        assert again.exit_code == 0, again.output
        assert (out / "README.md").read_text() == card
    unknown = CliRunner().invoke(
        app, ["model", "export", str(folder), str(tmp_path / "x"), "--licence", "MIT", "--root", str(run)]
    )
    assert unknown.exit_code == 2
    assert "no run under" in unknown.output
