"""The settings of a published network, `config.json` as `transformers` writes it, read with care.

What is left out there has the value of the class's default. A setting that changes the arithmetic in a way that the
networks here do not know is refused, since the weights would mean something else.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from model.errors import InputError

Config = TypeVar("Config", bound=BaseModel)


class Settings:
    """The values of one `config.json`; `place` names it in errors."""

    def __init__(self, values: Mapping[str, Any], place: str = "config.json") -> None:
        self._values = values
        self.place = place

    def get(self, name: str, default: Any) -> Any:
        """A value, or the class's default where it is left out or null."""
        found = self._values.get(name)
        return default if found is None else found

    def expect(self, name: str, *allowed: Any) -> None:
        """Raise InputError unless the value is one of those `allowed`; the first is the class's default."""
        found = self.get(name, allowed[0])
        if found not in allowed:
            raise self.unsupported(name, found, " or ".join(str(value) for value in allowed))

    def lookup(self, name: str, meanings: Mapping[str, Any], default: str) -> Any:
        """What a value means here; InputError for one that means nothing."""
        found = self.get(name, default)
        if found not in meanings:
            raise self.unsupported(name, found, ", ".join(meanings))
        return meanings[found]

    def rope(self, default_share: float = 1.0) -> dict[str, float]:
        """Base and share of rotary positions, which older files spread over several keys; InputError for a scaling."""
        told = self.get("rope_parameters", None) or self.get("rope_scaling", None) or {}
        kind = told.get("rope_type", told.get("type", "default"))
        if kind != "default":
            raise self.unsupported("rope_scaling", kind, "none")
        base = told.get("rope_theta", self.get("rope_theta", self.get("rotary_emb_base", 10_000.0)))
        share = told.get("partial_rotary_factor", self.get("rotary_pct", default_share))
        return {"rotary_base": float(base), "rotary_share": float(share)}

    def unsupported(self, name: str, found: Any, known: str) -> InputError:
        """The error that a setting has a value that no network here computes."""
        return InputError(
            f"{self.place} has {name} = {found}, and the networks here know {known}. Its weights would compute"
            f" something else here; take a model without it."
        )

    def build(self, kind: type[Config], **values: Any) -> Config:
        """Our configuration of these values; InputError where they cannot go together."""
        try:
            return kind.model_validate(values)
        except ValidationError as error:
            told = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'it'}: {e['msg']}" for e in error.errors())
            raise InputError(f"{self.place} describes no network that can be built here: {told}") from error
