"""Turn validation errors into lines that name the key as the recipe writes it, what is wrong, and what was meant.

A key is suggested from the other tables of the stage, by spelling, and from the names that other programs use
(`KEY_ALIASES`, `VALUE_ALIASES`).
"""

import difflib
import re
import tomllib
from collections.abc import Iterator, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from flows.recipe.tables import model_within, models_of, tagged_models
from model.config.presets import KEY
from tasks.evaluate.config import Scoring

Location = tuple[int | str, ...]

_QUOTED = re.compile(r"'([^']*)'")

_INDEX = re.compile(r"\[\d+\]")

SHORTHANDS: dict[Location, tuple[str, ...]] = {
    ("train", "model"): (KEY,),
    ("sample", "sources"): ("priority", "may_leave"),
}
"""Keys that a recipe may write and that `flows.recipe.resolve` replaces by others before validation."""

NOT_A_TABLE = ("model_type", "model_attributes_type", "dict_type")
"""Kinds of errors of a plain value in place of a table."""

NOT_A_LIST = ("tuple_type", "list_type")
"""Kinds of errors of a table or a plain value in place of a list."""

UNSCORED_BENCHMARKS = ("decontaminate", "benchmarks")
"""Table of benchmarks that are only searched for; those in `[[benchmarks]]` are scored as well."""

CLOSE_VALUE = 0.75
"""Similarity (difflib, 0 to 1) from which on a value is taken for a typing error: `poem` and `prose` have 0.67."""

MAX_SUGGESTIONS = 3
"""A key that is in more tables than these does not say which is meant."""


def format_recipe_errors(
    error: ValidationError, recipe: type[BaseModel], shared_keys: Sequence[str], origin: str, others: Sequence[str] = ()
) -> str:
    """Return a line for each wrong value of a `recipe`; `shared_keys` are those that it writes above all tables and
    that the field `sample` holds, `others` those above all tables that no field holds."""
    lines = [f"{origin}:"]
    above_tables: set[tuple[Location, str]] = set()
    for problem in error.errors():
        if problem["loc"] == ("sample", "sources") and problem["type"] == "too_short":
            continue  # The errors of the sources themselves are in the list as well.
        location = _without_tags(problem["loc"], recipe)
        written = _as_written(location, shared_keys)
        if (written[1:], repr(problem["input"])) in above_tables:
            continue  # A stage got the value from above all tables.
        if not written[1:]:
            above_tables.add((written, repr(problem["input"])))
        place = _place(written)
        if problem["type"] == "extra_forbidden":
            lines.append(f"  {place}: unknown key; {_hint(problem['loc'], recipe, shared_keys, others)}")
        elif problem["type"] == "missing":
            lines.append(f"  {place}: missing")
        else:
            table = next((model for *_, model in [*_walk(problem["loc"], recipe)][-1:]), None)
            message = _describe(problem, place, of_tables=table is not None)
            found = "" if isinstance(problem["input"], dict | list) else f" (found {problem['input']!r})"
            lines.append(f"  {place}: {message}{found}{_meant_value(problem, place, table)}")
    return "\n".join(lines)


def format_config_errors(error: ValidationError, origin: object, *table: str) -> str:
    """Return a line for each wrong value of a file, or of a table within it: its path and what is wrong."""
    lines = [f"{origin}:"]
    for problem in error.errors():
        # Tags of models that pydantic chose among, `(range)`, are in no file.
        place = ".".join([*table, *(part for part in map(str, problem["loc"]) if not part.startswith("("))])
        message = _describe(problem, place, of_tables=isinstance(problem["input"], dict))
        lines.append(f"  {f'{place}: ' if place else ''}{message}")
    return "\n".join(lines)


