"""A conversation in the terminal, and over HTTP with the real server."""

import http.client
import json
import math
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from flows.cli import app
from flows.metrics.escaping import EscapedStream
from flows.models.chat import Answer, Chat, ChatToken, talk
from flows.models.chat_server import MAX_REQUEST_BYTES, address_of, chat_server
from model.config.network import BERTConfig, GPTConfig
from model.errors import InputError
from model.finetune.chat_template import ChatTemplate, Message
from model.inference.generate import Sampling
from model.nn.factory import make_network
from tasks.models.load import Trained
from tasks.tokenizer.base import Tokenizer
from tasks.tokenizer.sentencepiece import SentencePieceTokenizer
from tasks.vocab.config import VocabConfig
from tasks.vocab.train import train_sentencepiece
from tests.model.inference.reference import generate_tokens

GREEDY = Sampling(temperature=0.0)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    texts = [f"the cat number {n} sat on a mat while a dog ran to the river" for n in range(40)]
    return SentencePieceTokenizer(train_sentencepiece(texts, VocabConfig(vocab_size=330)))


@pytest.fixture(scope="module")
def trained(tokenizer: Tokenizer) -> Callable[[bool], Trained]:
    """A network that was never trained, as a base model or as one that answers messages."""
    config = GPTConfig(vocab_size=tokenizer.vocab_size, context=48, layers=1, heads=2, width=32, init_std=0.3)
    network = make_network(config).initialise(3).eval()

    def make(messages: bool) -> Trained:
        chat = ChatTemplate.own(tokenizer).description()
        return Trained(Path("nowhere"), network, tokenizer, {"finetuned": {"chat": chat}} if messages else {})

    return make


@pytest.fixture
def base(trained: Callable[[bool], Trained]) -> Chat:
    return Chat(trained(False), "cpu")


@pytest.fixture
def tuned(trained: Callable[[bool], Trained]) -> Chat:
    return Chat(trained(True), "cpu")


def texts_of(answer: Any) -> str:
    return "".join(token.text for token in answer.tokens)


def typed(*lines: str | type[BaseException]) -> Callable[[str], str]:
    waiting = iter([*lines, EOFError])

    def read(_: str) -> str:
        line = next(waiting)
        if isinstance(line, str):
            return line
        raise line

    return read


def test_tokens_have_their_probability_and_alternatives(base: Chat, trained: Callable[[bool], Trained]) -> None:
    tokens = list(base.continuation("the cat", GREEDY, 8).tokens)
    known = trained(False)
    ids = generate_tokens(known.network, known.tokenizer.encode("the cat"), max_new_tokens=8, temperature=0.0)  # pyright: ignore[reportArgumentType]
    assert "".join(token.text for token in tokens) == known.tokenizer.decode_following(ids)
    for token in tokens:
        assert token.likeliest[0] == (token.own, token.probability)
        shares = [share for _, share in token.likeliest]
        assert shares == sorted(shares, reverse=True)
        assert 0 < sum(shares) <= 1 + 1e-9
        assert len(shares) == 6


def test_a_long_conversation_loses_its_oldest_turns(tuned: Chat) -> None:
    turns = [Message("system", "be brief")]
    for number in range(6):
        turns += [Message("user", f"the cat {number}"), Message("assistant", "the dog ran")]
    turns.append(Message("user", "the river"))
    answer = tuned.answer(turns, GREEDY, 4)
    assert answer.left_out > 0
    assert answer.left_out % 2 == 0
    kept = [turns[0], *turns[1 + answer.left_out :]]
    assert texts_of(answer) == texts_of(tuned.answer(kept, GREEDY, 4))


def test_the_terminal_remembers_forgets_and_ends(tuned: Chat, capsys: pytest.CaptureFixture[str]) -> None:
    lines = ("the cat", "/reset", KeyboardInterrupt, "the cat", "the \udcff", "the dog", "/what", "", "/quit")
    talk(tuned, GREEDY, 6, typed(*lines))
    out = capsys.readouterr().out
    first = texts_of(tuned.answer([Message("user", "the cat")], GREEDY, 6))
    both = [Message("user", "the cat"), Message("assistant", first), Message("user", "the dog")]
    assert out.count(f"{first}\n") >= 2
    assert f"{texts_of(tuned.answer(both, GREEDY, 6))}\n" in out
    assert "(forgotten)" in out
    assert "/quit ends the chat" in out
    assert "/what is no command" in out
    assert "(not UTF-8: type it again)" in out


