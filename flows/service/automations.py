"""The automations of `deployments/automations.yaml`, written to a server as they stand there."""

from pathlib import Path
from typing import Any

import yaml

from flows.service.api import delete, post

PACKAGED = Path(__file__).parent / "automations.yaml"
IN_THE_CHECKOUT = Path(__file__).parents[2] / "deployments" / "automations.yaml"


def automations_file() -> Path:
    """`deployments/automations.yaml`, which travels in the wheel beside this module."""
    return PACKAGED if PACKAGED.is_file() else IN_THE_CHECKOUT


def read_automations() -> list[dict[str, Any]]:
    """What the file says, as the server's API takes it."""
    return yaml.safe_load(automations_file().read_text(encoding="utf-8"))["automations"]


def write_automations(api: str) -> int:
    """Have the server know each automation once, as the file says it; returns how many."""
    ours = read_automations()
    names = [automation["name"] for automation in ours]
    for known in post(f"{api}/automations/filter", {"automations": {"name": {"any_": names}}}):
        delete(f"{api}/automations/{known['id']}")
    for automation in ours:
        post(f"{api}/automations/", automation)
    return len(ours)
