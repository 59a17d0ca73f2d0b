"""Settings of nightly runs and of messages about them: the recipe's tables `[nightly]` and `[notify]`.

Every key has a default:

[nightly]
max_hours = 6

[nightly.later]                 # settings of the runs after the first
budget_tokens = "200K"
"train.schedule.peak_lr" = 1e-3

[notify]
webhook = "https://chat.example.org/hooks/nightly"
on = ["failed", "blocked"]
"""

import os
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import urlsplit

from pydantic import Field, ValidationError, field_validator

from flows.recipe.errors import format_config_errors
from model.config import EXPERT, BaseConfig
from model.errors import RecipeError
from tasks.common.confinement import is_confined

NIGHTLY, NOTIFY = "nightly", "notify"

ENVIRONMENT = {"webhook": "BESSEMER_WEBHOOK", "mail_server": "BESSEMER_MAIL_SERVER", "mail_to": "BESSEMER_MAIL_TO"}
"""Settings of `[notify]` that the environment may give, instead of the recipe."""

Occasion = Literal["failed", "blocked", "promoted", "nothing"]

_ADDRESS = re.compile(r"[^@\s,<>]+@[^@\s,<>]+")


class NightlyConfig(BaseConfig):
    """What a nightly run may cost, and what keeps its model from being promoted."""

    later: dict[str, Any] = Field(default_factory=dict)
    """Settings of the runs after the first, as `--set` has them: `budget_tokens` of one run, a lower rate."""
    least_bytes: Annotated[int | None, EXPERT] = Field(default=None, ge=1)
    """New text, in bytes after deduplication, below which a run trains nothing and leaves its files for the next;
    four bytes for each token of one batch by default."""
    max_hours: float | None = Field(default=None, gt=0)
    """Hours that a run may take by estimate; one that would take longer does not begin."""
    spare_gigabytes: Annotated[float, EXPERT] = Field(default=1.0, ge=0)
    """Disk that must be left beside what the run is expected to take."""
    level: Annotated[float, EXPERT] = Field(default=0.05, gt=0, lt=1)
    """How likely a model that is no worse is to be blocked all the same, over all figures together."""
    max_rise: float = Field(default=0.0, ge=0)
    """Bits per byte by which held-out text of a source may get harder even where that is no chance."""
    max_fall: Annotated[float, EXPERT] = Field(default=0.0, ge=0)
    """By how much a benchmark's score may fall even where that is no chance (accuracy: 0 to 1)."""

    @field_validator("later")
    @classmethod
    def _what_runs_decide_stays(cls, later: dict[str, Any]) -> dict[str, Any]:
        for key in later:
            if key.partition(".")[0] in ("sources", "vocab", "evaluate", "seed", "format", NIGHTLY, NOTIFY):
                raise ValueError(
                    f"{key} cannot differ between nightly runs: their scores could not be compared, or the model not go"
                    f" on"
                )
        return later


class NotifyConfig(BaseConfig):
    """Who is notified of what. Credentials come from the environment alone: BESSEMER_WEBHOOK_TOKEN, BESSEMER_MAIL_USER
    and BESSEMER_MAIL_PASSWORD."""

    on: tuple[Occasion, ...] = ("failed", "blocked")
    """What messages are sent about: a run that `failed`, a promotion that was `blocked`, one that was `promoted`,
    `nothing` new."""
    webhook: str | None = None
    """Address that is sent a JSON object by POST; BESSEMER_WEBHOOK replaces it, for one that is itself a secret."""
    mail_to: tuple[str, ...] = ()
    """Addresses that get a mail; BESSEMER_MAIL_TO (with commas between) replaces it."""
    mail_from: Annotated[str | None, EXPERT] = None
    """Sender of mails; `bessemer@` this machine's name by default."""
    mail_server: Annotated[str, EXPERT] = "127.0.0.1:25"
    """Host and port that take mails; BESSEMER_MAIL_SERVER replaces it."""
    mail_starttls: Annotated[bool, EXPERT] = False
    """Whether the mail server is spoken to in TLS once it has answered; needed for credentials."""

    @field_validator("webhook")
    @classmethod
    def _is_an_address_of_the_web(cls, webhook: str | None) -> str | None:
        if webhook is not None and not re.match(r"https?://[^/\s]", webhook):
            raise ValueError(f"{webhook!r} is no http:// or https:// address")
        if webhook is not None and "@" in urlsplit(webhook).netloc:
            # Not shown: what precedes the @ is a secret.
            raise ValueError("names and passwords in addresses are not sent; give BESSEMER_WEBHOOK_TOKEN a token")
        return webhook

    @field_validator("mail_to")
    @classmethod
    def _are_addresses_of_mail(cls, mail_to: tuple[str, ...]) -> tuple[str, ...]:
        for address in mail_to:
            if not _ADDRESS.fullmatch(address):
                raise ValueError(f"{address!r} is no address of mail")
        return mail_to

    @field_validator("mail_server")
    @classmethod
    def _has_a_port(cls, mail_server: str) -> str:
        if not re.fullmatch(r"[^:\s]+:\d{1,5}", mail_server):
            raise ValueError(f"{mail_server!r} is no HOST:PORT")
        return mail_server


def read_nightly(raw: Mapping[str, Any], origin: str) -> NightlyConfig:
    """Read the nightly table of a recipe, or defaults; raise RecipeError where it is wrong."""
    return _read(NightlyConfig, raw.get(NIGHTLY, {}), NIGHTLY, origin)


def read_notify(raw: Mapping[str, Any], origin: str) -> NotifyConfig:
    """Read the notify table of a recipe with what the environment says instead; raise RecipeError for a wrong one."""
    given: dict[str, Any] = {key: os.environ[name] for key, name in ENVIRONMENT.items() if os.environ.get(name)}
    if "mail_to" in given:
        given["mail_to"] = tuple(address.strip() for address in given["mail_to"].split(","))
    table = raw.get(NOTIFY, {})
    if table and is_confined():
        raise RecipeError(
            f"{origin}: {NOTIFY} has messages sent from this machine, and --untrusted refuses that. Remove the table,"
            f" and name whom to notify in the environment: {', '.join(ENVIRONMENT.values())}."
        )
    secret = {ENVIRONMENT[key]: str(value) for key, value in given.items()} if "webhook" in given else {}
    return _read(NotifyConfig, {**table, **given} if isinstance(table, dict) else table, NOTIFY, origin, secret)


Table = TypeVar("Table", NightlyConfig, NotifyConfig)


def _read(kind: type[Table], table: Any, name: str, origin: str, secret: Mapping[str, str] | None = None) -> Table:
    if not isinstance(table, dict):
        raise RecipeError(f"{origin}: {name} is {table!r}, and a table of settings belongs there")
    try:
        return kind.model_validate(table)
    except ValidationError as error:
        message = format_config_errors(error, origin, name)
        for where, value in (secret or {}).items():
            message = message.replace(value, f"what {where} holds")
        raise RecipeError(message) from error
