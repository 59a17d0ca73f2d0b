"""Chat templates: messages become tokens, of which those of answers are marked.

A template is one of Jinja, as published tokenizers have them (`chat_template`); `OWN_TEMPLATE` is used where there is
none. It is rendered with marks in place of what people wrote, so that text of a message is never read as a special
token, and the tokens of an answer are known exactly: its text, and the special token after it, which ends it.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Literal

from model.errors import InputError
from model.finetune.description import TemplateDescription
from model.finetune.tokenizer import Vocabulary

Role = Literal["system", "user", "assistant"]

OWN_TEMPLATE = (
    "{{ eos_token }}"
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}Assistant: {{ message['content'] }}{{ eos_token }}"
    "{% elif message['role'] == 'system' %}System: {{ message['content'] }}{{ '\\n' }}"
    "{% else %}User: {{ message['content'] }}{{ '\\n' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)
"""Words before each message, and the end of text before a conversation and after each answer: a template for any
vocabulary, since it needs no tokens of its own. A vocabulary whose texts begin with a token has that one first."""

_OPEN, _CLOSE, _SPACE = "\ue0f0", "\ue0f1", "\u205f"

_LINES = "\n" * 40
"""More line feeds than a template writes itself."""

_MARK = re.compile(f"({_LINES})?({_SPACE})?{_OPEN}(\\d+){_CLOSE}({_SPACE})?({_LINES})?")
"""The mark in place of a message; a template that trims messages removes the spaces around it, or the line feeds."""


@dataclass(frozen=True)
class Message:
    """One turn of a conversation."""

    role: Role
    content: str


@dataclass(frozen=True)
class Conversation:
    """Tokens of messages, and which of them answers are learnt from."""

    ids: list[int]
    is_answer: list[bool]
    """For each token whether it belongs to an answer of the assistant, or ends one."""


@dataclass(frozen=True)
class ChatTemplate:
    """A template with the names of the special tokens that it writes."""

    source: str
    """The template in Jinja."""
    bos_token: str
    eos_token: str

    @staticmethod
    def own(vocabulary: Vocabulary) -> "ChatTemplate":
        """Return the template `OWN_TEMPLATE` of a vocabulary; InputError where its end of text has no name."""
        names = {number: name for name, number in vocabulary.special_names.items()}
        if vocabulary.eos not in names:
            raise InputError("the vocabulary has no named end-of-text token, which ends the answers of a conversation")
        if vocabulary.begin not in names:
            return ChatTemplate(OWN_TEMPLATE, "", names[vocabulary.eos])
        source = OWN_TEMPLATE.replace("eos_token", "bos_token", 1)
        return ChatTemplate(source, names[vocabulary.begin], names[vocabulary.eos])

    @staticmethod
    def of_description(description: TemplateDescription) -> "ChatTemplate":
        """Return the template that `description` was made from."""
        return ChatTemplate(description["source"], description["bos_token"], description["eos_token"])

    def description(self) -> TemplateDescription:
        """Return the template as JSON values."""
        return {"source": self.source, "bos_token": self.bos_token, "eos_token": self.eos_token}

    def conversation(self, messages: Sequence[Message], vocabulary: Vocabulary) -> Conversation:
        """Return the tokens of messages, those of each answer of the assistant marked with the token that ends it.

        Raises InputError for a template that cannot write the messages, or that ends answers by no special token.
        """
        found = Conversation([], [])
        answer_is_open = False
        for text, message in self._parts(messages, generation_prompt=False):
            if message is not None:
                is_answer = message.role == "assistant"
                ids = vocabulary.encode_following(text)
                found.ids.extend(ids)
                found.is_answer.extend([is_answer] * len(ids))
                answer_is_open = is_answer
                continue
            if answer_is_open:
                first = self._pattern(vocabulary).match(text)
                if first is None:
                    raise InputError(
                        f"the chat template writes {text[:20]!r} after an answer, which is no special token, so that"
                        f' the model would not learn to end its answers. Set template = "own" above the first [[tasks]]'
                    )
                answer_is_open = False
                found.ids.append(vocabulary.special_names[first[0]])
                found.is_answer.append(True)
                text = text[first.end() :]
            ids = self._with_special(text, vocabulary)
            found.ids.extend(ids)
            found.is_answer.extend([False] * len(ids))
        if answer_is_open:
            raise InputError(
                "the chat template writes nothing after the last answer, so that the model would not learn to end it."
                ' Set template = "own" above the first [[tasks]]'
            )
        return found

    def prompt(self, messages: Sequence[Message], vocabulary: Vocabulary) -> list[int]:
        """Return the tokens after which the assistant's answer follows; a space before the answer belongs to it."""
        ids: list[int] = []
        parts = self._parts(messages, generation_prompt=True)
        if parts[-1][1] is None:
            parts[-1] = (parts[-1][0].removesuffix(" "), None)
        for text, message in parts:
            ids += self._with_special(text, vocabulary) if message is None else vocabulary.encode_following(text)
        return ids

    def end(self, vocabulary: Vocabulary) -> int:
        """Return the id that ends an answer."""
        found = self.conversation([Message("user", "a"), Message("assistant", "b")], vocabulary)
        return next(i for i, is_answer in zip(reversed(found.ids), reversed(found.is_answer), strict=True) if is_answer)

    def _parts(self, messages: Sequence[Message], *, generation_prompt: bool) -> list[tuple[str, Message | None]]:
        """Return the text of the template and of the messages in order; a space before a message belongs to it."""
        marks = (f"{_LINES}{_SPACE}{_OPEN}{number}{_CLOSE}{_SPACE}{_LINES}" for number in range(len(messages)))
        marked = [{"role": one.role, "content": mark} for one, mark in zip(messages, marks, strict=True)]
        compiled = self._compiled
        try:
            rendered = compiled.render(
                messages=marked,
                add_generation_prompt=generation_prompt,
                bos_token=self.bos_token,
                eos_token=self.eos_token,
                tools=None,
                documents=None,
            )
        except Exception as error:
            # Templates are programs of others, and raise whatever they like.
            raise InputError(
                f"the chat template cannot write messages of {', '.join(one.role for one in messages)}:"
                f' {type(error).__name__}: {error}. Set template = "own" above the first [[tasks]]'
            ) from error
        before, *pieces = _MARK.split(rendered)
        written = [int(number) for number in pieces[2::6]]
        if written != list(range(len(messages))):
            raise InputError(
                f"the chat template writes the messages {written} of {len(messages)}, where each was expected once, in"
                f' order. Set template = "own" above the first [[tasks]]'
            )
        parts: list[tuple[str, Message | None]] = []
        for place, message in enumerate(messages):
            first_lines, left, _, right, last_lines, after = pieces[6 * place : 6 * place + 6]
            stripped = before.removesuffix(" ")
            parts += [(stripped, None)] if stripped else []
            content = message.content if first_lines else message.content.lstrip("\n" if left else None)
            content = content if last_lines else content.rstrip("\n" if right else None)
            parts.append((before[len(stripped) :] + content, message))
            before = after
        return [*parts, (before, None)] if before else parts

    def _with_special(self, text: str, vocabulary: Vocabulary) -> list[int]:
        ids: list[int] = []
        begin = 0
        for found in self._pattern(vocabulary).finditer(text):
            if found.start() > begin:
                ids += vocabulary.encode_following(text[begin : found.start()])
            ids.append(vocabulary.special_names[found[0]])
            begin = found.end()
        return ids + (vocabulary.encode_following(text[begin:]) if begin < len(text) else [])

    def _pattern(self, vocabulary: Vocabulary) -> re.Pattern[str]:
        longest_first = sorted(filter(None, vocabulary.special_names), key=len, reverse=True)
        return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    @cached_property
    def _compiled(self) -> Any:
        from jinja2 import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        def raise_exception(message: str) -> None:
            raise TemplateError(message)

        # As `transformers` renders templates; the sandbox keeps them from running anything else.
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.globals |= {"raise_exception": raise_exception, "strftime_now": _no_clock}
        try:
            return environment.from_string(self.source)
        except TemplateError as error:
            raise InputError(f"the chat template is no Jinja: {error}") from error


