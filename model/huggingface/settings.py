"""Read the settings of a published network: `config.json` as `transformers` writes it.

Missing settings have the class's default. A setting that changes the arithmetic in a way that the networks here do not
support is refused, since the weights would compute something else.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from model.config.rotary import RotaryScaling
from model.errors import InputError, validation_problems

Config = TypeVar("Config", bound=BaseModel)

_SCALINGS = ("linear", "dynamic", "llama3", "yarn")

_SCALING_KEYS = {
    "factor": "factor",
    "original_max_position_embeddings": "original_context",
    "low_freq_factor": "low_frequency_factor",
    "high_freq_factor": "high_frequency_factor",
    "beta_fast": "beta_fast",
    "beta_slow": "beta_slow",
    "attention_factor": "attention_factor",
}
"""Keys of `rope_scaling`, and ours."""


class Settings:
    """The values of one `config.json`; `path` names it in errors."""

    def __init__(self, values: Mapping[str, Any], path: str = "config.json") -> None:
        self._values = values
        self.path = path

    def get(self, name: str, default: Any) -> Any:
        """Return a value, or the class's default where it is missing or null."""
        found = self._values.get(name)
        return default if found is None else found

    def has(self, name: str) -> bool:
        """Return whether the file has a value, null included."""
        return name in self._values

    def expect(self, name: str, *allowed: Any) -> None:
        """Raise InputError unless the value is one of those `allowed`; the first is the class's default."""
        found = self.get(name, allowed[0])
        if found not in allowed:
            raise self.unsupported(name, found, " or ".join(str(value) for value in allowed))

    def lookup(self, name: str, meanings: Mapping[str, Any], default: str) -> Any:
        """Return our equivalent of a value; InputError for a value without one."""
        found = self.get(name, default)
        if found not in meanings:
            raise self.unsupported(name, found, ", ".join(meanings))
        return meanings[found]

    def rope(self, default_base: float = 10_000.0) -> tuple[float, RotaryScaling | None]:
        """Return base and scaling of rotary positions, which older files spread over several keys.

        Raises InputError for a scaling that the networks here do not have.
        """
        rope = {**(self.get("rope_parameters", None) or {}), **(self.get("rope_scaling", None) or {})}
        base = float(rope.get("rope_theta", self.get("rope_theta", self.get("rotary_emb_base", default_base))))
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind == "default":
            return base, None
        if kind not in _SCALINGS:
            raise self.unsupported("rope_scaling", kind, ", ".join(_SCALINGS))
        known = {*_SCALING_KEYS, "rope_type", "type", "rope_theta", "partial_rotary_factor", "truncate"}
        for name in sorted(rope.keys() - known):
            raise self.unsupported(f"rope_scaling.{name}", rope[name], "no such key")
        if not rope.get("truncate", True):
            raise self.unsupported("rope_scaling.truncate", False, "true")
        values = {ours: rope[theirs] for theirs, ours in _SCALING_KEYS.items() if rope.get(theirs) is not None}
        if kind == "linear":
            values.pop("original_context", None)
        elif kind == "dynamic" or "original_context" not in values:
            values["original_context"] = self.get("max_position_embeddings", None)
        return base, self.build(RotaryScaling, kind=kind, **values)

    def unsupported(self, name: str, found: Any, known: str) -> InputError:
        """Return the error for a value that no network here supports."""
        return InputError(
            f"{self.path} has {name} = {found}, and the networks here support {known}. Its weights would compute"
            f" something else here; choose a model without it."
        )

    def build(self, kind: type[Config], /, **values: Any) -> Config:
        """Return our configuration with these values; InputError where they contradict each other."""
        try:
            return kind.model_validate(values)
        except ValidationError as error:
            raise InputError(
                f"{self.path} describes no network that can be built here: {validation_problems(error)}"
            ) from error