def _describe(problem: Any, place: str, *, of_tables: bool) -> str:
    """Return what is wrong with the value at a place, in words of TOML; `of_tables`: a list there is one of tables."""
    if problem["type"] in NOT_A_TABLE:
        return "must be a table"
    if problem["type"] in NOT_A_LIST and of_tables:
        return f"must be a list; write `[[{_INDEX.sub('', place)}]]` for each of its tables"
    if problem["type"] in NOT_A_LIST:
        return f"must be a list; write `{place.rpartition('.')[2]} = [...]`"
    return problem["msg"].removeprefix("Value error, ")


def line_of(text: str, location: Location) -> int | None:
    """Return the line, from 1, of a TOML document on which the value at a location begins; None where it is not set.

    A table begins at its header.
    """
    lines = text.splitlines(keepends=True)
    begin = 1
    for end in range(1, len(lines) + 1):
        try:
            value: Any = tomllib.loads("".join(lines[:end]))
        except tomllib.TOMLDecodeError:
            continue  # Within a value of several lines.
        for part in location:
            if isinstance(part, int):
                value = value[part] if isinstance(value, list) and part < len(value) else None
            else:
                value = value.get(part) if isinstance(value, dict) else None
        if value is not None:
            return begin
        begin = end + 1
    return None


def _without_tags(location: Location, recipe: type[BaseModel]) -> Location:
    """Return the location as the recipe writes it, without the tags by which pydantic names one of several models."""
    return tuple(part for part, several, _ in _walk(location, recipe) if part not in several)


def _walk(location: Location, recipe: type[BaseModel]) -> Iterator[tuple[int | str, dict[str, Any], Any]]:
    """Yield each part of a location, the models by tag that it may choose among (mostly none), and the model that it
    leads to, or None."""
    model: Any = recipe
    several: dict[str, Any] = {}
    for part in location:
        offered = several
        if part in offered:
            model, several = offered[str(part)], {}
        elif isinstance(part, str):
            field = model.model_fields.get(part) if model is not None else None
            several = tagged_models(field.annotation) if field is not None else {}
            model = model_within(field.annotation) if field is not None else None
        yield part, offered, model


def _hint(location: Location, recipe: type[BaseModel], shared_keys: Sequence[str], others: Sequence[str]) -> str:
    """Return which key was meant: the same in another table of the stage, a similar one here, or the same anywhere."""
    key, known = str(location[-1]), _known_keys(recipe, location[:-1])
    if not location[1:]:
        known = sorted([*known, *shared_keys, *others])
    chosen_among = [offered for _, offered, _ in _walk(location[:-1], recipe)][-1:]
    tags = [tag for models in chosen_among for tag, model in models.items() if key in model.model_fields]
    if tags:
        return (
            f"a {' and a '.join(tags)} has it, and the architecture is {location[-2]}; known keys: {', '.join(known)}"
        )
    location = _without_tags(location, recipe)
    if location[:2] == UNSCORED_BENCHMARKS and key in {"task", *Scoring.model_fields}:
        return f"a benchmark that is scored, with `{key}`, is a table `[[benchmarks]]`"
    key = _resolve_alias(key)
    everywhere = [(key,)] if key in shared_keys else list(_places_of(key, recipe))
    of_the_stage = [place for place in everywhere if place[0] == location[0]]
    meant = (
        [_place(place) for place in of_the_stage]
        or difflib.get_close_matches(key, known, n=1)
        or [name for name in known if name.startswith(key)]
        or [name for name in known if key in name]
        or [_place(place) for place in everywhere]
    )
    if 0 < len(meant) <= MAX_SUGGESTIONS:
        return f"did you mean {' or '.join(f'`{name}`' for name in meant)}?"
    return f"known keys: {', '.join(known)}"


def _resolve_alias(key: str) -> str:
    """Return the name here of a key that other programs use, also with small typing errors; others unchanged."""
    (like,) = difflib.get_close_matches(key, KEY_ALIASES, n=1, cutoff=0.85) or (key,)
    return KEY_ALIASES.get(like, key)


