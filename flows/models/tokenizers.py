"""Compare tokenizers, of runs and of published models, on a text of one's own; and their models' bits per byte on it.

Bits per byte (total nats / ln 2 / UTF-8 bytes) is comparable across vocabularies, which helps to choose a base model
before any training. Windows of the model's context advance by half of it, so every token is predicted once, from at
least half a window of context.
"""

import importlib.util
import json
import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from flows.metrics.lines import ComparedTokenizer, ModelScore
from flows.metrics.text_diff import EVEN_PIECE, ODD_PIECE, UNKNOWN_PIECE, TokenizedText
from flows.runs.lineage import run_artifacts
from flows.runs.record import RECORD, read_run
from model.checkpoint.run_folder import DESCRIPTION, WEIGHTS
from model.errors import InputError
from model.model_files import MAX_JSON_BYTES, MAX_VOCABULARY_BYTES, read_bounded, read_json, weight_files
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.results import VocabResult
from tasks.tokenizer.base import DESCRIPTION_FILE, MODEL_FILES, Tokenizer, is_json, json_model_type
from tasks.tokenizer.open import open_tokenizer, tokenizer_of
from tasks.tokenizer.released import read_base, texts_begin
from tasks.tokenizer.wordpiece import UNKNOWN
from tasks.vocab.base import prepare_base
from tasks.vocab.comparison import TokenCounter, ratio
from tasks.vocab.config import VocabConfig
from tasks.vocab.extenders import kind_of, truncate_vocabulary, vocabulary_size
from tasks.vocab.output import FAST_FILE

BERT_FILE = "vocab.txt"

FILES = ("*.model", "*tokenizer.json", BERT_FILE)
"""Files of vocabularies: of SentencePiece, of the library `tokenizers`, and of BERT."""

KNOWN = "`*.model`, `*tokenizer.json` or `vocab.txt`"

EXPECTED = "Expected is SentencePiece's file (.model), a tokenizer.json of the library tokenizers, or BERT's vocab.txt."

GZIP = b"\x1f\x8b"
"""First bytes of every gzip file (RFC 1952)."""

CONFIG = "config.json"
"""Description of the model in a folder of the library transformers."""

CONTEXT_FIELDS = ("max_position_embeddings", "n_positions", "max_sequence_length")

LONGEST_CONTEXT = 2048
"""Largest window in tokens; published figures use 2,048 or fewer."""

CAUSAL = ("ForCausalLM", "LMHeadModel")
"""Suffixes of the names of causal architectures."""


def tokens_of_text(vocab: Artifact, text: str) -> list[TokenizedText]:
    """Return the text as tokens of a run's vocabulary, after those of its base where it extends one."""
    tokenizer = open_tokenizer(vocab)
    base = VocabResult.of(vocab.report).vocabulary.get("base")
    if base is None:
        return [_view("the run's vocabulary", tokenizer, text)]
    rows = base["pieces"] + base["besides"]
    if rows == tokenizer.vocab_size:
        return [_view("the base", tokenizer, text)]
    return [
        _view("the base", tokenizer_of(truncate_vocabulary(tokenizer.model, rows)), text),
        _view("extended", tokenizer, text),
    ]


def _view(name: str, tokenizer: Tokenizer, text: str) -> TokenizedText:
    ids, borders = tokenizer.encode_with_offsets(text)
    raw = text.encode()
    pieces = [raw[start:end].decode(errors="backslashreplace") for start, end in pairwise(borders)]
    each = f", {len(ids) / len(text):.3f} per character" if text else ""
    is_unknown = (ids == tokenizer.unk).tolist()
    lost = f", {sum(is_unknown)} of them unknown" if any(is_unknown) else ""
    segments = [(ODD_PIECE if index % 2 else EVEN_PIECE, piece) for index, piece in enumerate(pieces)]
    for index in np.flatnonzero(is_unknown):
        segments[index] = (UNKNOWN_PIECE, f"{UNKNOWN}{pieces[index]}")
    return {
        "title": f"{name}, vocabulary of {tokenizer.vocab_size:,}: {len(ids)} tokens{each}{lost}",
        "segments": segments,
        "pieces": pieces,
        "ids": ids.tolist(),
        "unknown": sum(is_unknown),
    }


