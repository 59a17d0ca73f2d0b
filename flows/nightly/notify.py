"""Notify people of a nightly run by webhook (a JSON object) and mail, and write the messages about it.

Credentials come from the environment and go nowhere else; errors are reported without addresses. A notification that
fails does not affect the nightly run, whose record keeps the outcome.
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
from collections.abc import Callable
from email.message import EmailMessage
from pathlib import Path
from typing import Any, TypedDict

from flows.metrics.escaping import escaped
from flows.nightly.config import NotifyConfig, Occasion
from flows.nightly.history import Night
from flows.nightly.preflight import Needs, describe_needs
from flows.runs.record import root_option
from model.errors import RecipeError

ATTEMPTS = 3

PAUSE_SECONDS = 2.0

SECONDS = 20.0
"""Time for each attempt."""

TOKEN, USER, PASSWORD = "BESSEMER_WEBHOOK_TOKEN", "BESSEMER_MAIL_USER", "BESSEMER_MAIL_PASSWORD"


class Notification(TypedDict):
    """The JSON object that a webhook receives; a mail has its subject and text."""

    event: str
    subject: str
    text: str
    why: str
    recipe: str
    run_id: str
    host: str
    root: str
    documents: int | None
    tokens: int | None
    bits_before: float | None
    bits_after: float | None
    worse: list[str]
    """Figures in which the new model is worse."""


def notify(config: NotifyConfig, occasion: Occasion, message: Notification) -> list[str]:
    """Send a message by webhook and mail as configured, if they ask for this occasion, and return the outcomes.

    An outcome is `webhook: sent` or `mail: failed after 3 attempts (ConnectionRefusedError)`. `message` is the JSON
    object; its `text` is the mail's. Raises nothing.
    """
    if occasion not in config.on:
        return []
    outcomes: list[str] = []
    if config.webhook:
        outcomes.append(f"webhook: {_try_sending(lambda: _post(config, message))}")
    if config.mail_to:
        outcomes.append(f"mail: {_try_sending(lambda: _mail(config, message))}")
    return outcomes


def _try_sending(send: Callable[[], None]) -> str:
    problem = ""
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(PAUSE_SECONDS)
        try:
            send()
        except RecipeError as error:
            return f"failed ({error})"
        except (OSError, smtplib.SMTPException, http.client.HTTPException, ValueError) as error:
            # Only the kind of error: its text may hold the address, and the address a secret.
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


def _post(config: NotifyConfig, message: Notification) -> None:
    assert config.webhook is not None, "only where there is an address"
    headers = {"Content-Type": "application/json", "User-Agent": "bessemer"}
    if token := os.environ.get(TOKEN):
        headers["Authorization"] = f"Bearer {token}"
    request = urllib.request.Request(config.webhook, json.dumps(message).encode(), headers, method="POST")
    with _opener.open(request, timeout=SECONDS) as answer:
        answer.read()


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: following one would send the token elsewhere, and turn the POST into a GET without message."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> None:
        return None


_opener = urllib.request.build_opener(_NoRedirect)


def _mail(config: NotifyConfig, message: Notification) -> None:
    letter = EmailMessage()
    # Names of files may have bytes that are no UTF-8, of which no mail can be made.
    letter["Subject"] = escaped(" ".join(message["subject"].split()))[:200]
    letter["From"] = config.mail_from or f"bessemer@{platform.node()}"
    letter["To"] = ", ".join(config.mail_to)
    letter.set_content(escaped(message["text"]))
    host, _, port = config.mail_server.rpartition(":")
    user, password = os.environ.get(USER), os.environ.get(PASSWORD)
    if user and not config.mail_starttls:
        raise RecipeError(f"{USER} is set, and a password is sent only in TLS: set notify.mail_starttls = true")
    with smtplib.SMTP(host, int(port), timeout=SECONDS) as server:
        if config.mail_starttls:
            server.starttls(context=ssl.create_default_context())
        if user:
            server.login(user, password or "")
        server.send_message(letter)


def describe_start(night: Night, needs: Needs) -> str:
    """Return what is new, what training continues from, and what it will take, without full stop."""
    count = sum(map(len, night.files.values()))
    base = f"continuing from run {night.base}" if night.base else "the first nightly run"
    files = f"{count:,} new file{'' if count == 1 else 's'} of {', '.join(sorted(night.files))}"
    return f"{files}; {base}; {describe_needs(needs)}"


def describe_blocked(night: Night, why: str, root: Path) -> str:
    """Return why the current model stays, what can be done, and the warnings of the comparison."""
    warnings = "".join(f" Warning: {one}." for one in night.warnings)
    of_root = root_option(root)
    return (
        f"nightly: the model of nightly run {night.run_id} was not promoted: {why}. Its weights and scores are kept"
        f" (`bessemer runs compare current {night.run_id}{of_root}`). The next nightly run continues from the current"
        f" model without these files. `bessemer model promote {night.run_id}{of_root}` promotes it all the same;"
        f" `bessemer nightly RECIPE --again {night.run_id}{of_root}` reads its files again.{warnings}"
    )


def message(night: Night, root: str | Path) -> Notification:
    """Return the notification about a nightly run."""
    page = Path(root) / "runs" / night.run_id / "page.html"
    subject = f"bessemer: nightly run {night.run_id} of {night.recipe} {night.state}"
    warnings = "".join(f"Warning: {one}.\n\n" for one in night.warnings)
    text = f"{subject} on {platform.node()}\n\n{night.why}\n\n{warnings}Root: {root}\n"
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
