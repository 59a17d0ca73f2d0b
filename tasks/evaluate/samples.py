"""Samples of generated text, the same for the same seed: a GPT continues prompts, a BERT fills masks, and a T5
generates what is missing of held-out text; what the text really has there is recorded with them."""

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import torch

from model.data.row_format import NO_LOSS, RowFormat
from model.data.span_corruption import Denoiser
from model.inference.fill_mask import fill_masks
from model.inference.generate import Prompt, Sampling, generate_batch
from model.inference.scoring import FRAME_TOKENS, Frame
from model.inference.seq2seq import DecoderTokens, stream_target
from model.nn.bert import BERT
from model.nn.factory import Network
from model.nn.gpt import GPT
from model.nn.t5 import T5
from tasks.artifacts.tables.schema import SAMPLES
from tasks.common.numeric import seed64
from tasks.evaluate.config import EvaluateConfig
from tasks.evaluate.masked_lm import choose_positions
from tasks.tokenizer.base import Tokenizer

PROMPT_CHARS = 60
BLANK, BETWEEN = "___", " | "
HIDDEN_SHARE = 0.15
"""Share of the tokens of a BERT's sample that are masked."""


def heldout_prompts(texts: dict[str, list[str]]) -> tuple[str, ...]:
    """Return the beginning of the first held-out document of each source."""
    prompts = [heldout_prompt(text) for documents in texts.values() for text in documents[:1]]
    return tuple(prompt for prompt in prompts if prompt)


def heldout_prompt(text: str) -> str:
    """Return the beginning of a text, cut before a space where there is one."""
    beginning = text.strip()[:PROMPT_CHARS]
    whole = beginning.rpartition(" ")[0] if len(text.strip()) > PROMPT_CHARS else beginning
    return whole or beginning


def write_samples(
    network: Network,
    tokenizer: Tokenizer,
    row_format: RowFormat | None,
    texts: dict[str, list[str]],
    config: EvaluateConfig,
) -> pa.Table:
    """Return SAMPLES: a row for every prompt and temperature. `row_format` is that of the training sequences."""
    if isinstance(network, GPT):
        rows = _continue_prompts(network, tokenizer, config.prompts or heldout_prompts(texts), config)
    else:
        assert row_format is not None, "sequences of BERT and T5 declare their format"
        most = min(config.sample_tokens, network.config.context - FRAME_TOKENS)
        beginnings = [ids[:most] for texts in texts.values() for ids in tokenizer.encode_batch(texts[:1])]
        rows = []
        for ids in (ids for ids in beginnings if len(ids) > 1):
            if isinstance(network, BERT):
                rows += _fill_masks(network, tokenizer, row_format, ids, config)
            else:
                rows += _write_targets(network, tokenizer, row_format, ids, config)
    return pa.Table.from_pylist(rows, schema=SAMPLES)


def _continue_prompts(
    network: GPT, tokenizer: Tokenizer, prompts: Sequence[str], config: EvaluateConfig
) -> list[dict[str, object]]:
    asked = [(prompt, temperature) for prompt in prompts for temperature in config.temperatures]
    samplings = [
        Sampling(temperature, config.top_p, seed=_seed(config, temperature, prompt)) for prompt, temperature in asked
    ]
    written = continue_texts(network, tokenizer, [prompt for prompt, _ in asked], samplings, config.sample_tokens)
    return [
        {"prompt": prompt, "text": tokenizer.decode_following(ids), "temperature": temperature, "seed": sampling.seed}
        for (prompt, temperature), sampling, ids in zip(asked, samplings, written, strict=True)
    ]


def continue_texts(
    network: GPT, tokenizer: Tokenizer, texts: Sequence[str], samplings: Sequence[Sampling], most_tokens: int
) -> list[list[int]]:
    """Return the ids with which the network continues each text, at most `most_tokens`."""
    asked = zip(texts, samplings, strict=True)
    prompts = [Prompt([tokenizer.opening, *tokenizer.encode(text)], sampling) for text, sampling in asked]
    return generate_batch(network, prompts, max_new_tokens=most_tokens, stop=tokenizer.eos)