def compare_tokenizers(text: Path, bases: Sequence[Path], most_bytes: int = 0) -> list[ComparedTokenizer]:
    """Return the tokens that each vocabulary needs for the lines of a text file, the fewest first.

    Folders are searched for vocabularies. Where weights are in the folder of a vocabulary, the result has their bits
    per byte on the first `most_bytes` of the text. Raises InputError where there is no text or no vocabulary.
    """
    whole = _read(text)
    lines = [line for line in whole.split("\n") if line]
    if not lines:
        raise InputError(f"{text} has no text to compare vocabularies on")
    characters, words = sum(map(len, lines)), sum(len(line.split()) for line in lines)
    found: list[ComparedTokenizer] = []
    for name, path, weights in _models(bases):
        model, kind = read_vocabulary(path)
        try:
            meter = TokenCounter(model)
        except ValueError as error:
            raise InputError(f"{path}: the library tokenizers cannot read it ({error}). {EXPECTED}") from error
        meter.encode_back(lines)
        found.append(
            {
                "path": name,
                "kind": kind,
                "pieces": meter.pieces,
                "tokens": meter.tokens,
                "tokens_per_character": ratio(meter.tokens, characters),
                "tokens_per_word": ratio(meter.tokens, words),
                "byte_share": meter.share(meter.bytes),
                "unknown_share": meter.share(meter.unknown),
                "lines": meter.lines,
                "lost_lines": meter.lost_lines,
                **zero_step(weights, path, whole, most_bytes),
            }
        )
    return sorted(found, key=lambda line: line["tokens"])


def _read(path: Path) -> str:
    if not path.is_file():
        raise InputError(f"{path} {'is a folder' if path.is_dir() else 'does not exist'}. Name a file of plain text.")
    refuse_compressed(path)
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is no UTF-8 text (byte {error.start}). Name a file of plain text.") from error


def _models(bases: Sequence[Path]) -> list[tuple[str, Path, Path | None]]:
    """Return the name of each vocabulary, its file, and the folder of its model's weights."""
    runs: list[tuple[str, Path, Path | None]] = []
    found: list[Path] = []
    for base in bases:
        if (base / RECORD).is_file():
            artifacts = run_artifacts(read_run(base))
            if "vocab" not in artifacts:
                raise InputError(f"{base}: this run did not get to a vocabulary")
            kind = json.loads(artifacts["vocab"].file(DESCRIPTION_FILE).read_text())["kind"]
            weights = artifacts["train"].path if "train" in artifacts else None
            runs.append((str(base), artifacts["vocab"].file(MODEL_FILES[kind]), weights))
        elif base.is_dir():
            inside = vocabularies_within(base)
            if not inside:
                raise InputError(f"{base}: no file there is named {KNOWN}")
            found += inside
        elif base.is_file():
            found.append(vocabulary_described(base) or base)
        else:
            raise InputError(f"{base} does not exist. Name files of vocabularies ({KNOWN}) or a folder of them.")
    return [*runs, *((str(path), path, weights_next_to(path)) for path in dict.fromkeys(found))]


def vocabularies_within(folder: Path) -> list[Path]:
    """Return the vocabulary files anywhere in a folder, each vocabulary once.

    Of a vocab artifact, the file that its description names; a `vocab.txt` in the folder of a `tokenizer.json` is
    skipped where both define the same vocabulary.
    """
    found: list[Path] = []
    for path in (path for pattern in FILES for path in sorted(folder.rglob(pattern))):
        own = vocabulary_described(path)
        if own is not None:
            found.append(own)
        elif _is_vocabulary(path):
            found.append(path)
    return sorted(dict.fromkeys(found))


def _is_vocabulary(path: Path) -> bool:
    if not path.is_file() or path.name == FAST_FILE:
        return False
    if path.name == BERT_FILE:
        return not (path.parent / DESCRIPTION_FILE).exists() and is_json(read_base(path))
    return path.suffix != ".json" or json_model_type(read_bounded(path, MAX_VOCABULARY_BYTES)) is not None


def vocabulary_described(path: Path) -> Path | None:
    """Return the vocabulary file of the vocab artifact whose description is `path`; None for any other file."""
    if path.name != DESCRIPTION_FILE:
        return None
    try:
        described = json.loads(read_bounded(path, MAX_JSON_BYTES))
    except (ValueError, RecursionError):
        return None
    kind = described.get("kind") if isinstance(described, dict) else None
    model = path.with_name(MODEL_FILES[kind]) if kind in MODEL_FILES else None
    return model if model is not None and model.is_file() else None


def read_vocabulary(path: Path) -> tuple[bytes, str]:
    """Return a vocabulary's bytes and kind; BERT's `vocab.txt` is converted to the equivalent `tokenizer.json`.

    Raises InputError, with the path and what was expected, for a file that is not a vocabulary.
    """
    refuse_compressed(path)
    try:
        model = read_base(path)
        return model, kind_of(model)
    except InputError as error:
        # Details of SentencePiece's parser ("wire format") do not help where the file is of another kind.
        reason = str(error).removeprefix("vocab.base: ").removeprefix(str(path)).lstrip(": ")
        reason = reason.partition(" (")[0].rstrip(".")
        raise InputError(f"{path}: {reason}. {EXPECTED}") from error


