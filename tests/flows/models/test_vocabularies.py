"""A text in tokens, before and after an extension; released vocabularies side by side on a text."""

import gzip
import io
import json
from pathlib import Path

import pyarrow as pa
import pytest
import sentencepiece
import tokenizers
from rich.console import Console
from tokenizers import models, normalizers, pre_tokenizers

from flows.inspection.terminal import print_views
from flows.metrics.text_diff import UNKNOWN_PIECE
from flows.models.tokenizers import compare_tokenizers, tokens_of_text
from model.errors import InputError
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import RunContext, Stage, build_artifact
from tasks.artifacts.report import StageReport
from tasks.artifacts.tables.files import table_file_name, write_table
from tasks.artifacts.tables.schema import DOCUMENTS
from tasks.artifacts.workspace import Workspace
from tasks.common.config import StrictConfig
from tasks.tokenizer.base import DESCRIPTION_FILE, MODEL_FILES
from tasks.tokenizer.open import open_tokenizer
from tasks.vocab.base import read_base
from tasks.vocab.config import VocabConfig
from tasks.vocab.output import FAST_FILE
from tasks.vocab.stage import build_vocab
from tests.command import invoke

ENGLISH = [f"The converter blows air through melted iron for {number} minutes." for number in range(200)]
CHINESE = ["转炉炼钢的时候，空气吹过铁水。"] * 20


def trained(path: Path, **options: object) -> Path:
    model = io.BytesIO()
    settings = {"model_type": "bpe", "vocab_size": 340, "byte_fallback": True, "normalization_rule_name": "identity"}
    settings |= {"remove_extra_whitespaces": False, **options}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(ENGLISH), model_writer=model, num_threads=1, minloglevel=2, **settings
    )
    path.write_bytes(model.getvalue())
    return path


def of_bert(folder: Path) -> Path:
    path = folder / "vocab.txt"
    path.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nsteel\n##s\nthe\niron\nair\n")
    return path


@pytest.fixture
def context(tmp_path: Path) -> RunContext:
    return RunContext(root=tmp_path / "root", run_id="20250101T000000Z-abcdef")


@pytest.fixture
def documents(context: RunContext) -> Artifact:
    rows = [
        {
            "doc_id": number.to_bytes(16, "big"),
            "piece": 0,
            "source": "mixed",
            "lang": None,
            "text": text,
            "text_digest": bytes(16),
            "origin": {"path": "a.txt", "record": number, "byte": 0},
            "meta": None,
        }
        for number, text in enumerate([*ENGLISH, *CHINESE])
    ]

    def run(workspace: Workspace) -> StageReport:
        with workspace.unit("00000") as unit:
            table = pa.Table.from_pylist(rows, schema=DOCUMENTS)
            write_table(unit, "documents", table, table_file_name("documents", "00000"))
        report = StageReport()
        counts = report.source("mixed")
        counts.documents_in = counts.documents_out = len(rows)
        counts.bytes_in = counts.bytes_out = sum(len(text.encode()) for text in (*ENGLISH, *CHINESE))
        return report

    return build_artifact(
        context, Stage("documents", roots=("tasks.artifacts.tables.ledger",), libraries=()), StrictConfig(), {}, run
    )


def test_an_extended_vocabulary_is_shown_beside_its_base(context: RunContext, documents: Artifact, tmp_path: Path):
    base = trained(tmp_path / "base.model")
    vocab = build_vocab(context, documents, VocabConfig(base=base, extend={"zh": 20}))
    before, after = tokens_of_text(vocab, "air 钢")
    assert before["title"].startswith("the base, vocabulary of 340: ")
    assert before["pieces"][-3:] == ["\\xe9", "\\x92", "\\xa2"]
    assert after["title"].startswith(f"extended, vocabulary of 360: {len(after['ids'])} tokens")
    assert after["pieces"][-1] == "钢"
    assert "".join(after["pieces"]) == "air 钢"
    assert len(after["ids"]) == len(before["ids"]) - 2
    assert vocab.report.facts["vocabulary"]["languages"]["unknown"]["moved_lines"] == 0


def test_a_trained_vocabulary_is_alone(context: RunContext, documents: Artifact):
    (view,) = tokens_of_text(build_vocab(context, documents, VocabConfig(vocab_size=320)), "air air")
    assert view["title"].startswith("the run's vocabulary, vocabulary of 320: ")
    assert "".join(view["pieces"]) == "air air"


