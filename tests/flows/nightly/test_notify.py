"""What people are told, through a real HTTP server and a real SMTP server on the loopback."""

import socket
from email import message_from_string
from typing import Any

import pytest

from flows.nightly.notify import tell
from flows.nightly.settings import NotifyConfig

MESSAGE = {
    "event": "blocked",
    "subject": "night 1\nof r: blocked",
    "text": "Worse on notes.\n.\nPage: p\n",
    "why": "worse",
}


def test_a_webhook_gets_the_message_as_json(webhook: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BESSEMER_WEBHOOK_TOKEN", "t0ken")
    with webhook() as (address, heard):
        assert tell(NotifyConfig(webhook=address), "blocked", MESSAGE) == ["webhook: sent"]
    (one,) = heard
    assert one["path"] == "/hooks/nights"
    assert one["json"] == MESSAGE
    assert one["headers"]["Authorization"] == "Bearer t0ken"
    assert one["headers"]["Content-Type"] == "application/json"


def test_only_what_was_asked_for_is_told(webhook: Any) -> None:
    with webhook() as (address, heard):
        assert tell(NotifyConfig(webhook=address), "promoted", MESSAGE) == []
        assert tell(NotifyConfig(webhook=address, on=("promoted",)), "promoted", MESSAGE) == ["webhook: sent"]
        assert tell(NotifyConfig(), "failed", MESSAGE) == []
    assert len(heard) == 1


def test_a_mail_is_one_letter_to_all_with_its_subject_on_one_line(mailbox: Any) -> None:
    with mailbox() as (server, heard):
        config = NotifyConfig(mail_to=("a@example.org", "b@example.org"), mail_from="m@example.org", mail_server=server)
        assert tell(config, "failed", MESSAGE) == ["mail: sent"]
    (conversation,) = heard
    head, _, rest = conversation.partition("\ndata\n")
    assert "mail FROM:<m@example.org>" in head
    assert [line for line in head.splitlines() if line.startswith("rcpt")] == [
        "rcpt TO:<a@example.org>",
        "rcpt TO:<b@example.org>",
    ]
    letter = message_from_string(rest.partition("\n.\nquit")[0])
    assert letter["Subject"] == "night 1 of r: blocked"
    assert "Worse on notes." in letter.get_payload()


def test_a_server_in_trouble_is_asked_again_and_what_became_of_it_is_told_without_addresses(
    webhook: Any,
) -> None:
    with webhook(503, 500) as (address, heard):
        assert tell(NotifyConfig(webhook=address), "failed", MESSAGE, pause=0.0) == ["webhook: sent"]
        assert len(heard) == 3
    with webhook(503, 503, 404) as (address, _):
        told = tell(NotifyConfig(webhook=address), "failed", MESSAGE, pause=0.0)
    assert told == ["webhook: failed after 3 attempts (the server answered 404)"]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{probe.getsockname()[1]}"
        both = NotifyConfig(webhook=f"http://{nobody}/s3cret", mail_to=("a@example.org",), mail_server=nobody)
        told = tell(both, "failed", MESSAGE, pause=0.0)
    assert told == [
        "webhook: failed after 3 attempts (ConnectionRefusedError)",
        "mail: failed after 3 attempts (ConnectionRefusedError)",
    ]


def test_a_password_is_sent_in_tls_alone(mailbox: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BESSEMER_MAIL_USER", "u")
    monkeypatch.setenv("BESSEMER_MAIL_PASSWORD", "s3cret")
    with mailbox() as (server, heard):
        (told,) = tell(NotifyConfig(mail_to=("a@example.org",), mail_server=server), "failed", MESSAGE)
    assert "set notify.mail_starttls = true" in told
    assert heard == []