def refuse_compressed(path: Path) -> None:
    """Raise InputError for a gzip file."""
    with path.open("rb") as file:
        if file.read(len(GZIP)) == GZIP:
            raise InputError(f"{path} is compressed, and gz files are not read here. Unpack it: gunzip -k {path}")


def weights_next_to(vocabulary: Path) -> Path | None:
    """Return the folder of a vocabulary's file where it has a model's weights too, or None."""
    folder = vocabulary.parent
    ours = (folder / DESCRIPTION).is_file() and (folder / WEIGHTS).is_file()
    theirs = (folder / CONFIG).is_file() and next(folder.glob("*.safetensors"), None) is not None
    return folder if ours or theirs else None


def zero_step(folder: Path | None, vocabulary: Path, text: str, most_bytes: int) -> ModelScore:
    """Return `bits_per_byte` of the model in `folder` on the first `most_bytes` of a text, or None with a `note`.

    Neither without a folder or with no byte to score. Raises InputError where the weights and the vocabulary do not
    match.
    """
    if folder is None or not most_bytes:
        return _unscored("")
    text = text.encode()[:most_bytes].decode(errors="ignore")
    try:
        tokenizer = tokenizer_of(prepare_base(VocabConfig(base=vocabulary)), begins=texts_begin(vocabulary))
    except InputError as error:
        return _unscored(str(error))
    ids = tokenizer.encode(text)
    pieces = vocabulary_size(read_base(vocabulary))
    if not text or tokenizer.decode(ids) != text or max(ids) >= pieces:
        return _unscored("its vocabulary loses characters of this text, and bits of a lost byte mean nothing")
    if (folder / DESCRIPTION).is_file():
        architecture = json.loads((folder / DESCRIPTION).read_text()).get("config", {}).get("architecture", "gpt")
        if architecture != "gpt":
            return _unscored(f"a {architecture} does not predict each next token")
        nats = _nats_of_ours(folder, tokenizer, ids)
    else:
        weight_files(folder)  # `transformers` follows an index wherever it leads.
        config = read_json(folder / CONFIG)
        kinds = [name for name in config.get("architectures") or () if name.endswith(CAUSAL)]
        if not kinds:
            return _unscored(f"{config.get('model_type')} does not predict each next token")
        if importlib.util.find_spec("transformers") is None:
            return _unscored("reading it needs the package `transformers`: pip install 'bessemer[weights]'")
        nats = _nats_of_theirs(folder, tokenizer, ids, pieces)
    size = len(text.encode())
    return {"bits_per_byte": nats / math.log(2) / size, "scored_bytes": size, "note": ""}


def _unscored(note: str) -> ModelScore:
    return {"bits_per_byte": None, "scored_bytes": 0, "note": note}


def _nats_of_ours(folder: Path, tokenizer: Tokenizer, ids: list[int]) -> float:
    from model.checkpoint.weights import load_gpt
    from model.inference.scoring import text_nats

    network = load_gpt(folder, tokenizer.digest)
    return text_nats(network, [ids], tokenizer.opening)[0]


def _nats_of_theirs(folder: Path, tokenizer: Tokenizer, ids: list[int], pieces: int) -> float:
    import torch
    from torch.nn import functional as F
    from transformers import AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    from model.inference.scoring import window_borders

    disable_progress_bar()
    try:
        network: Any = AutoModelForCausalLM.from_pretrained(
            folder, local_files_only=True, use_safetensors=True, trust_remote_code=False, dtype="auto"
        )
    except (OSError, ValueError) as error:
        raise InputError(f"{folder}: the library transformers cannot read this model: {error}") from error
    rows = network.get_input_embeddings().num_embeddings
    if pieces > rows:
        raise InputError(
            f"{folder}: the vocabulary has {pieces} pieces and the model {rows} rows; they do not belong together"
        )
    lengths = (getattr(network.config, name, None) for name in CONTEXT_FIELDS)
    context = min(LONGEST_CONTEXT, next((length for length in lengths if length), LONGEST_CONTEXT))
    nats = 0.0
    with torch.inference_mode():
        tokens = [tokenizer.opening, *ids]
        for first, last, new in window_borders(len(tokens), context, max(1, context // 2)):
            window, scored = tokens[first:last], new - first
            logits = network(torch.tensor([window[:-1]])).logits[0, scored - 1 :].float()
            nats += float(F.cross_entropy(logits, torch.tensor(window[scored:]), reduction="sum"))
    return nats
