"""Open a recipe: the one TOML file that decides everything about a run.

    format = 1
    name = "quickstart"
    seed = 1
    budget_tokens = "2M"          # tokens that training reads

    [[sources]]                   # what is read, and its share of the training tokens
    name = "docs"
    paths = ["{stdlib}/**/*.txt"]
    weight = 0.5

    [dedup]                       # one table a stage; every key has a default
    threshold = 0.8

`load_recipe` parses the file and applies `--set`; `recipe_from` fills in the placeholders of paths, resolves what
stages derive from each other (`flows.recipe.resolve`), validates the result as a `Recipe` (`flows.recipe.schema`) and
checks that its tables agree (`flows.recipe.checks`), once and in this order.

Precedence: defaults < recipe < its table of sizes (`--set scale=tiny`) < other `--set`. Placeholders in paths:
`{recipe}` is the recipe's folder, `{root}` the artifact root, `{stdlib}` that of this Python, `{site_packages}` that of
the packages Bessemer uses; any other comes from the recipe's `[variables]` table, which `--set variables.NAME=VALUE`
changes.
"""

import difflib
import json
import os
import re
import sysconfig
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from flows.recipe.checks import check_consistency
from flows.recipe.errors import format_recipe_errors
from flows.recipe.hub_benchmarks import resolve_sources
from flows.recipe.lines import RecipeText
from flows.recipe.resolve import OTHER_KEYS, SHARED_KEYS, resolve_recipe
from flows.recipe.scales import SCALE, SCALES, apply_scale, prepare_text
from flows.recipe.schema import RECIPES, Recipe, RecipeSource, credentials_problem
from model.config.train import fitting_micro_batch
from model.digests import unreadable_reason
from model.errors import RecipeError
from tasks.common.confinement import check_recipe
from tasks.common.text import without_credentials

QUICKSTART = RECIPES / "quickstart.toml"

TABLES_OUTSIDE_RUNS = ("variables", "search", "mix", "nightly", "notify", SCALES)
"""Tables that no run depends on: values for paths, the settings of searches, mixtures and nightly runs, whom to notify,
and sizes of twins."""

DATA = "variables.data"
"""The setting with the folder of a recipe's text, where its paths begin with `{data}`."""

PATH_KEYS = ("paths", "path", "answers_path", "exclude", "prompts_file", "base", "base_model", "weights_from", "labels")
"""Keys whose values may hold placeholders."""

PATTERN_KEYS = ("paths", "exclude")
"""Those of them whose `~` is left to the search for files: an excluded file may have it in its name."""


def open_recipe(name: str, root: Path, settings: Sequence[str], limit: float = 1.0) -> Recipe:
    """Return the recipe of a file, or the shipped one of this name; `settings` and `limit` as in `load_recipe`.

    Writes the input of the demo under `root` first where the recipe is the demo's.
    """
    return load_recipe(locate_recipe(name, root), root, settings, limit)


def load_recipe(path: Path, root: Path, settings: Sequence[str] = (), limit: float = 1.0) -> Recipe:
    """Parse, resolve, validate and check a recipe file.

    `settings` are `key.path=value` words (values in TOML notation, or plain text); `limit` is the share of each source
    to keep, 1.0 for all. Raises RecipeError with the path and line of every wrong key.
    """
    text, raw = read_toml(path, with_text(path, root, settings))
    fit_micro_batch(raw, settings)
    origin = f"{path} with --set {without_credentials(' '.join(settings))}" if settings else str(path)
    try:
        recipe = recipe_from(raw, origin=origin, folder=path.resolve().parent, root=root, limit=limit)
    except RecipeError as error:
        shown = tuple(without_credentials(setting) for setting in settings)
        raise RecipeError(RecipeText(path, text, shown).with_lines(str(error), origin)) from error
    recipe._source = RecipeSource(path, text, tuple(settings))
    return recipe


def with_text(path: Path, root: Path, settings: Sequence[str]) -> list[str]:
    """Return settings in the order in which they apply to a recipe's file, those of a twin with its text, which is
    written under `root`."""
    # The sizes of a twin are those of its recipe, which other settings change.
    ordered = sorted(settings, key=lambda setting: not _names_scale(setting))
    if any(map(_names_scale, settings)) and not any(_key(setting) == DATA for setting in settings):
        _, raw = read_toml(path, ordered)
        ordered.append(as_setting(DATA, str(prepare_text(root, path.stem, raw.get("sources", ())))))
    return ordered


