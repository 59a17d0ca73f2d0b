"""The recipe: one TOML file that says everything that decides a run.

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

Values that several stages need (sources and their weights, seed, budget, context length) are written once and handed
to the stages here. Precedence: defaults < recipe < `--set`. Placeholders in paths: `{recipe}` is the recipe's folder,
`{root}` the artifact root, `{stdlib}` and `{site_packages}` those of this Python; any other comes from the recipe's
`[variables]` table, where `--set variables.NAME=VALUE` reaches it.

Opening a recipe by file or by name, with the input of the demo written first where it is asked for.
"""

import difflib
import re
import sysconfig
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from flows.recipe.checks import check_agreement, length_of_rows
from flows.recipe.errors import explain, model_within
from flows.recipe.resolve import hybrids, network_settings, place_benchmarks, with_found_weights
from flows.recipe.schema import Recipe, Written, _credentials_told
from flows.recipe.stages import STAGES
from model.config.network import OBJECTIVE_OF, GPTConfig
from model.digests import why_no_file
from model.errors import RecipeError
from tasks.common.config import StrictConfig
from tasks.common.confinement import check_file, check_recipe
from tasks.common.text import without_credentials
from tasks.execution.machines import Machines
from tasks.vocab.config import BERT_TOKENS

RECIPES = Path(__file__).parents[1] / "shipped" / "recipes"

MIXTURE_KEYS = ("temperature", "max_epochs", "allow_many_epochs")
"""Said once, above the stages: sample keeps text for the mixture and chunk makes it."""

SAID_ONCE = ("sources", "budget_tokens", *MIXTURE_KEYS)
"""What a recipe writes above all tables, and sample takes."""

BESIDE_THE_RUN = ("variables", "search", "mix", "nightly", "notify")
"""Tables that decide nothing of a run: values for paths, what `bessemer search` varies, how `bessemer mix` goes about
it, how nights go and who is told of them."""

SENTINELS_OF_T5 = 100
"""Enough for inputs of up to 1,809 tokens; for longer ones the recipe says how many."""

_MULTIPLES = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}

_COUNT = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([KMBT]?)", re.IGNORECASE)


class _SaidOfMachines(StrictConfig):
    machines: Machines


def find_recipe(name: str) -> Path:
    """The file of a recipe given by path, or by the name of one that ships with the program."""
    for candidate in (Path(name), RECIPES / f"{name}.toml"):
        if candidate.is_file():
            return candidate
    if Path(name).exists():
        raise RecipeError(f"recipe `{name}` {why_no_file(name)}; name a TOML file")
    shipped = sorted(path.stem for path in RECIPES.glob("*.toml"))
    close = difflib.get_close_matches(name, shipped, n=1)
    hint = f" Did you mean `{close[0]}`?" if close else ""
    raise RecipeError(
        f"recipe `{name}`: there is no such file, and no recipe of that name ships with Bessemer (those that do:"
        f" {', '.join(shipped)}).{hint}"
    )


def load_recipe(path: Path, root: Path, settings: Sequence[str] = (), limit: float = 1.0) -> Recipe:
    """Read, complete and check a recipe.

    `settings` are `key.path=value` words (values in TOML notation, or plain text); `limit` is the share of each source
    to keep, 1.0 for all. Raises RecipeError with the path of every wrong key.
    """
    try:
        text = path.read_text(encoding="utf-8")
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise RecipeError(f"{path}: not valid TOML: {error}") from error
    except UnicodeDecodeError as error:
        raise RecipeError(f"{path}: not UTF-8 text (byte {error.start}); save the recipe as UTF-8") from error
    for setting in settings:
        apply_setting(raw, setting)
    origin = f"{path} with --set {without_credentials(' '.join(settings))}" if settings else str(path)
    recipe = recipe_from(raw, origin=origin, folder=path.resolve().parent, root=root, limit=limit)
    recipe._written = Written(path, text, tuple(settings))
    return recipe


