"""The notifications of people, through a real HTTP server and a real SMTP server on the loopback."""

import socket
import threading
from email import message_from_string
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from flows.nightly.config import NotifyConfig, read_notify
from flows.nightly.history import Night
from flows.nightly.notify import describe_blocked, message, notify
from model.errors import RecipeError

MESSAGE = {
    "event": "blocked",
    "subject": "night 1\nof r: blocked",
    "text": "Worse on notes.\n.\nPage: p\n",
    "why": "worse",
}


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flows.nightly.notify.PAUSE_SECONDS", 0.0)


def test_a_webhook_gets_the_message_as_json(webhook: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BESSEMER_WEBHOOK_TOKEN", "t0ken")
    with webhook() as (address, heard):
        assert notify(NotifyConfig(webhook=address), "blocked", MESSAGE) == ["webhook: sent"]
    (one,) = heard
    assert one["path"] == "/hooks/nights"
    assert one["json"] == MESSAGE
    assert one["headers"]["Authorization"] == "Bearer t0ken"
    assert one["headers"]["Content-Type"] == "application/json"


def test_only_what_was_asked_for_is_reported(webhook: Any) -> None:
    with webhook() as (address, heard):
        assert notify(NotifyConfig(webhook=address), "promoted", MESSAGE) == []
        assert notify(NotifyConfig(webhook=address, on=("promoted",)), "promoted", MESSAGE) == ["webhook: sent"]
        assert notify(NotifyConfig(), "failed", MESSAGE) == []
    assert len(heard) == 1


def test_a_mail_is_one_letter_to_all_with_its_subject_on_one_line(mailbox: Any) -> None:
    with mailbox() as (server, heard):
        config = NotifyConfig(mail_to=("a@example.org", "b@example.org"), mail_from="m@example.org", mail_server=server)
        assert notify(config, "failed", MESSAGE) == ["mail: sent"]
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


def test_a_file_name_that_is_no_utf_8_does_not_keep_a_mail_back(mailbox: Any) -> None:
    with mailbox() as (server, heard):
        config = NotifyConfig(mail_to=("a@example.org",), mail_from="m@example.org", mail_server=server)
        named = {"subject": "night 1 of r\udce9", "text": "files that cannot be read: notes: caf\udce9.txt\n"}
        assert notify(config, "failed", {**MESSAGE, **named}) == ["mail: sent"]
    letter = message_from_string(heard[0].partition("\ndata\n")[2].partition("\n.\nquit")[0])
    assert letter["Subject"] == "night 1 of r\\udce9"
    assert "notes: caf\\udce9.txt" in letter.get_payload()


def test_a_server_in_trouble_is_asked_again_and_what_became_of_it_is_reported_without_addresses(
    webhook: Any,
) -> None:
    with webhook(503, 500) as (address, heard):
        assert notify(NotifyConfig(webhook=address), "failed", MESSAGE) == ["webhook: sent"]
        assert len(heard) == 3
    with webhook(503, 503, 404) as (address, _):
        reported = notify(NotifyConfig(webhook=address), "failed", MESSAGE)
    assert reported == ["webhook: failed after 3 attempts (the server answered 404)"]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{probe.getsockname()[1]}"
        both = NotifyConfig(webhook=f"http://{nobody}/s3cret", mail_to=("a@example.org",), mail_server=nobody)
        reported = notify(both, "failed", MESSAGE)
    assert reported == [
        "webhook: failed after 3 attempts (ConnectionRefusedError)",
        "mail: failed after 3 attempts (ConnectionRefusedError)",
    ]


def test_a_redirect_is_not_followed(webhook: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere nobody should get the token, and a GET carries no message."""
    monkeypatch.setenv("BESSEMER_WEBHOOK_TOKEN", "t0ken")
    with webhook() as (elsewhere, heard), webhook(302, to=elsewhere) as (address, _):
        reported = notify(NotifyConfig(webhook=address), "failed", MESSAGE)
    assert reported == ["webhook: sent"]  # By the second attempt, at the same address.
    assert heard == []
    with webhook(302, 307, 302, to=elsewhere) as (address, asked):
        reported = notify(NotifyConfig(webhook=address), "failed", MESSAGE)
    assert reported == ["webhook: failed after 3 attempts (the server answered 302)"]
    assert len(asked) == 3


def test_what_does_not_speak_http_ends_nothing() -> None:
    def answer(server: socket.socket) -> None:
        for _ in range(3):
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"220 mail.example.org ESMTP\r\n")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=answer, args=(server,), daemon=True)
        thread.start()
        config = NotifyConfig(webhook=f"http://127.0.0.1:{server.getsockname()[1]}/hooks")
        reported = notify(config, "failed", MESSAGE)
        thread.join(10)
    assert reported == ["webhook: failed after 3 attempts (BadStatusLine)"]


def test_an_address_with_a_password_is_refused_and_not_shown() -> None:
    with pytest.raises(ValidationError, match="names and passwords in addresses are not sent"):
        NotifyConfig(webhook="https://u:s3cret@example.org/hooks")
    with pytest.raises(RecipeError) as caught:
        read_notify({"notify": {"webhook": "https://u:s3cret@example.org/hooks"}}, "r.toml")
    assert "s3cret" not in str(caught.value)


def test_a_password_is_sent_in_tls_alone(mailbox: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BESSEMER_MAIL_USER", "u")
    monkeypatch.setenv("BESSEMER_MAIL_PASSWORD", "s3cret")
    with mailbox() as (server, heard):
        (reported,) = notify(NotifyConfig(mail_to=("a@example.org",), mail_server=server), "failed", MESSAGE)
    assert "set notify.mail_starttls = true" in reported
    assert heard == []


def test_the_error_and_the_notification_of_a_blocked_promotion_warn_of_small_figures(tmp_path: Path) -> None:
    night = Night("n1", "foundry", warnings=["1 of 2 figures cannot block a promotion by themselves"])
    shown = (describe_blocked(night, "worse on notes", tmp_path), message(night, tmp_path)["text"])
    assert all("Warning: 1 of 2 figures cannot block a promotion by themselves." in one for one in shown)


def test_commands_after_a_blocked_promotion_name_the_root(tmp_path: Path) -> None:
    said = describe_blocked(Night("n1", "r"), "worse on notes", tmp_path / "my root")
    rooted = f" --root '{tmp_path}/my root'`"
    for command in ("runs compare current n1", "model promote n1", "nightly RECIPE --again n1"):
        assert f"`bessemer {command}{rooted}" in said
