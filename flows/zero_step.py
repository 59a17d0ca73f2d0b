"""Bits per byte of released weights on a text of one's own, before any training: a help to choose a base model.

Bits per byte (total nats / ln 2 / UTF-8 bytes) is the one loss that can be compared across vocabularies. Windows of the
model's context advance by half of it, so that every token is predicted once, from half a window of text or more.
"""

import importlib.util
import math
from pathlib import Path
from typing import Any

from model.errors import InputError
from model.published.files import read_json, weight_files
from model.weights import DESCRIPTION, WEIGHTS
from tasks.open_tokenizer import tokenizer_of
from tasks.tokenizer import Tokenizer
from tasks.vocab.base import prepared_base, read_base
from tasks.vocab.config import VocabConfig
from tasks.vocab.kinds import piece_count

CONFIG = "config.json"
"""What a folder of the library transformers says of its model."""
CONTEXT_FIELDS = ("max_position_embeddings", "n_positions", "max_sequence_length")
LONGEST_CONTEXT = 2048
"""Tokens of a window at most: the published figures that people compare with are at 2,048 or below."""
CAUSAL = ("ForCausalLM", "LMHeadModel")
"""How the names of architectures end that predict each next token."""


def weights_beside(vocabulary: Path) -> Path | None:
    """The folder of a vocabulary's file where it holds a model's weights too; None where it holds none."""
    folder = vocabulary.parent
    ours = (folder / DESCRIPTION).is_file() and (folder / WEIGHTS).is_file()
    theirs = (folder / CONFIG).is_file() and next(folder.glob("*.safetensors"), None) is not None
    return folder if ours or theirs else None


def zero_step(folder: Path, vocabulary: Path, text: str, most_bytes: int) -> dict[str, Any]:
    """`bits_per_byte` of the model in `folder` on the first `most_bytes` of a text, or None and why in `note`.

    Raises InputError where the weights and the vocabulary do not belong together.
    """
    text = text.encode()[:most_bytes].decode(errors="ignore")
    try:
        tokenizer = tokenizer_of(prepared_base(VocabConfig(base=vocabulary)))
    except InputError as error:
        return _unscored(str(error))
    ids = tokenizer.encode(text)
    pieces = piece_count(read_base(vocabulary))
    if not text or tokenizer.decode(ids) != text or max(ids) >= pieces:
        return _unscored("its vocabulary loses characters of this text, and bits of a lost byte mean nothing")
    if (folder / DESCRIPTION).is_file():
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


def _unscored(note: str) -> dict[str, Any]:
    return {"bits_per_byte": None, "scored_bytes": 0, "note": note}


def _nats_of_ours(folder: Path, tokenizer: Tokenizer, ids: list[int]) -> float:
    from model.scoring import text_nats
    from model.weights import load_gpt

    network = load_gpt(folder, tokenizer.digest)
    return text_nats(network, [ids], tokenizer.eos)[0]


def _nats_of_theirs(folder: Path, tokenizer: Tokenizer, ids: list[int], pieces: int) -> float:
    import torch
    from torch.nn import functional as F
    from transformers import AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    from model.scoring import window_borders

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
    told = (getattr(network.config, name, None) for name in CONTEXT_FIELDS)
    context = min(LONGEST_CONTEXT, next((length for length in told if length), LONGEST_CONTEXT))
    begin = tokenizer.bos if tokenizer.bos >= 0 else tokenizer.eos
    nats = 0.0
    with torch.inference_mode():
        tokens = [begin, *ids]
        for first, last, new in window_borders(len(tokens), context, max(1, context // 2)):
            window, scored = tokens[first:last], new - first
            logits = network(torch.tensor([window[:-1]])).logits[0, scored - 1 :].float()
            nats += float(F.cross_entropy(logits, torch.tensor(window[scored:]), reduction="sum"))
    return nats
