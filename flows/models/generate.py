"""Text from a trained model: a GPT goes on, a T5 fills holes or answers, a BERT fills holes.

Holes in a text: where they are, which tokens surround them, what may stand in them.

A blank before a hole belongs to what fills it where the vocabulary writes blanks inside its pieces, as it did in the
text that the model was trained on.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flows.models.load import FINETUNED, Trained
from model.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from model.inference.generate import Sampling
    from model.nn.bert import BERT
    from model.nn.t5 import T5
    from tasks.tokenizer.base import Tokenizer


UNFINISHED = "\ufffd"
"""What the first bytes of a character are decoded to."""


@dataclass(frozen=True)
class Written:
    """What a model made of a prompt."""

    text: str
    """What follows the prompt or, where it has holes, the prompt with its holes filled."""
    holes: tuple[dict[str, Any], ...] = ()
    """`text` of each hole and, from a BERT, its `probability` and the `likeliest` texts with theirs."""


def goes_on(trained: Trained, prompt: str) -> bool:
    """Whether what the model writes goes on from the prompt, and neither answers it nor fills its holes."""
    architecture = trained.network.config.architecture
    if architecture == "t5":
        return FINETUNED not in trained.description and not len(Holes.in_text(prompt))
    return architecture == "gpt"


def write_text(
    trained: Trained,
    prompt: str,
    sampling: "Sampling",
    *,
    tokens: int,
    sample: int = 0,
    tell: Callable[[str], None] = lambda part: None,
) -> Written:
    """What the model makes of `prompt`: at most `tokens` tokens, of a T5 as many in each hole.

    `tell` hears the text in parts as it is written. Raises InputError for a BERT without holes to fill.
    """
    from model.nn.bert import BERT
    from model.nn.gpt import GPT
    from model.nn.t5 import T5

    network = trained.network
    if isinstance(network, BERT):
        written = _masks_filled(trained, network, Holes.in_text(prompt), sampling, sample)
        tell(written.text)
        return written
    if isinstance(network, T5):
        holes = Holes.in_text(prompt)
        if len(holes):
            written = _spans_filled(trained, network, holes, sampling, tokens, sample)
            tell(written.text)
            return written
        ids = _answer(trained, network, prompt, sampling, tokens, sample)
    else:
        assert isinstance(network, GPT), f"no way to write with a {type(network).__name__}"
        ids = _continuation(trained, network, prompt, sampling, tokens, sample)
    decode = trained.tokenizer.decode_following if prompt and goes_on(trained, prompt) else trained.tokenizer.decode
    parts = []
    for part in decoded(ids, decode):
        parts.append(part)
        tell(part)
    return Written("".join(parts))


def decoded(ids: Iterator[int], decode: Callable[[list[int]], str]) -> Iterator[str]:
    """The text of ids as it becomes certain: a character whose bytes are several ids comes when it is whole."""
    seen: list[int] = []
    told = ""
    text = ""
    for token in ids:
        seen.append(token)
        text = decode(seen)
        certain = text.rstrip(UNFINISHED)
        if len(certain) > len(told) and certain.startswith(told):
            yield certain[len(told) :]
            told = certain
    if text != told and text.startswith(told):
        yield text[len(told) :]


def _continuation(
    trained: Trained, network: Any, prompt: str, sampling: "Sampling", tokens: int, sample: int
) -> Iterator[int]:
    from model.inference.generate import stream_tokens

    tokenizer = trained.tokenizer
    ids = tokenizer.encode(prompt) if prompt else [tokenizer.eos]
    return stream_tokens(network, ids, sampling, max_new_tokens=tokens, stop=tokenizer.eos, sample=sample)


def _answer(
    trained: Trained, network: "T5", prompt: str, sampling: "Sampling", tokens: int, sample: int
) -> Iterator[int]:
    """A fine-tuned T5 answers the prompt; one that was trained to fill spans fills one at its end."""
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


@dataclass(frozen=True)
class Holes:
    """A text cut at its holes: one stretch more than there are holes."""

    stretches: tuple[str, ...]

    @staticmethod
    def in_text(text: str) -> "Holes":
        """The holes that a text marks."""
        return Holes(tuple(BLANK.split(text)))

    def __len__(self) -> int:
        return len(self.stretches) - 1

    def encoded(self, tokenizer: "Tokenizer", marks: Sequence[int]) -> tuple[list[int], list[int]]:
        """Ids of the text with `marks` in place of its holes, and the place of each."""
        ids: list[int] = []
        places: list[int] = []
        for number, stretch in enumerate(self.stretches):
            hole_follows = number < len(self)
            written = stretch.removesuffix(" ") if hole_follows and tokenizer.exact else stretch
            if written:
                ids += tokenizer.encode_following(written) if number else tokenizer.encode(written)
            if hole_follows:
                if marks[number] < 0:
                    raise InputError(
                        "the model's vocabulary has no mask, so its holes have no name; choose a model whose"
                        " vocabulary was built for masked_lm"
                    )
                places.append(len(ids))
                ids.append(marks[number])
        return ids, places

    def filling(self, tokenizer: "Tokenizer", ids: Sequence[int]) -> str:
        """The text of what stands in a hole, with the blank that belongs to it."""
        return tokenizer.decode_following(ids).removeprefix(_INSIDE)

    def filled(self, tokenizer: "Tokenizer", fillings: Sequence[str]) -> str:
        """The whole text; a hole that begins it begins with no blank."""
        text = ""
        for stretch, filling in zip(self.stretches[:-1], fillings, strict=True):
            text += stretch.removesuffix(" ") if tokenizer.exact else stretch
            text += filling if text else filling.lstrip(" ")
        return text + self.stretches[-1]

    def allowed(self, tokenizer: "Tokenizer", rows: int) -> "Tensor":
        """bool[holes, rows]: pieces of text that begin with a blank where one stands before the hole, and that do not
        where none does; no special tokens and no halves of characters."""
        import torch

        begins = torch.zeros(rows, dtype=torch.bool)
        goes_on = torch.zeros(rows, dtype=torch.bool)
        for number, piece in enumerate(tokenizer.piece_bytes):
            if not piece.strip() or not _is_text(piece):
                continue
            if tokenizer.exact:
                (begins if piece.startswith(b" ") else goes_on)[number] = True
            else:
                goes_on[number] = True
                begins[number] = not tokenizer.decode_following([number]).startswith(_INSIDE)
        by_hole = []
        for number, stretch in enumerate(self.stretches[:-1]):
            first = not number and not stretch
            blank = stretch.endswith(" ") or (first and (tokenizer.leading_space or not tokenizer.exact))
            by_hole.append(begins if blank and begins.any() else goes_on)
        return torch.stack(by_hole)


def _spans_filled(
    trained: Trained, network: "T5", holes: Holes, sampling: "Sampling", tokens: int, sample: int
) -> Written:
    from model.inference.seq2seq import DecoderTokens, stream_target

    tokenizer = trained.tokenizer
    rule = _span_rule(tokenizer, len(holes), tokens)
    inputs, _ = holes.encoded(tokenizer, list(tokenizer.sentinels[: len(holes)]))
    written = stream_target(
        network,
        [*inputs, tokenizer.eos],
        DecoderTokens(tokenizer.pad, tokenizer.eos),
        sampling,
        max_new_tokens=len(holes) * (tokens + 1),
        allowed=rule,
        sample=sample,
    )
    fillings = [holes.filling(tokenizer, span) for span in rule.spans(list(written))]
    return Written(holes.filled(tokenizer, fillings), tuple({"text": filling.strip()} for filling in fillings))


def _masks_filled(trained: Trained, network: "BERT", holes: Holes, sampling: "Sampling", sample: int) -> Written:
    from model.inference.fill_mask import fill_masks

    tokenizer = trained.tokenizer
    if FINETUNED in trained.description:
        raise InputError(
            f"{trained.folder} is a BERT that was fine-tuned for a task, and fills no holes; `bessemer model predict`"
            f" gives its answers"
        )
    if not len(holes):
        raise InputError(
            "a BERT does not go on with a text, it fills holes in one: write ___ or [MASK] for each hidden token, as"
            ' in --prompt "The capital of France is ___."'
        )
    ids, places = holes.encoded(tokenizer, [tokenizer.mask] * len(holes))
    tokens = [tokenizer.cls, *ids, tokenizer.sep]
    allowed = holes.allowed(tokenizer, network.config.vocab_size)
    found = fill_masks(network, tokens, [place + 1 for place in places], allowed, sampling, sample=sample)
    fillings = [holes.filling(tokenizer, [one.token]) for one in found]
    told = tuple(
        {
            "text": filling.strip(),
            "probability": one.probability,
            "likeliest": [
                {"text": holes.filling(tokenizer, [token]).strip(), "probability": probability}
                for token, probability in one.likeliest
            ],
        }
        for filling, one in zip(fillings, found, strict=True)
    )
    return Written(holes.filled(tokenizer, fillings), told)


def _span_rule(tokenizer: "Tokenizer", holes: int, tokens: int) -> Any:
    from model.inference.seq2seq import SpanRule

    return SpanRule(tokenizer.sentinels, tokenizer.special, tokenizer.vocab_size, holes, tokens, tokenizer.eos)


BLANK = re.compile(r"_{3,}|\[MASK\]|<mask>|<extra_id_\d+>")
"""Three or more underscores, a mask of BERT's, or a sentinel of T5's; in a prompt they all mean a hole."""

_INSIDE = "##"


def _is_text(piece: bytes) -> bool:
    try:
        piece.decode()
    except UnicodeDecodeError:
        return False
    return True
