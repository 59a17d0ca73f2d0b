"""Generate text with a trained model: a GPT continues a prompt, a T5 answers or fills blanks, a BERT fills blanks.

A space before a blank belongs to the text that fills it where the vocabulary writes spaces inside its tokens, as in the
text that the model was trained on.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

from model.errors import InputError
from model.finetune.description import FINETUNED
from tasks.models.load import Trained

if TYPE_CHECKING:
    from torch import Tensor

    from model.inference.generate import Sampling
    from model.nn.bert import BERT
    from model.nn.t5 import T5
    from tasks.tokenizer.base import Tokenizer

UNFINISHED = "\ufffd"
"""What an incomplete character is decoded to."""

BLANK = re.compile(r"_{3,}|\[MASK\]|<mask>|<extra_id_\d+>")
"""A blank in a prompt: three or more underscores, a mask token of BERT, or a sentinel of T5."""

_INSIDE = "##"


class Candidate(TypedDict):
    """A text that might fill a blank."""

    text: str
    probability: float


class FilledBlank(TypedDict):
    """The text of a blank; from a BERT with its probability, and the likeliest texts."""

    text: str
    probability: NotRequired[float]
    likeliest: NotRequired[list[Candidate]]


@dataclass(frozen=True)
class GeneratedText:
    """The text generated for a prompt."""

    text: str
    """The text after the prompt or, for a prompt with blanks, the prompt with its blanks filled."""
    blanks: tuple[FilledBlank, ...] = ()


def write_text(
    trained: Trained,
    prompt: str,
    sampling: "Sampling",
    *,
    tokens: int,
    sample: int = 0,
    write: Callable[[str], None] = lambda part: None,
) -> GeneratedText:
    """Generate text for `prompt`: at most `tokens` tokens, or as many in each blank for a T5.

    `write` is called with parts of the text as they are generated. Raises InputError for a BERT without blanks to fill.
    """
    from model.inference.generate import stream_tokens
    from model.nn.bert import BERT
    from model.nn.gpt import GPT
    from model.nn.t5 import T5

    network, tokenizer = trained.network, trained.tokenizer
    if isinstance(network, BERT):
        written = _masks_filled(trained, network, Blanks.in_text(prompt), sampling, sample)
        write(written.text)
        return written
    if isinstance(network, T5):
        blanks = Blanks.in_text(prompt)
        if len(blanks):
            written = _spans_filled(trained, network, blanks, sampling, tokens, sample)
            write(written.text)
            return written
        ids = _answer(trained, network, prompt, sampling, tokens, sample)
    else:
        assert isinstance(network, GPT), f"no way to write with a {type(network).__name__}"
        start = prompt_ids(tokenizer, prompt)
        ids = stream_tokens(network, start, sampling, max_new_tokens=tokens, stop=tokenizer.eos, sample=sample)
    decode = tokenizer.decode_following if prompt and continues_prompt(trained, prompt) else tokenizer.decode
    parts = []
    for part in decoded(ids, decode):
        parts.append(part)
        write(part)
    return GeneratedText("".join(parts))


def write_texts(
    trained: Trained, prompts: Sequence[str], sampling: "Sampling", *, tokens: int, samples: int = 1
) -> list[list[GeneratedText]]:
    """Return the texts that `write_text` generates for each prompt and sample, those of a GPT in batches."""
    from model.inference.generate import Prompt, generate_batch
    from model.nn.gpt import GPT

    if not isinstance(trained.network, GPT):
        return [
            [write_text(trained, prompt, sampling, tokens=tokens, sample=sample) for sample in range(samples)]
            for prompt in prompts
        ]
    tokenizer = trained.tokenizer
    asked = [Prompt(prompt_ids(tokenizer, prompt), sampling, sample) for prompt in prompts for sample in range(samples)]
    written = iter(generate_batch(trained.network, asked, max_new_tokens=tokens, stop=tokenizer.eos))
    found: list[list[GeneratedText]] = []
    for prompt in prompts:
        decode = tokenizer.decode_following if prompt else tokenizer.decode
        found.append([GeneratedText(decode(next(written))) for _ in range(samples)])
    return found


@dataclass(frozen=True)
class Blanks:
    """A text split at its blanks: one part more than there are blanks."""

    parts: tuple[str, ...]

    @staticmethod
    def in_text(text: str) -> "Blanks":
        """Split a text at the blanks that it marks."""
        return Blanks(tuple(BLANK.split(text)))

    def __len__(self) -> int:
        return len(self.parts) - 1

    def encoded(self, tokenizer: "Tokenizer", marks: Sequence[int]) -> tuple[list[int], list[int]]:
        """Return the ids of the text with `marks` in place of its blanks, and the position of each."""
        ids: list[int] = []
        places: list[int] = []
        for number, part in enumerate(self.parts):
            hole_follows = number < len(self)
            written = part.removesuffix(" ") if hole_follows and tokenizer.exact else part
            if written:
                ids += tokenizer.encode_following(written) if number else tokenizer.encode(written)
            if hole_follows:
                if marks[number] < 0:
                    raise InputError(
                        "the model's vocabulary has no mask token, so it cannot fill blanks; choose a model whose"
                        " vocabulary was built for masked_lm"
                    )
                places.append(len(ids))
                ids.append(marks[number])
        return ids, places

    def filling(self, tokenizer: "Tokenizer", ids: Sequence[int]) -> str:
        """Return the text that fills a blank, with the space that belongs to it."""
        return tokenizer.decode_following(ids).removeprefix(_INSIDE)

    def filled(self, tokenizer: "Tokenizer", fillings: Sequence[str]) -> str:
        """Return the whole text; a blank at its beginning is filled without a leading space."""
        text = ""
        for part, filling in zip(self.parts[:-1], fillings, strict=True):
            text += part.removesuffix(" ") if tokenizer.exact else part
            text += filling if text else filling.lstrip(" ")
        return text + self.parts[-1]

    def allowed(self, tokenizer: "Tokenizer", rows: int) -> "Tensor":
        """Return bool[blanks, vocabulary]: the tokens that may fill each blank.

        They begin with a space exactly where a space precedes the blank; special tokens and incomplete characters are
        excluded.
        """
        import torch

        begins = torch.zeros(rows, dtype=torch.bool)
        inside = torch.zeros(rows, dtype=torch.bool)
        for number, piece in enumerate(tokenizer.piece_bytes):
            if not piece.strip() or not _is_text(piece):
                continue
            if tokenizer.exact:
                (begins if piece.startswith(b" ") else inside)[number] = True
            else:
                inside[number] = True
                begins[number] = not tokenizer.decode_following([number]).startswith(_INSIDE)
        by_blank = []
        for number, part in enumerate(self.parts[:-1]):
            first = not number and not part
            spaced = part.endswith(" ") or (first and (tokenizer.leading_space or not tokenizer.exact))
            by_blank.append(begins if spaced and begins.any() else inside)
        return torch.stack(by_blank)


def _masks_filled(
    trained: Trained, network: "BERT", blanks: Blanks, sampling: "Sampling", sample: int
) -> GeneratedText:
    from model.inference.fill_mask import fill_masks

    tokenizer = trained.tokenizer
    if FINETUNED in trained.description:
        raise InputError(
            f"{trained.folder} is a BERT that was fine-tuned for a task, and fills no blanks; `bessemer model predict`"
            f" gives its predictions"
        )
    if not len(blanks):
        raise InputError(
            "a BERT does not continue a text, it fills blanks in it: write ___ or [MASK] for each masked token, as"
            ' in --prompt "The capital of France is ___."'
        )
    ids, places = blanks.encoded(tokenizer, [tokenizer.mask] * len(blanks))
    tokens = [tokenizer.cls, *ids, tokenizer.sep]
    allowed = blanks.allowed(tokenizer, network.config.vocab_size)
    found = fill_masks(network, tokens, [place + 1 for place in places], allowed, sampling, sample=sample)
    fillings = [blanks.filling(tokenizer, [one.token]) for one in found]
    filled = tuple(
        FilledBlank(
            text=filling.strip(),
            probability=one.probability,
            likeliest=[
                {"text": blanks.filling(tokenizer, [token]).strip(), "probability": probability}
                for token, probability in one.likeliest
            ],
        )
        for filling, one in zip(fillings, found, strict=True)
    )
    return GeneratedText(blanks.filled(tokenizer, fillings), filled)


def _spans_filled(
    trained: Trained, network: "T5", blanks: Blanks, sampling: "Sampling", tokens: int, sample: int
) -> GeneratedText:
    from model.inference.seq2seq import DecoderTokens, stream_target

    tokenizer = trained.tokenizer
    rule = _span_rule(tokenizer, len(blanks), tokens)
    inputs, _ = blanks.encoded(tokenizer, list(tokenizer.sentinels[: len(blanks)]))
    written = stream_target(
        network,
        [*inputs, tokenizer.eos],
        DecoderTokens(tokenizer.pad, tokenizer.eos),
        sampling,
        max_new_tokens=len(blanks) * (tokens + 1),
        allowed=rule,
        sample=sample,
    )
    fillings = [blanks.filling(tokenizer, span) for span in rule.spans(list(written))]
    filled = tuple(FilledBlank(text=filling.strip()) for filling in fillings)
    return GeneratedText(blanks.filled(tokenizer, fillings), filled)


def _span_rule(tokenizer: "Tokenizer", blanks: int, tokens: int) -> Any:
    from model.inference.seq2seq import SpanRule

    return SpanRule(tokenizer.sentinels, tokenizer.special, tokenizer.vocab_size, blanks, tokens, tokenizer.eos)


def _answer(
    trained: Trained, network: "T5", prompt: str, sampling: "Sampling", tokens: int, sample: int
) -> Iterator[int]:
    """Yield the answer of a fine-tuned T5; a T5 that was trained on span corruption fills a span after the prompt."""
    from model.inference.seq2seq import DecoderTokens, stream_target

    tokenizer = trained.tokenizer
    writing = DecoderTokens(tokenizer.pad, tokenizer.eos)
    ids = tokenizer.encode(prompt) if prompt else []
    if FINETUNED in trained.description:
        return stream_target(network, [*ids, tokenizer.eos], writing, sampling, max_new_tokens=tokens, sample=sample)
    rule = _span_rule(tokenizer, 1, tokens)
    inputs = [*ids, *tokenizer.sentinels[:1], tokenizer.eos]
    ended = stream_target(network, inputs, writing, sampling, max_new_tokens=tokens + 1, allowed=rule, sample=sample)
    return (token for token in ended if token not in tokenizer.sentinels)


def prompt_ids(tokenizer: "Tokenizer", prompt: str) -> list[int]:
    """Return the ids of a text that a GPT continues, after its begin token; those of an empty text are never empty."""
    if tokenizer.begin >= 0:
        return [tokenizer.begin, *tokenizer.encode(prompt)]
    return tokenizer.encode(prompt) if prompt else [tokenizer.eos]


def left_out(trained: Trained, prompt: str) -> str:
    """Return a sentence about the beginning of a prompt that a GPT does not read; empty where it reads all."""
    if trained.network.config.architecture != "gpt":
        return ""
    count, context = len(prompt_ids(trained.tokenizer, prompt)), trained.network.config.context
    if count <= context:
        return ""
    return f"of the prompt's {count} tokens the model reads the last {context}, its context"


def continues_prompt(trained: Trained, prompt: str) -> bool:
    """Return whether the model continues the prompt, rather than answering it or filling its blanks."""
    architecture = trained.network.config.architecture
    if architecture == "t5":
        return FINETUNED not in trained.description and not len(Blanks.in_text(prompt))
    return architecture == "gpt"


def decoded(ids: Iterator[int], decode: Callable[[list[int]], str]) -> Iterator[str]:
    """Yield the text of ids in parts; a character of several ids is yielded when it is complete."""
    seen: list[int] = []
    yielded = ""
    text = ""
    for token in ids:
        seen.append(token)
        text = decode(seen)
        certain = text.rstrip(UNFINISHED)
        if len(certain) > len(yielded) and certain.startswith(yielded):
            yield certain[len(yielded) :]
            yielded = certain
    if text != yielded and text.startswith(yielded):
        yield text[len(yielded) :]


def _is_text(piece: bytes) -> bool:
    try:
        piece.decode()
    except UnicodeDecodeError:
        return False
    return True