def recipe_from(raw: Mapping[str, Any], *, origin: str, folder: Path, root: Path, limit: float = 1.0) -> Recipe:
    """A recipe from the values of its TOML file; `origin` names it in errors."""
    if problem := _credentials_told(raw):
        raise RecipeError(f"{origin}: {problem}")
    if raw.get("format", 1) != 1:
        raise RecipeError(
            f"{origin}: `format = {raw['format']}` is of another version of Bessemer; this one reads format 1"
        )
    variables = {
        "recipe": str(folder),
        "root": str(root),
        "stdlib": sysconfig.get_paths()["stdlib"],
        "site_packages": sysconfig.get_paths()["purelib"],
        **{key: str(value) for key, value in dict(raw.get("variables", {})).items()},
    }
    values = _fill(dict(raw), variables, origin)
    if problem := _credentials_told(values):  # Placeholders may have made one.
        raise RecipeError(f"{origin}: {problem}")
    for beside in BESIDE_THE_RUN:
        values.pop(beside, None)
    sources = values.pop("sources", None)
    if not isinstance(sources, list) or not sources:
        raise RecipeError(f"{origin}: no sources; add at least one [[sources]] table with `name`, `paths` and `weight`")
    weights_from = values.pop("weights_from", None)
    if weights_from is not None:
        check_file(f"{origin}: weights_from", folder / str(weights_from))
    sources = with_found_weights(sources, weights_from, folder, origin)
    tables = [source for source in sources if isinstance(source, dict)]
    shared = {
        "sources": [_as_read(source, origin) for source in sources],
        "seed": values.get("seed", 1),
        "limit": limit,
        "weights": {source.get("name"): source["weight"] for source in tables if "weight" in source},
        "priorities": {source.get("name"): source["priority"] for source in tables if "priority" in source},
    }
    if "budget_tokens" in values:
        shared["budget_tokens"] = _count(values.pop("budget_tokens"), f"{origin}: budget_tokens")
    shared.update({key: values.pop(key) for key in MIXTURE_KEYS if key in values})
    if "machines" in values:
        shared["machines"] = _machines(values.pop("machines"), origin)
    _check_tables(values, origin)
    place_benchmarks(values, origin)
    if "base_model" in values.get("train", {}):  # Its description is read before all is checked.
        check_file(f"{origin}: train.base_model", str(values["train"]["base_model"]))
    told = hybrids(values.get("train", {}))
    values["train"] = {**values.get("train", {}), "model": network_settings(values.get("train", {}), origin)}
    objective = _agree_on_objective(values, origin)
    default = GPTConfig.model_fields["context"].default
    asked = values["train"]["model"].get("context", default)
    # What is no number is refused below, with all else that is wrong.
    context = asked if isinstance(asked, int) and not isinstance(asked, bool) else default
    shared.update(length_of_rows(context, objective))
    _tell_gate_its_base(values)
    values["vocab"] = _with_special_tokens(dict(values.get("vocab", {})), objective)
    for stage in STAGES:
        section = dict(values.get(stage, {}))
        config = model_within(Recipe.model_fields[stage].annotation)
        for key, value in shared.items():
            if key in config.model_fields:
                section.setdefault(key, value)
        values[stage] = section
    try:
        recipe = Recipe.model_validate(values)
    except ValidationError as error:
        raise RecipeError(explain(error, Recipe, SAID_ONCE, origin)) from error
    check_recipe(recipe, origin)
    check_agreement(recipe, origin)
    recipe._remarks = told
    return recipe


def _machines(table: Any, origin: str) -> Machines:
    """Checked once, not in each stage that takes it."""
    try:
        return _SaidOfMachines.model_validate({"machines": table}).machines
    except ValidationError as error:
        raise RecipeError(explain(error, _SaidOfMachines, (), origin)) from error


def _check_tables(values: Mapping[str, Any], origin: str) -> None:
    """Raises RecipeError where a value stands in place of a table that is looked into before all is checked."""
    places = {stage: values.get(stage, {}) for stage in STAGES}
    train = places["train"]
    if isinstance(train, dict):
        places["train.model"] = train.get("model", {})
    for place, found in places.items():
        if not isinstance(found, dict):
            raise RecipeError(f"{origin}: {place} is {found!r}, and a table of settings belongs there")