def read_toml(path: Path, settings: Sequence[str] = ()) -> tuple[str, dict[str, Any]]:
    """Return the text of a TOML file and its values, overridden by settings; RecipeError where it is none."""
    try:
        text = path.read_text(encoding="utf-8")
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise RecipeError(f"{path}: not valid TOML: {error}") from error
    except UnicodeDecodeError as error:
        raise RecipeError(f"{path}: not UTF-8 text (byte {error.start}); save the recipe as UTF-8") from error
    for setting in settings:
        apply_setting(values, setting)
    return text, values


def fit_micro_batch(raw: dict[str, Any], settings: Sequence[str]) -> None:
    """Lower the file's `train.micro_batch_rows` where a setting changes `train.batch_rows` alone and it no longer
    fits."""
    train = raw.get("train")
    keys = {_key(setting) for setting in settings}
    if "train.batch_rows" not in keys or "train.micro_batch_rows" in keys or not isinstance(train, dict):
        return
    rows = train.get("micro_batch_rows")
    if isinstance(rows, int) and rows > 0:
        train["micro_batch_rows"] = fitting_micro_batch(train, rows)


def recipe_from(raw: Mapping[str, Any], *, origin: str, folder: Path, root: Path, limit: float = 1.0) -> Recipe:
    """Return the recipe that the values of a TOML file describe: filled in, resolved, validated and checked.

    `origin` names the recipe in errors; relative paths start at `folder`. Raises RecipeError.
    """
    _check_credentials(raw, origin)
    _check_format(raw, origin)
    values = _fill(dict(raw), _variables(raw, origin, folder, root), origin)
    _check_credentials(values, origin)  # Placeholders may have made some.
    for table in TABLES_OUTSIDE_RUNS:
        values.pop(table, None)
    resolve_sources(values, root, origin)
    warnings = resolve_recipe(values, origin=origin, folder=folder, limit=limit)
    try:
        recipe = Recipe.model_validate(values)
    except ValidationError as error:
        others = (*OTHER_KEYS, *TABLES_OUTSIDE_RUNS)
        raise RecipeError(format_recipe_errors(error, Recipe, SHARED_KEYS, origin, others)) from error
    check_recipe(recipe, origin)
    check_consistency(recipe, origin)
    recipe._warnings = warnings
    return recipe


def locate_recipe(name: str, root: Path) -> Path:
    """Return the file of a recipe as `find_recipe` does, with the input of the demo written under `root` if needed."""
    path = find_recipe(name)
    if path == QUICKSTART:
        from flows.recipe.quickstart import prepare

        prepare(root)
    return path


def find_recipe(name: str) -> Path:
    """Return the file of a recipe given by path or by the name of a shipped one; RecipeError where there is none."""
    return shipped_file(name, RECIPES, "recipe", " `bessemer init FOLDER` writes one for your text.")


def shipped_file(name: str, folder: Path, what: str, hint: str = "") -> Path:
    """Return the TOML file of a path, or of the name of one in `folder`; RecipeError, with the `hint`, where there is
    none."""
    for candidate in (Path(name), folder / f"{name}.toml"):
        if candidate.is_file():
            return candidate
    if Path(name).exists():
        raise RecipeError(f"{what} `{name}` {unreadable_reason(name)}; name a TOML file")
    shipped = sorted(path.stem for path in folder.glob("*.toml"))
    beside = map(str, Path(name).parent.glob("*.toml"))
    close = difflib.get_close_matches(name, [*shipped, *beside], n=1)
    meant = f" Did you mean `{close[0]}`?" if close else ""
    raise RecipeError(
        f"{what} `{name}`: there is no such file, and no shipped one has this name ({', '.join(shipped)}).{meant}{hint}"
    )


def _check_credentials(values: Mapping[str, Any], origin: str) -> None:
    if problem := credentials_problem(values):
        raise RecipeError(f"{origin}: {problem}")


def _check_format(raw: Mapping[str, Any], origin: str) -> None:
    if raw.get("format", 1) != 1:
        raise RecipeError(
            f"{origin}: `format = {raw['format']!r}` is of another version of Bessemer; this one reads format 1. Write"
            f" `format = 1` if the recipe was made for this version, or install the version that it was made for."
        )


def _variables(raw: Mapping[str, Any], origin: str, folder: Path, root: Path) -> dict[str, str]:
    """Return the placeholders of paths with their values."""
    from flows.recipe.quickstart import packages_folder

    given = raw.get("variables", {})
    if not isinstance(given, dict):
        raise RecipeError(f"{origin}: variables is {given!r}, and must be a table of values for paths")
    return {
        "recipe": str(folder),
        "root": str(root),
        "stdlib": sysconfig.get_paths()["stdlib"],
        "site_packages": str(packages_folder()),
        **{key: str(value) for key, value in given.items()},
    }


