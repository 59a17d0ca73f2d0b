"""The automations of `deployments/automations.yaml`, written to a server as they stand there."""

from pathlib import Path
from typing import Any

import yaml

from flows.service.api import delete, filtered, post, put
from flows.service.files import shipped


def automations_file() -> Path:
    """`deployments/automations.yaml`, which travels in the wheel beside this module."""
    return shipped("automations.yaml")


def read_automations() -> list[dict[str, Any]]:
    """What the file says, as the server's API takes it."""
    return yaml.safe_load(automations_file().read_text(encoding="utf-8"))["automations"]


def write_automations(api: str) -> int:
    """Have the server know each automation once, as the file says it; returns how many.

    One that it knows is changed in its place: a server with PostgreSQL hears of new ones by a notification, and what
    happens until then, to runs that a lost machine left behind say, would meet none.
    """
    ours = read_automations()
    names = [automation["name"] for automation in ours]
    known: dict[str, list[str]] = {}
    for one in filtered(f"{api}/automations/filter", {"automations": {"name": {"any_": names}}}):
        known.setdefault(one["name"], []).append(one["id"])
    for automation in ours:
        first, *twins = known.get(automation["name"], [None])
        if first is None:
            post(f"{api}/automations/", automation)
        else:
            put(f"{api}/automations/{first}", automation)
        for twin in twins:
            delete(f"{api}/automations/{twin}")
    return len(ours)