def _fill_masks(
    network: BERT, tokenizer: Tokenizer, row_format: RowFormat, ids: np.ndarray, config: EvaluateConfig
) -> list[dict[str, object]]:
    """Return the beginning of a text with some of its tokens masked, filled at each temperature."""
    draw = seed64(config.seed, "evaluate", "hidden sample", tokenizer.decode(ids))
    blank_ids = choose_positions(len(ids), max(1, round(HIDDEN_SHARE * len(ids))), draw)
    hidden = ids.copy()
    hidden[blank_ids] = row_format.mask
    missing = [tokenizer.decode_following([token]) for token in ids[blank_ids]]
    prompt = with_blanks(tokenizer, hidden, {row_format.mask}, missing)
    allowed_V = torch.ones(tokenizer.vocab_size, dtype=torch.bool)
    allowed_V[list(row_format.special)] = False
    row = Frame(row_format.cls, row_format.sep, row_format.mask).around(hidden.tolist())

    def fill(sampling: Sampling) -> list[str]:
        filled = fill_masks(network, row, (blank_ids + 1).tolist(), allowed_V.expand(len(blank_ids), -1), sampling)
        return [tokenizer.decode_following([one.token]) for one in filled]

    return _filled_samples(prompt, missing, fill, config)


def _write_targets(
    network: T5, tokenizer: Tokenizer, row_format: RowFormat, ids: np.ndarray, config: EvaluateConfig
) -> list[dict[str, object]]:
    """Return the beginning of a text corrupted as in training, and what the decoder generates at each temperature."""
    first = np.zeros(1, dtype=np.int64)
    corrupted = Denoiser(row_format, config.seed, len(ids))(ids[None].astype(np.int64), first, first)
    inputs = corrupted.inputs_BT[0, : corrupted.input_lengths_B[0]]
    targets = corrupted.targets_BU[0][corrupted.targets_BU[0] != NO_LOSS]
    blank_ids = {*row_format.sentinels, row_format.mask}
    missing = fillings(tokenizer, targets.tolist(), blank_ids)
    prompt = with_blanks(tokenizer, inputs[:-1], blank_ids, missing)
    writing = DecoderTokens(row_format.pad, row_format.eos)

    def write(sampling: Sampling) -> list[str]:
        written = list(stream_target(network, inputs.tolist(), writing, sampling, max_new_tokens=len(targets)))
        return fillings(tokenizer, written, blank_ids)

    return _filled_samples(prompt, missing, write, config)


def _filled_samples(
    prompt: str, missing: Sequence[str], fill: Callable[[Sampling], list[str]], config: EvaluateConfig
) -> list[dict[str, object]]:
    """Return what `fill` puts into the blanks of a prompt at each temperature, and what is missing there."""
    rows: list[dict[str, object]] = []
    for temperature in config.temperatures:
        seed = _seed(config, temperature, prompt)
        text, truth = join_fillings(fill(Sampling(temperature, config.top_p, seed=seed))), join_fillings(missing)
        rows.append({"prompt": prompt, "text": text, "temperature": temperature, "seed": seed, "truth": truth})
    return rows


def with_blanks(
    tokenizer: Tokenizer, ids: Sequence[int] | np.ndarray, blank_ids: set[int], missing: Sequence[str]
) -> str:
    """Return the text of `ids` with a blank in place of each id of `blank_ids`, after a space where the missing text
    begins with one."""
    first, *others = _split_at_blanks(tokenizer, ids, blank_ids)
    blanks = [" " if text.startswith(" ") else "" for text in missing] + [""] * len(others)
    return (first + "".join(f"{blank}{BLANK}{part}" for blank, part in zip(blanks, others, strict=False))).strip()


def fillings(tokenizer: Tokenizer, ids: Sequence[int], blank_ids: set[int]) -> list[str]:
    """Return what follows each id of `blank_ids` in a decoder's output; all of it where it has none of them."""
    parts = _split_at_blanks(tokenizer, ids, blank_ids)
    return parts[1:] if len(parts) > 1 and not parts[0] else parts


def join_fillings(texts: Sequence[str]) -> str:
    """Return the fillings in one line, those of whitespace alone in quotation marks."""
    return BETWEEN.join(text.strip() or repr(text) for text in texts)


def _split_at_blanks(tokenizer: Tokenizer, ids: Sequence[int] | np.ndarray, blank_ids: set[int]) -> list[str]:
    parts: list[list[int]] = [[]]
    for token in ids:
        if int(token) in blank_ids:
            parts.append([])
        else:
            parts[-1].append(int(token))
    return [tokenizer.decode_following(part) for part in parts]


def _seed(config: EvaluateConfig, temperature: float, prompt: str) -> int:
    return seed64(config.seed, "evaluate", "sample", f"{temperature}/{prompt}") % 2**63
