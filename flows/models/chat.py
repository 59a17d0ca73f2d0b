"""A conversation with a trained GPT, in the terminal or for `chat_server.py`.

A model that was fine-tuned on conversations answers messages. Any other continues a text: what is typed is appended to
it, and so is what the model writes.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from flows.models.generate import UNFINISHED, prompt_ids
from model.errors import InputError
from model.finetune.chat_template import Message
from model.inference.device import Device, inference_on
from model.inference.generate import Prompt, Sampling, stream_batch
from model.nn.gpt import GPT
from tasks.models.load import Trained, chat_template

ALTERNATIVES = 6
"""Likeliest tokens that are reported beside each token."""

KEPT_SHARE = 0.75
"""Share of the context that a conversation may fill before an answer; older turns are left out beyond it."""

HELP = "/reset forgets what was said, /quit or Ctrl-D ends, Ctrl-C ends an answer"


@dataclass(frozen=True)
class ChatToken:
    """A token of an answer."""

    text: str
    """The characters that are complete with it; empty where one is not."""
    own: str
    """The token itself, spelled as in `likeliest`."""
    probability: float
    likeliest: tuple[tuple[str, float], ...]
    """The likeliest tokens in its place, itself mostly among them, with their probabilities."""


@dataclass(frozen=True)
class Answer:
    """An answer that is being written."""

    tokens: Iterator[ChatToken]
    left_out: int
    """Messages, or tokens of a text, before it that no longer fit into the model's context."""


class Chat:
    """A GPT that answers messages or continues a text; InputError for another network."""

    def __init__(self, trained: Trained, device: Device) -> None:
        if not isinstance(trained.network, GPT):
            raise InputError(
                f"model chat: a {trained.network.config.architecture} writes no conversation; `bessemer model generate`"
                f" fills its blanks, and `bessemer model predict` gives answers of a fine-tuned one"
            )
        self._network, self._tokenizer = trained.network, trained.tokenizer
        self._context = trained.network.config.context
        self._description = trained.description
        self._device: Device = device
        self._template = chat_template(trained)
        self._end = trained.tokenizer.eos if self._template is None else self._template.end(trained.tokenizer)
        self._names = {number: f"[{name}]" for name, number in trained.tokenizer.special_names.items()}

    @property
    def answers_messages(self) -> bool:
        """Whether the model was fine-tuned on conversations, or its tokenizer has a chat template."""
        return self._template is not None

    def answer(self, messages: Sequence[Message], sampling: Sampling, tokens: int) -> Answer:
        """Return the answer to messages, the last of which is the user's, of at most `tokens` tokens.

        Raises InputError where that message alone is longer than the context.
        """
        assert self._template is not None, "a model without a template continues texts"
        kept, ids = list(messages), self._template.prompt(messages, self._tokenizer)
        system = 1 if kept[0].role == "system" else 0
        while len(ids) > KEPT_SHARE * self._context and len(kept) > system + 2:
            del kept[system : system + 2]
            ids = self._template.prompt(kept, self._tokenizer)
        if len(ids) > self._context:
            raise InputError(
                f"the message with what must precede it has {len(ids)} tokens, and the model's context is"
                f" {self._context}; shorten it"
            )
        return Answer(self._stream(ids, sampling, tokens, stripped=True), len(messages) - len(kept))

    def continuation(self, text: str, sampling: Sampling, tokens: int) -> Answer:
        """Return what follows a text, of at most `tokens` tokens."""
        ids = prompt_ids(self._tokenizer, text)
        return Answer(self._stream(ids, sampling, tokens, stripped=False), max(0, len(ids) - self._context))

    def _stream(self, ids: list[int], sampling: Sampling, tokens: int, *, stripped: bool) -> Iterator[ChatToken]:
        seen: list[int] = []
        yielded = ""
        with inference_on(self._device, self._description, self._network):
            drawing = stream_batch(
                self._network, [Prompt(ids, sampling)], max_new_tokens=tokens, stop=self._end, alternatives=ALTERNATIVES
            )
            for one in drawing:
                seen.append(one.token)
                whole = self._tokenizer.decode_following(seen)
                if stripped:
                    whole = whole.lstrip(" ")
                certain = whole if len(seen) == tokens else whole.rstrip(UNFINISHED)
                fresh = certain[len(yielded) :] if certain.startswith(yielded) else ""
                yielded += fresh
                others = tuple((self._spelled(token), probability) for token, probability in one.likeliest)
                yield ChatToken(fresh, self._spelled(one.token), one.probability, others)

    def _spelled(self, token: int) -> str:
        """Return the text of one token, the name of a special one, or its bytes where they are no character."""
        data = self._tokenizer.decode_bytes([token])
        if not data:
            return self._names.get(token, f"[{token}]")
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "".join(f"<{byte:02X}>" for byte in data)


def talk(chat: Chat, sampling: Sampling, tokens: int, read: Callable[[str], str] = input) -> None:
    """Converse in the terminal until /quit or the end of input; `read` returns a line, given what invites to it.

    Ctrl-C ends the answer that is being written, not the chat. Each answer has a seed of its own, one higher.
    """
    say(f"{HELP}\n" if chat.answers_messages else f"A base model continues what you write. {HELP}\n")
    messages: list[Message] = []
    text = ""
    turn = 0
    while True:
        try:
            line = read("\n> ")
            line.encode()  # Python gives a byte that is no character as half of a surrogate pair.
        except EOFError:
            say("\n")
            return
        except KeyboardInterrupt:
            say("\n(/quit ends the chat)\n")
            continue
        except UnicodeError:
            say("(not UTF-8: type it again)\n")
            continue
        if line.strip() == "/quit":
            return
        if line.strip() == "/reset":
            messages, text = [], ""
            say("(forgotten)\n")
            continue
        if line.strip().startswith("/"):
            say(f"({line.strip().split()[0]} is no command. {HELP})\n")
            continue
        if not line.strip():
            continue
        drawn = Sampling(sampling.temperature, sampling.top_p, sampling.top_k, sampling.seed + turn)
        turn += 1
        if chat.answers_messages:
            asked = [*messages, Message("user", line)]
            try:
                answer = chat.answer(asked, drawn, tokens)
            except InputError as error:
                say(f"({error})\n")
                continue
            messages = [*asked, Message("assistant", _written(answer, "messages"))]
        else:
            text = f"{text}\n{line}" if text else line
            text += _written(chat.continuation(text, drawn, tokens), "tokens")


def _written(answer: Answer, unit: str) -> str:
    """Write an answer to stdout as it comes; return it, or its beginning where Ctrl-C ended it."""
    if answer.left_out:
        say(f"(the first {answer.left_out} {unit} no longer fit into the model's context)\n")
    parts: list[str] = []
    try:
        for token in answer.tokens:
            parts.append(token.text)
            say(token.text)
    except KeyboardInterrupt:
        say(" (stopped)")
    say("\n")
    return "".join(parts)


def say(text: str) -> None:
    """Write text to stdout at once; characters that control a terminal are escaped there."""
    sys.stdout.write(text)
    sys.stdout.flush()