def test_a_base_that_nothing_was_added_to_is_shown_once(context: RunContext, documents: Artifact, tmp_path: Path):
    base = trained(tmp_path / "base.model")
    (view,) = tokens_of_text(build_vocab(context, documents, VocabConfig(base=base)), "air")
    assert view["title"].startswith("the base, vocabulary of 340: ")


def test_text_that_its_token_loses_is_behind_the_name_of_that_token(
    context: RunContext, documents: Artifact, tmp_path: Path
):
    vocab = build_vocab(context, documents, VocabConfig(base=of_bert(tmp_path)))
    (view,) = tokens_of_text(vocab, "air naïve air")
    assert view["unknown"] == 1
    assert view["title"].endswith(" per character, 1 of them unknown")
    shown = [segment for segment in view["segments"] if segment[0] == UNKNOWN_PIECE]
    assert shown == [(UNKNOWN_PIECE, "[UNK] naïve")]
    assert "".join(view["pieces"]) == "air naïve air"
    console = Console(file=io.StringIO(), width=100, color_system=None)
    print_views([view], console, full=True)
    assert "|[UNK] naïve|" in console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]
    (known,) = tokens_of_text(vocab, "air")
    assert (known["unknown"], "unknown" in known["title"]) == (0, False)


@pytest.mark.parametrize("kind", MODEL_FILES)
def test_the_folder_of_a_vocab_artifact_of_any_kind_is_a_base(
    context: RunContext, documents: Artifact, tmp_path: Path, kind: str
):
    text = tmp_path / "mine.txt"
    text.write_text("The iron\n")
    settings = {
        "sentencepiece": {"vocab_size": 320},
        "byte-level": {"vocab_size": 320, "model_type": "byte_level"},
        "wordpiece": {"base": of_bert(tmp_path)},
    }
    vocab = build_vocab(context, documents, VocabConfig.model_validate(settings[kind]))
    model = vocab.file(MODEL_FILES[kind])
    for named in (vocab.path, vocab.path.parent, vocab.file(DESCRIPTION_FILE)):
        (line,) = compare_tokenizers(text, [named])
        assert line["path"] == str(model)
        assert line["tokens"] == len(open_tokenizer(vocab).encode("The iron"))


def test_berts_vocab_txt_is_a_base_alone_and_says_nothing_new_beside_its_tokenizer_json(tmp_path: Path):
    text, folder = tmp_path / "mine.txt", tmp_path / "bert"
    text.write_text("The steels\n")
    folder.mkdir()
    of_bert(folder)
    for named in (folder, folder / "vocab.txt"):
        (line,) = compare_tokenizers(text, [named])
        assert (line["kind"], line["pieces"], line["tokens"]) == ("wordpiece", 10, 3)
    (folder / "tokenizer.json").write_bytes(read_base(folder / "vocab.txt"))
    assert [line["path"] for line in compare_tokenizers(text, [folder])] == [str(folder / "tokenizer.json")]


@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
def test_a_runs_vocabulary_counts_once_in_its_folder_and_other_programs_file_says_the_same(
    context: RunContext, documents: Artifact, tmp_path: Path, model_type: str
):
    text = tmp_path / "mine.txt"
    text.write_text("The iron\n钢铁 é\n", encoding="utf-8")
    config = VocabConfig.model_validate({"vocab_size": 310, "model_type": model_type})
    vocab = build_vocab(context, documents, config)
    (own,) = compare_tokenizers(text, [vocab.path])
    assert own["path"].endswith("tokenizer.model")
    (fast,) = compare_tokenizers(text, [vocab.file(FAST_FILE)])
    same = ("kind", "pieces", "tokens", "byte_share", "unknown_share", "lost_lines")
    assert [own[key] for key in same] == [fast[key] for key in same]


def test_bases_are_in_the_order_of_their_tokens_and_say_what_they_lose(tmp_path: Path):
    folder = tmp_path / "models"
    folder.mkdir()
    exact = trained(folder / "exact.model")
    lossy = trained(folder / "lossy.model", vocab_size=80, byte_fallback=False, normalization_rule_name="nmt_nfkc")
    text = tmp_path / "mine.txt"
    text.write_text("The iron\n钢铁钢铁钢铁\n", encoding="utf-8")
    first, second = compare_tokenizers(text, [folder])
    assert (first["path"], second["path"]) == (str(lossy), str(exact))
    assert (first["lines"], first["lost_lines"], second["lost_lines"]) == (2, 1, 0)
    assert first["unknown_share"] > 0 == second["unknown_share"]
    assert second["byte_share"] == pytest.approx(18 / second["tokens"], abs=1e-6)
    assert second["tokens_per_character"] == pytest.approx(second["tokens"] / 14, abs=1e-4)
    assert second["tokens_per_word"] == pytest.approx(second["tokens"] / 3, abs=1e-4)


