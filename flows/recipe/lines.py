"""Name the line of a recipe, or the `--set`, in errors about its keys.

Checks of a recipe see values, not text. Their messages begin with the key as the recipe writes it; here that key, or
the nearest table that the file has, is looked up in the file.
"""

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.recipe.errors import Location, line_of

_KEY = re.compile(r"[A-Za-z_][\w-]*(?:\[\d+\])?(?:\.[A-Za-z0-9_][\w-]*(?:\[\d+\])?)*")

_PART = re.compile(r"([\w-]+)|\[(\d+)\]")

_QUOTED = re.compile(r"`([^`]+)`")

_TABLES = re.compile(r"\[\[([\w.]+)\]\]")

_TABLES_ELSEWHERE = {
    ("decontaminate", "benchmarks"): ("benchmarks",),
    ("evaluate", "benchmarks"): ("benchmarks",),
    ("chunk", "weights"): ("sources",),
    ("dedup", "priorities"): ("sources",),
}
"""Tables that `flows.recipe.resolve` makes of others, and which these are."""


@dataclass(frozen=True)
class RecipeText:
    """The text of a recipe file and the settings that override it."""

    path: Path
    text: str
    settings: tuple[str, ...]

    def with_lines(self, message: str, origin: str) -> str:
        """Return an error message with the place of each key in it; `origin` is how it names the recipe."""
        raw = tomllib.loads(self.text)
        head, *others = message.split("\n")
        if others and head == f"{origin}:":
            return "\n".join([f"{self.path}:", *(f"  {self._place(line, raw)}: {line.strip()}" for line in others)])
        if not message.startswith(f"{origin}:"):
            return message
        rest = message.removeprefix(f"{origin}:").strip()
        place = self._place(rest, raw)
        return f"{place}: {rest}" if place.startswith("--set") else f"{self.path}, {place}: {rest}"

    def _place(self, message: str, raw: dict[str, Any]) -> str:
        """Return where the first key that a message names is set: `line 12` or `--set KEY=VALUE`."""
        names = [match[0] for match in _KEY.finditer(message)]
        first = names[0] if names else ""
        both = self._places_of_values(first, message, raw)
        if len(both) > 1:
            return " and ".join(both)
        dotted = [name for name in names if "." in name or "[" in name]
        candidates = list(dict.fromkeys([first, *dotted]))
        for name in candidates:
            for setting in self.settings:
                key = _key_of(setting)
                if key == name or name.startswith((f"{key}.", f"{key}[")) or _names_entry(key, name, raw):
                    return f"--set {setting}"
            location = next((one for one in _spellings(_location(name), raw) if _is_set(one, raw)), None)
            if location is not None:
                return f"line {line_of(self.text, location)}"
            for setting in self.settings:
                # A table that the file lacks: a misspelt one.
                if name and setting.strip().startswith((f"{name}.", f"{name}[")):
                    return f"--set {setting}"
        for setting in self.settings:
            if _key_of(setting) in _TABLES.findall(message):
                return f"--set {setting}"
        lines = [line.partition("#")[0] for line in self.text.splitlines()]
        for quoted in _QUOTED.findall(message):
            number = next((number for number, line in enumerate(lines, 1) if quoted in line), None)
            if number is not None:
                return f"line {number}"
            for setting in self.settings:
                if quoted in setting.partition("=")[2]:
                    return f"--set {setting}"
        above = _location(first)
        while above:
            above = above[:-1]
            for one in _spellings(above, raw):
                if _is_set(one, raw):
                    return f"line {line_of(self.text, one)}"
        return "line 1"

    def _places_of_values(self, table: str, message: str, raw: dict[str, Any]) -> list[str]:
        """Return where the keys of a table are set that a message names with their values: `batch_rows 6`."""
        values: Any = raw
        for part in _location(table):
            values = values.get(part) if isinstance(values, dict) else None
        set_in_file = values if isinstance(values, dict) else {}
        found: dict[str, str] = {}
        for key, value in set_in_file.items():
            if re.search(rf"\b{re.escape(key)} {re.escape(str(value))}\b", message):
                found[key] = f"line {line_of(self.text, (*_location(table), key))}"
        for setting in self.settings:
            name, _, value = setting.partition("=")
            key = name.strip().removeprefix(f"{table}.")
            if re.search(rf"(?<![\w.]){re.escape(key)} {re.escape(value.strip())}\b", message):
                found[key] = f"--set {setting}"
        return [found[key] for key in sorted(found, key=message.index)]


def _key_of(setting: str) -> str:
    return setting.partition("=")[0].strip()


def _location(name: str) -> Location:
    return tuple(int(number) if number else word for word, number in _PART.findall(name))


def _spellings(location: Location, raw: dict[str, Any]) -> Iterator[Location]:
    """Yield a location as it is, and where the recipe may have written it instead."""
    yield location
    if location == ("sample",):
        yield ("sources",)
    elsewhere = _TABLES_ELSEWHERE.get(location[:2])  # type: ignore[arg-type]
    if elsewhere is None:
        return
    rest = location[2:]
    if rest and isinstance(rest[0], str):
        entries = raw.get(elsewhere[0], [])
        named = [
            number
            for number, entry in enumerate(entries if isinstance(entries, list) else [])
            if isinstance(entry, dict) and rest[0] in (entry.get("name"), entry.get("task"))
        ]
        rest = (*named[:1], *rest[1:]) if named else ()
    for end in range(len(rest), -1, -1):
        yield (*elsewhere, *rest[:end])


def _is_set(location: Location, raw: Any) -> bool:
    """Return whether the values of a recipe have something at a location."""
    for part in location:
        try:
            raw = raw[part]
        except (LookupError, TypeError):
            return False
    return bool(location)


def _names_entry(key: str, name: str, raw: dict[str, Any]) -> bool:
    """Return whether `sources.NAME.weight` and `sources[0].weight` are the same key."""
    table, _, rest = key.partition(".")
    entry, _, field = rest.partition(".")
    entries = raw.get(table)
    if not field or not isinstance(entries, list):
        return False
    numbers = [number for number, one in enumerate(entries) if isinstance(one, dict) and one.get("name") == entry]
    return any(name == f"{table}[{number}].{field}" for number in numbers)