def _agree_on_objective(values: dict[str, Any], origin: str) -> str:
    """The objective of rows; what the network is follows from it, or it from what the network is, in `values`."""
    train, chunk = dict(values.get("train", {})), dict(values.get("chunk", {}))
    model = dict(train.get("model", {}))
    asked, told = chunk.get("objective"), model.get("architecture")
    needed = OBJECTIVE_OF.get(str(told))
    if asked is not None and needed is not None and asked != needed:
        fitting = next((name for name, of in OBJECTIVE_OF.items() if of == asked), told)
        raise RecipeError(
            f"{origin}: train.model.architecture is {told}, which is trained on {needed}, and chunk.objective is"
            f" {asked}, on which a {fitting} is. Leave one of the two out; it follows from the other."
        )
    objective = str(asked or needed or "causal_lm")
    if told is None:
        model.update(("architecture", name) for name, of in OBJECTIVE_OF.items() if of == objective)
    values["train"] = {**train, "model": model}
    values["chunk"] = {**chunk, "objective": objective}
    return objective


def _with_special_tokens(vocab: dict[str, Any], objective: str) -> dict[str, Any]:
    """The vocabulary's settings with the special tokens that the objective needs, where one is trained and nothing is
    said of them; a base has its own."""
    if vocab.get("base") is not None:
        return vocab
    if objective == "masked_lm" and vocab.get("model_type") != "wordpiece":
        return {"special_tokens": BERT_TOKENS, **vocab}
    if objective == "span_corruption":
        return {"sentinels": SENTINELS_OF_T5, **vocab}
    return vocab


def _as_read(source: Any, origin: str) -> Any:
    """A source as sample takes it: its size counted, and without the priority, by which dedup chooses among copies."""
    if not isinstance(source, dict):
        return source
    read = {key: value for key, value in source.items() if key != "priority"}
    if "tokens" in read:
        read["tokens"] = _count(read["tokens"], f"{origin}: tokens of source `{read.get('name')}`")
    return read


def _count(value: Any, where: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    match = _COUNT.fullmatch(str(value).strip())
    if match is None:
        raise RecipeError(f'{where} is {value!r}; write a positive count such as 2000000, "2M" or "1.5B"')
    return int(float(match[1]) * _MULTIPLES[match[2].upper()])


def _fill(value: Any, variables: Mapping[str, str], origin: str) -> Any:
    """Replace `{name}` in every path of the recipe."""
    if isinstance(value, dict):
        return {
            key: _fill_paths(item, variables, origin)
            if key in ("paths", "path", "answers_path", "exclude", "prompts_file", "base", "base_model", "weights_from")
            else _fill(item, variables, origin)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [_fill(item, variables, origin) for item in value]
    return value


def _fill_paths(value: Any, variables: Mapping[str, str], origin: str) -> Any:
    if isinstance(value, list):
        return [_fill_paths(item, variables, origin) for item in value]
    if not isinstance(value, str):
        return value

    def replacement(match: re.Match[str]) -> str:
        name = match[1]
        if name not in variables:
            raise RecipeError(
                f"{origin}: the path `{value}` uses `{{{name}}}`, which nothing defines; known are"
                f" {', '.join(sorted(variables))}. Define it under [variables] or with --set variables.{name}=..."
            )
        return variables[name]

    return re.sub(r"\{([a-z_]+)\}", replacement, value)


def apply_setting(raw: dict[str, Any], setting: str) -> None:
    """Write `a.b.c=value` into the raw recipe; `sources.NAME.key` finds the source by its name."""
    path, equals, text = setting.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys):
        raise RecipeError(f"--set {setting}: write it as key.path=value, for example --set dedup.threshold=0.9")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
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
    raise RecipeError(f"--set {setting}: there is no entry named `{name}`; there are {names}")


def _tell_gate_its_base(values: dict[str, Any]) -> None:
    """The gate compares with the model that training goes on from."""
    evaluate, base = values.get("evaluate", {}), values["train"].get("base_model")
    if isinstance(evaluate.get("gate"), dict) and base is not None:
        values["evaluate"] = {**evaluate, "gate": {"base_model": base, **evaluate["gate"]}}


QUICKSTART = RECIPES / "quickstart.toml"


def open_recipe(name: str, root: Path, settings: Sequence[str] = (), limit: float = 1.0) -> Recipe:
    """The recipe in a file, or that ships under a name; `settings` and `limit` as `load_recipe` takes them.

    The demo reads documentation of this Python that stands nowhere as text: it is written under `root` first.
    """
    return load_recipe(recipe_file(name, root), root, settings, limit)


def recipe_file(name: str, root: Path) -> Path:
    """The file of a recipe given by path or by the name under which it ships, its input written."""
    path = find_recipe(name)
    if path == QUICKSTART:
        from flows.recipe.quickstart import prepare

        prepare(root)
    return path
