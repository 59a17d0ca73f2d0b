"""Text from a trained model: a GPT goes on, a T5 fills holes or answers, a BERT fills holes."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flows.holes import Holes
from flows.trained import FINETUNED, Trained
from model.errors import InputError

if TYPE_CHECKING:
    from model.bert import BERT
    from model.sampling import Sampling
    from model.t5 import T5
    from tasks.tokenizer import Tokenizer

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
    from model.bert import BERT
    from model.t5 import T5
    from model.transformer import GPT

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
    from model.generate import stream_tokens

    tokenizer = trained.tokenizer
    ids = tokenizer.encode(prompt) if prompt else [tokenizer.eos]
    return stream_tokens(network, ids, sampling, max_new_tokens=tokens, stop=tokenizer.eos, sample=sample)


def _answer(
    trained: Trained, network: "T5", prompt: str, sampling: "Sampling", tokens: int, sample: int
) -> Iterator[int]:
    """A fine-tuned T5 answers the prompt; one that was trained to fill spans fills one at its end."""
    from model.encoder_decoder import Writing, stream_target

    tokenizer = trained.tokenizer
    writing = Writing(tokenizer.pad, tokenizer.eos)
    ids = tokenizer.encode(prompt) if prompt else []
    if FINETUNED in trained.description:
        return stream_target(network, [*ids, tokenizer.eos], writing, sampling, max_new_tokens=tokens, sample=sample)
    rule = _span_rule(tokenizer, 1, tokens)
    inputs = [*ids, *tokenizer.sentinels[:1], tokenizer.eos]
    ended = stream_target(network, inputs, writing, sampling, max_new_tokens=tokens + 1, allowed=rule, sample=sample)
    return (token for token in ended if token not in tokenizer.sentinels)


def _spans_filled(
    trained: Trained, network: "T5", holes: Holes, sampling: "Sampling", tokens: int, sample: int
) -> Written:
    from model.encoder_decoder import Writing, stream_target

    tokenizer = trained.tokenizer
    rule = _span_rule(tokenizer, len(holes), tokens)
    inputs, _ = holes.encoded(tokenizer, list(tokenizer.sentinels[: len(holes)]))
    written = stream_target(
        network,
        [*inputs, tokenizer.eos],
        Writing(tokenizer.pad, tokenizer.eos),
        sampling,
        max_new_tokens=len(holes) * (tokens + 1),
        allowed=rule,
        sample=sample,
    )
    fillings = [holes.filling(tokenizer, span) for span in rule.spans(list(written))]
    return Written(holes.filled(tokenizer, fillings), tuple({"text": filling.strip()} for filling in fillings))


def _masks_filled(trained: Trained, network: "BERT", holes: Holes, sampling: "Sampling", sample: int) -> Written:
    from model.fill_masks import fill_masks

    tokenizer = trained.tokenizer
    if FINETUNED in trained.description:
        raise InputError(
            f"{trained.folder} is a BERT that was fine-tuned for a task, and fills no holes; `bessemer predict`"
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
    from model.encoder_decoder import SpanRule

    return SpanRule(tokenizer.sentinels, tokenizer.special, tokenizer.vocab_size, holes, tokens, tokenizer.eos)
