"""Telling people of a night: a JSON object to an address of the web, a mail.

Credentials come from the environment and go nowhere else; what a server answers is told without addresses. A message
that does not come through changes nothing of the night, and is kept with it.

What is said of a night: where it begins, where its promotion is blocked, and to people far away.
"""

import http.client
import json
import os
import platform
import smtplib
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from email.message import EmailMessage
from pathlib import Path
from typing import Any

from flows.nightly.config import NotifyConfig, Occasion
from flows.nightly.history import Night
from flows.nightly.preflight import Needs, describe_needs
from model.errors import RecipeError

ATTEMPTS = 3

PAUSE_SECONDS = 2.0

TOKEN, USER, PASSWORD = "BESSEMER_WEBHOOK_TOKEN", "BESSEMER_MAIL_USER", "BESSEMER_MAIL_PASSWORD"


def notify(
    config: NotifyConfig, occasion: Occasion, message: Mapping[str, Any], pause: float = PAUSE_SECONDS
) -> list[str]:
    """Send a message by every way that the settings name, where they ask for this occasion; returns what became of
    each: `webhook: sent`, `mail: failed after 3 attempts (ConnectionRefusedError)`.

    `message` is the JSON object; its `text` is the mail's. Raises nothing.
    """
    if occasion not in config.on:
        return []
    told: list[str] = []
    if config.webhook:
        told.append(f"webhook: {_tried(lambda: _post(config, message), pause)}")
    if config.mail_to:
        told.append(f"mail: {_tried(lambda: _mail(config, message), pause)}")
    return told


def _tried(send: Callable[[], None], pause: float) -> str:
    problem = ""
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(pause)
        try:
            send()
        except RecipeError as error:
            return f"failed ({error})"
        except (OSError, smtplib.SMTPException, http.client.HTTPException, ValueError) as error:
            # Only the kind: the text of such errors may hold the address, and the address a secret.
            problem = _kind(error)
        else:
            return "sent"
    return f"failed after {ATTEMPTS} attempts ({problem})"


def _kind(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"the server answered {error.code}"
    if isinstance(error, smtplib.SMTPResponseException):
        return f"the server answered {error.smtp_code}"
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    return type(reason).__name__ if isinstance(reason, Exception) else type(error).__name__


def _post(config: NotifyConfig, message: Mapping[str, Any]) -> None:
    assert config.webhook is not None, "only where there is an address"
    headers = {"Content-Type": "application/json", "User-Agent": "bessemer"}
    if token := os.environ.get(TOKEN):
        headers["Authorization"] = f"Bearer {token}"
    request = urllib.request.Request(config.webhook, json.dumps(message).encode(), headers, method="POST")
    with _opener.open(request, timeout=config.timeout_seconds) as answer:
        answer.read()


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect is an error: to follow it would send the token elsewhere, and turn the POST into a GET without the
    message."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> None:
        return None


_opener = urllib.request.build_opener(_NoRedirect)


def _mail(config: NotifyConfig, message: Mapping[str, Any]) -> None:
    letter = EmailMessage()
    letter["Subject"] = _one_line(str(message["subject"]))
    letter["From"] = config.mail_from or f"bessemer@{platform.node()}"
    letter["To"] = ", ".join(config.mail_to)
    letter.set_content(str(message["text"]))
    host, _, port = config.mail_server.rpartition(":")
    user, password = os.environ.get(USER), os.environ.get(PASSWORD)
    if user and not config.mail_starttls:
        raise RecipeError(f"{USER} is set, and a password is sent only in TLS: set notify.mail_starttls = true")
    with smtplib.SMTP(host, int(port), timeout=config.timeout_seconds) as server:
        if config.mail_starttls:
            server.starttls(context=ssl.create_default_context())
        if user:
            server.login(user, password or "")
        server.send_message(letter)


def _one_line(text: str) -> str:
    return " ".join(text.split())[:200]


def describe_start(night: Night, needs: Needs | None) -> str:
    """What is new, what it goes on from, and what it will take; without a full stop."""
    count = sum(map(len, night.files.values()))
    base = f"going on from run {night.base}" if night.base else "the first night"
    takes = f"; {describe_needs(needs)}" if needs is not None else ""
    return f"{count:,} new file{'' if count == 1 else 's'} of {', '.join(sorted(night.files))}; {base}{takes}"


def describe_blocked(night: Night, why: str) -> str:
    """Why the current model stays, and what can be done."""
    return (
        f"nightly: the model of night {night.run_id} was not promoted: {why}. Its weights and scores are written"
        f" (`bessemer compare current {night.run_id}`). The next night goes on from the current model without this"
        f" night's files. `bessemer promote {night.run_id}` promotes it all the same; `bessemer nightly RECIPE --again"
        f" {night.run_id}` has its files read once more."
    )


def message(night: Night, root: str | Path) -> dict[str, Any]:
    """What people are told of a night, as JSON values."""
    page = Path(root) / "runs" / night.run_id / "page.html"
    subject = f"bessemer: night {night.run_id} of {night.recipe} {night.state}"
    text = f"{subject} on {platform.node()}\n\n{night.why}\n\nRoot: {root}\n"
    if page.exists():
        text += f"Page: {page.relative_to(root)}\n"
    return {
        "event": night.state,
        "subject": subject,
        "text": text,
        "why": night.why,
        "recipe": night.recipe,
        "run_id": night.run_id,
        "host": platform.node(),
        "root": str(root),
        "documents": night.documents,
        "tokens": night.tokens,
        "bits_before": night.bits_before,
        "bits_after": night.bits_after,
        "worse": [line["what"] for line in night.verdict if line["blocks"]],
    }