def _meant_value(problem: Any, place: str, table: type[BaseModel] | None) -> str:
    """Return which value was meant in place of an unknown one, or which key of a table by a plain value."""
    found = problem["input"]
    if not isinstance(found, str | int):
        return ""
    if problem["type"] in NOT_A_TABLE and table is not None:
        for name, field in table.model_fields.items():
            if found in get_args(field.annotation):
                return f"; did you mean `{place}.{name} = {found}`?"
        return f"; its keys are {', '.join(sorted(table.model_fields))}"
    if problem["type"] == "literal_error":
        known = _QUOTED.findall(problem["ctx"]["expected"])
        folded = str(found).lower()
        meant = VALUE_ALIASES.get(folded, folded)
        close = [meant] if meant in known else difflib.get_close_matches(meant, known, n=1, cutoff=CLOSE_VALUE)
        return f"; did you mean `{close[0]}`?" if close else ""
    return ""


def _places_of(key: str, model: type[BaseModel], above: Location = ()) -> Iterator[Location]:
    """Yield where the tables of `model` have a field of this name; entries of lists have no path of their own."""
    for name, field in model.model_fields.items():
        if name == key:
            yield (*above, name)
        tables = models_of(field.annotation)
        yield from dict.fromkeys(place for table in tables for place in _places_of(key, table, (*above, name)))


def _as_written(location: Location, shared_keys: Sequence[str]) -> Location:
    """Return where a recipe writes a value, which is above all tables for shared keys."""
    shared = location[0] == "sample" and location[1:2] != () and location[1] in shared_keys
    return location[1:] if shared else location


def _place(location: Sequence[int | str]) -> str:
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def _known_keys(recipe: type[BaseModel], location: Location) -> list[str]:
    """Return the field names of the config model at a location of the recipe."""
    model = [recipe, *(model for *_, model in _walk(location, recipe))][-1]
    if model is None:
        return []
    return sorted([*model.model_fields, *SHORTHANDS.get(location[:2], ())])


KEY_ALIASES = {
    **dict.fromkeys(("learning_rate", "lr", "max_lr"), "peak_lr"),
    **dict.fromkeys(("lr_scheduler", "lr_schedule", "lr_scheduler_type", "scheduler"), "schedule"),
    **dict.fromkeys(("warmup", "warmup_ratio", "warmup_steps"), "warmup_share"),
    **dict.fromkeys(("batch_size", "train_batch_size", "global_batch_size"), "batch_rows"),
    **dict.fromkeys(("micro_batch_size", "per_device_train_batch_size"), "micro_batch_rows"),
    **dict.fromkeys(("max_tokens", "train_tokens", "num_tokens"), "budget_tokens"),
    **dict.fromkeys(("d_model", "hidden_size", "n_embd", "embedding_size"), "width"),
    **dict.fromkeys(("n_layer", "n_layers", "num_layers", "num_hidden_layers"), "layers"),
    **dict.fromkeys(("n_head", "n_heads", "num_heads", "num_attention_heads"), "heads"),
    **dict.fromkeys(("d_ff", "intermediate_size", "ffn_size"), "ffn_width"),
    **dict.fromkeys(("max_seq_len", "seq_len", "block_size", "n_positions", "max_position_embeddings"), "context"),
    **dict.fromkeys(("gradient_checkpointing", "activation_checkpointing"), "recompute"),
    **dict.fromkeys(("max_grad_norm", "grad_clip", "clip_norm"), "clip"),
    **dict.fromkeys(("precision", "mixed_precision"), "dtype"),
}
"""Name of a key in other programs -> its name here."""

VALUE_ALIASES = {
    **dict.fromkeys(("fp16", "half", "16"), "float16"),
    **dict.fromkeys(("bf16", "bf16-mixed"), "bfloat16"),
    **dict.fromkeys(("fp32", "float", "single", "32"), "float32"),
    **dict.fromkeys(("gpu", "nvidia"), "cuda"),
    **dict.fromkeys(("poem", "poems", "poetry", "lyrics", "song", "songs"), "verse"),
}
"""Name of a value in other programs -> its name here."""