def _fill(value: Any, variables: Mapping[str, str], origin: str) -> Any:
    """Return the values with every `{name}` in a path replaced."""
    if isinstance(value, dict):
        return {
            key: _fill_paths(item, variables, origin, patterns=key in PATTERN_KEYS)
            if key in PATH_KEYS
            else _fill(item, variables, origin)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [_fill(item, variables, origin) for item in value]
    return value


def _fill_paths(value: Any, variables: Mapping[str, str], origin: str, *, patterns: bool) -> Any:
    if isinstance(value, list):
        return [_fill_paths(item, variables, origin, patterns=patterns) for item in value]
    if not isinstance(value, str):
        return value
    if not patterns:
        value = os.path.expanduser(value)

    def replacement(match: re.Match[str]) -> str:
        name = match[1]
        if name not in variables:
            raise RecipeError(
                f"{origin}: the path `{value}` uses `{{{name}}}`, which nothing defines; known are"
                f" {', '.join(sorted(variables))}. Define it under [variables] or with --set variables.{name}=..."
            )
        return variables[name]

    return re.sub(r"\{([A-Za-z_][A-Za-z0-9_-]*)\}", replacement, value)


def parse_setting(setting: str) -> tuple[str, Any]:
    """Return key and value of `key.path=value`; a value that is no TOML is text."""
    path, equals, text = setting.partition("=")
    if not equals or not all(path.strip().split(".")):
        raise RecipeError(f"--set {setting}: write it as key.path=value, for example --set dedup.threshold=0.9")
    try:
        return path.strip(), tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return path.strip(), text


def as_setting(key: str, value: object) -> str:
    """Return `key=value`, as `--set` takes it."""
    return f"{key}={_as_toml(value)}"


def _as_toml(value: object) -> str:
    """Return a JSON value in TOML: as in JSON but for tables, characters beyond U+FFFF, and DEL."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_as_toml(key)} = {_as_toml(one)}' for key, one in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_as_toml, value))}]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def apply_setting(raw: dict[str, Any], setting: str) -> None:
    """Write `a.b.c=value` into the values of a recipe file; `sources.NAME.key` finds the source by its name, in quotes
    where that has dots, and `scale=NAME` writes all sizes of the table `[scales.NAME]`."""
    path, value = parse_setting(setting)
    keys = names_of(path)
    if keys == [SCALE]:
        for size, amount in apply_scale(raw, str(value)).items():
            _write(raw, size.split("."), amount, setting)
        return
    _write(raw, keys, value, setting)


_KEYS = re.compile(r'"([^"]+)"|([^.]+)')


def names_of(key: str) -> list[str]:
    """Return the parts of a setting's key; those with dots are in quotes there."""
    return [quoted or plain for quoted, plain in _KEYS.findall(key)]


def quoted(name: str) -> str:
    """Return the name of an entry as a part of a setting's key."""
    return f'"{name}"' if "." in name else name


def without_scale(settings: Sequence[str]) -> list[str]:
    """Return the settings of the recipe itself, of those of a twin."""
    return [setting for setting in settings if not _names_scale(setting)]


def _key(setting: str) -> str:
    return setting.partition("=")[0].strip()


def _names_scale(setting: str) -> bool:
    return _key(setting) == SCALE


def _write(raw: dict[str, Any], keys: Sequence[str], value: Any, setting: str) -> None:
    place: Any = raw
    for key in keys[:-1]:
        place = _named(place, key, setting) if isinstance(place, list) else place.setdefault(key, {})
    if isinstance(place, list):
        raise RecipeError(f"--set {setting}: `{'.'.join(keys[:-1])}` is a list; name one of its entries first")
    if not isinstance(place, dict):
        raise RecipeError(f"--set {setting}: `{'.'.join(keys[:-1])}` is a value, not a table")
    place[keys[-1]] = value


def _named(entries: list[Any], name: str, setting: str) -> Any:
    for entry in entries:
        if isinstance(entry, dict) and entry.get("name") == name:
            return entry
    names = ", ".join(str(entry.get("name")) for entry in entries if isinstance(entry, dict))
    raise RecipeError(f"--set {setting}: there is no entry named `{name}`; there are {names} (with dots: in quotes)")