def test_a_tokenizer_json_is_beside_the_others(tmp_path: Path):
    engine = tokenizers.Tokenizer(models.WordPiece({"[UNK]": 0, "the": 1, "iron": 2}, unk_token="[UNK]"))
    engine.normalizer, engine.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.Whitespace()
    (tmp_path / "bert.tokenizer.json").write_text(engine.to_str())
    text = tmp_path / "mine.txt"
    text.write_text("The iron\nthe iron\nsteel\n")
    (line,) = compare_tokenizers(text, [tmp_path])
    assert (line["kind"], line["tokens"], line["unknown_share"], line["lost_lines"]) == ("wordpiece", 5, 0.2, 2)


def test_what_cannot_be_compared_is_named(tmp_path: Path):
    base, text = trained(tmp_path / "base.model"), tmp_path / "mine.txt"
    with pytest.raises(InputError, match=r"mine\.txt does not exist"):
        compare_tokenizers(text, [base])
    text.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match=r"no UTF-8 text \(byte 0\)"):
        compare_tokenizers(text, [base])
    text.write_text("\n\n")
    with pytest.raises(InputError, match="has no text"):
        compare_tokenizers(text, [base])
    text.write_text("air")
    with pytest.raises(InputError, match=r"gone\.model does not exist"):
        compare_tokenizers(text, [tmp_path / "gone.model"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"no file there is named `\*\.model`"):
        compare_tokenizers(text, [tmp_path / "empty"])
    with pytest.raises(InputError, match=r"empty: no file there is named `\*\.model`"):
        compare_tokenizers(text, [base, tmp_path / "empty"])
    read_me = tmp_path / "README.md"
    read_me.write_text("# Air\n\nis blown through iron\n")
    with pytest.raises(
        InputError, match=r"README\.md: this file is no SentencePiece model\. Expected is .*vocab"
    ) as reported:
        compare_tokenizers(text, [read_me])
    assert "vocab.base" not in str(reported.value)
    assert "Wire format" not in str(reported.value)
    damaged = tmp_path / "damaged.tokenizer.json"
    damaged.write_text('{"model": {"type": "BPE"}}')
    with pytest.raises(InputError, match=r"damaged\.tokenizer\.json: the library tokenizers cannot read it"):
        compare_tokenizers(text, [damaged])
    damaged.unlink()
    (tmp_path / "vocab.txt").write_bytes(b"[UNK]\n[SEP]\n\xff\n")
    message = r"vocab\.txt: looks like BERT's vocab\.txt, but byte 12 is not UTF-8\. Expected is"
    with pytest.raises(InputError, match=message):
        compare_tokenizers(text, [tmp_path / "vocab.txt"])
    (tmp_path / "vocab.txt").unlink()
    packed = tmp_path / "mine.txt.gz"
    packed.write_bytes(gzip.compress(b"air"))
    for named in ((packed, base), (text, packed)):
        with pytest.raises(InputError, match=r"mine\.txt\.gz is compressed, and gz files are not read"):
            compare_tokenizers(named[0], [named[1]])
    with pytest.raises(InputError, match="no SentencePiece model"):
        compare_tokenizers(text, [text])
    other = tmp_path / "tokenizer.json"
    other.write_text('{"kind": "sentencepiece"}')
    with pytest.raises(InputError, match=r"tokenizer\.json: this JSON file is not a tokenizer\.json"):
        compare_tokenizers(text, [other])
    assert [line["path"] for line in compare_tokenizers(text, [tmp_path])] == [str(base)]


def test_the_command_prints_a_table_and_json(tmp_path: Path):
    base, text = trained(tmp_path / "base.model"), tmp_path / "mine.txt"
    text.write_text("The iron")
    reported = invoke("data", "tokenizers", text, base).stdout
    assert "changed lines" in reported
    assert "0 of 1" in reported
    (line,) = json.loads(invoke("data", "tokenizers", text, base, "--json").stdout)
    assert (line["pieces"], line["lost_lines"]) == (340, 0)