def test_a_base_model_goes_on_from_all_that_was_written(base: Chat, capsys: pytest.CaptureFixture[str]) -> None:
    talk(base, GREEDY, 5, typed("the cat", "on a mat"))
    out = capsys.readouterr().out
    first = texts_of(base.continuation("the cat", GREEDY, 5))
    assert f"{first}\n" in out
    assert f"{texts_of(base.continuation(f'the cat{first}' + chr(10) + 'on a mat', GREEDY, 5))}\n" in out


def test_an_interrupted_answer_ends_alone(
    base: Chat, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Chat.continuation

    def interrupted(self: Chat, text: str, sampling: Sampling, tokens: int) -> Any:
        answer = whole(self, text, sampling, tokens)

        def some() -> Iterator[Any]:
            yield next(answer.tokens)
            raise KeyboardInterrupt

        return type(answer)(some(), 0)

    monkeypatch.setattr(Chat, "continuation", interrupted)
    talk(base, GREEDY, 5, typed("the cat", "on"))
    assert capsys.readouterr().out.count("(stopped)") == 2


def test_control_characters_are_escaped_in_the_terminal(
    base: Chat, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command line writes to such a stream (`flows.cli.main`)."""
    evil = ChatToken("\x1b]0;owned\x07\u202e", "", 1.0, ())
    monkeypatch.setattr(Chat, "continuation", lambda *rest: Answer(iter([evil]), 0))
    monkeypatch.setattr(sys, "stdout", EscapedStream(sys.stdout))
    talk(base, GREEDY, 5, typed("the cat"))
    out = capsys.readouterr().out
    assert "\\u001b]0;owned\\u0007\\u202e" in out
    assert "\x1b" not in out


def test_the_command_talks_and_ends_with_its_input(
    trained: Callable[[bool], Trained], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = trained(False)
    monkeypatch.setattr("flows.models.load.open_trained", lambda root, model: known)
    words = ["model", "chat", "x", "--temperature", "0", "--tokens", "5", "--device", "cpu", "--root", str(tmp_path)]
    reported = CliRunner().invoke(app, words, input="the cat\n")
    assert reported.exit_code == 0, reported.stderr
    assert texts_of(Chat(known, "cpu").continuation("the cat", GREEDY, 5)) in reported.stdout


def test_a_bert_has_no_conversation(tokenizer: Tokenizer) -> None:
    config = BERTConfig(vocab_size=tokenizer.vocab_size, context=16, layers=1, heads=2, width=16)
    with pytest.raises(InputError, match="a bert writes no conversation"):
        Chat(Trained(Path("nowhere"), make_network(config), tokenizer, {}), "cpu")


class Page:
    """A client of a running server."""

    def __init__(self, server: Any) -> None:
        self.port = server.server_address[1]
        self.path = address_of(server).partition(f":{self.port}")[2]

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, Any, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body, {"Content-Type": "application/json", **named})
        found = connection.getresponse()
        return found.status, found.headers, found.read()

    def answer(self, **changes: object) -> tuple[int, list[dict[str, Any]]]:
        asked = {"temperature": 0.0, "top_p": 1.0, "seed": 1, "tokens": 6, **changes}
        status, _, body = self.ask("POST", f"{self.path}answer", json.dumps(asked).encode())
        return status, [json.loads(line) for line in body.splitlines()]


@pytest.fixture
def page(request: pytest.FixtureRequest) -> Iterator[Page]:
    """The server of the chat that the test's parameter names."""
    chat = request.getfixturevalue(request.param)
    with chat_server(chat, "a </script> model", GREEDY, 6) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield Page(server)
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("page", ["tuned"], indirect=True)
def test_the_page_answers_messages(page: Page, tuned: Chat) -> None:
    status, headers, body = page.ask("GET", page.path)
    assert (status, headers.get_content_type()) == (200, "text/html")
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    text = body.decode()
    assert '"messages": true' in text
    assert text.count("</script>") == 1
    assert "http://" not in text
    assert "https://" not in text
    status, lines = page.answer(messages=[{"role": "user", "content": "the cat"}])
    assert status == 200
    assert lines[0] == {"left_out": 0}
    assert lines[-1] == {"end": True}
    expected = list(tuned.answer([Message("user", "the cat")], GREEDY, 6).tokens)
    assert [line["text"] for line in lines[1:-1]] == [token.text for token in expected]
    assert [line["p"] for line in lines[1:-1]] == [round(token.probability, 4) for token in expected]
    assert all(len(line["likeliest"]) == 6 for line in lines[1:-1])
    status, (refused,) = page.answer(messages=[{"role": "assistant", "content": "x"}])
    assert status == 400
    assert "message 1 has the role 'assistant'" in refused["error"]


@pytest.mark.parametrize("page", ["base"], indirect=True)
def test_the_page_continues_a_text(page: Page, base: Chat) -> None:
    status, (refused,) = page.answer(text="the \ud83d")
    assert (status, "surrogates not allowed" in refused["error"]) == (400, True)
    status, lines = page.answer(text="the \x1b[31mcat")
    assert status == 200
    expected = texts_of(base.continuation("the \x1b[31mcat", GREEDY, 6))
    assert "".join(line["text"] for line in lines[1:-1]) == expected
    for wrong in (
        {"tokens": 0},
        {"tokens": 5000},
        {"top_p": 0},
        {"temperature": -1},
        {"temperature": math.nan},
        {"seed": "x"},
        {"text": 3},
    ):
        status, (refused,) = page.answer(**wrong)
        assert (status, list(refused)) == (400, ["error"]), wrong
    for body in (b"{", b"[]", b"\xff", b"[" * 500_000):
        assert page.ask("POST", f"{page.path}answer", body)[0] == 400
    assert page.ask("POST", f"{page.path}answer", b"{}", Content_Length=str(MAX_REQUEST_BYTES + 1))[0] == 400


@pytest.mark.parametrize("page", ["base"], indirect=True)
def test_requests_from_elsewhere_are_refused(page: Page) -> None:
    own = f"127.0.0.1:{page.port}"
    body = json.dumps({"temperature": 0, "top_p": 1, "seed": 1, "tokens": 1, "text": "the"}).encode()
    answer = f"{page.path}answer"
    assert page.ask("POST", answer, body, Host=f"localhost:{page.port}", Origin=f"http://{own}")[0] == 200
    for status, method, path, headers in (
        (403, "GET", page.path, {"Host": "evil.example"}),
        (403, "GET", page.path, {"Host": f"evil.example:{page.port}"}),
        (403, "GET", page.path, {"Host": "127.0.0.1"}),
        (403, "POST", answer, {"Origin": "http://evil.example"}),
        (403, "POST", answer, {"Origin": "null"}),
        (404, "GET", "/", {}),
        (404, "GET", "/" + "x" * 32 + "/", {}),
        (404, "POST", "/" + "x" * 32 + "/answer", {}),
        (404, "GET", f"{page.path}../../etc/passwd", {}),
        (415, "POST", answer, {"Content-Type": "text/plain"}),
    ):
        found, _, reported = page.ask(method, path, body, **headers)
        assert found == status, (method, path, headers, reported)
        assert page.path.strip("/") not in reported.decode()


@pytest.mark.parametrize("page", ["base"], indirect=True)
def test_a_page_that_is_closed_ends_its_answer(page: Page) -> None:
    """The next request is answered although the first one asked for many tokens and went away."""
    connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=60)
    asked = {"temperature": 0.0, "top_p": 1.0, "seed": 1, "tokens": 4096, "text": "the"}
    connection.request("POST", f"{page.path}answer", json.dumps(asked), {"Content-Type": "application/json"})
    found = connection.getresponse()
    assert json.loads(found.readline()) == {"left_out": 0}
    assert "text" in json.loads(found.readline())
    found.close()
    connection.close()
    status, lines = page.answer(text="the cat", tokens=2)
    assert status == 200
    assert len(lines) <= 4


def test_a_port_that_is_taken_is_named(base: Chat) -> None:
    with chat_server(base, "one", GREEDY, 6) as server:
        assert address_of(server).startswith("http://127.0.0.1:")
        port = int(server.server_address[1])
        with pytest.raises(InputError, match=f"port {port} of this machine"), chat_server(base, "two", GREEDY, 6, port):
            raise AssertionError("the port is free")


def test_a_message_beyond_the_context_is_refused_and_the_chat_goes_on(
    tuned: Chat, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InputError, match=r"tokens, and the model's context is 48"):
        tuned.answer([Message("user", "the cat sat on a mat. " * 20)], GREEDY, 4)
    talk(tuned, GREEDY, 2, typed("the cat", "the cat sat on a mat. " * 20, "the dog", "/quit"))
    assert capsys.readouterr().out.count("context is 48") == 1