def _no_clock(form: str) -> str:
    """Return a fixed day, since tokens may not depend on the clock."""
    return datetime(2000, 1, 1, tzinfo=UTC).strftime(form)


def read_messages(value: Any, where: str, *, answered: bool) -> tuple[Message, ...]:
    """Return the messages of a record; InputError where they are none, or in another order than a conversation's.

    An optional system message, then user and assistant by turns; the last is the assistant's if `answered`, else the
    user's.
    """
    if not isinstance(value, list) or not value:
        raise InputError(f'{where} must be a list of {{"role": ..., "content": ...}}, and is {value!r}'[:300])
    messages: list[Message] = []
    for number, one in enumerate(value, 1):
        place = f"{where}, message {number}"
        if not isinstance(one, dict) or not isinstance(one.get("content"), str):
            raise InputError(f"{place} must have a role and content that is text, and is {one!r}"[:300])
        turn = number - (messages[0].role == "system" if messages else 0)
        expected = ("user", "system") if number == 1 else (("user",) if turn % 2 else ("assistant",))
        if one.get("role") not in expected:
            raise InputError(
                f"{place} has the role {one.get('role')!r}, where {' or '.join(expected)} was expected: after an"
                f" optional system message, user and assistant take turns"
            )
        messages.append(Message(one["role"], one["content"]))
    last = "assistant" if answered else "user"
    if messages[-1].role != last:
        raise InputError(f"{where} ends with a message of {messages[-1].role}, and its last must be of {last}")
    return tuple(messages)
