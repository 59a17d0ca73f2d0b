"""Shrunk twins of a recipe: `--set scale=tiny` takes the sizes of its table `[scales.tiny]` and trains on this machine.

    [scales.tiny]
    budget_tokens = "60K"
    "train.model.width" = 32

Such a table holds sizes alone (`SIZES`), so that the twin has every stage, choice and stabilisation of the recipe.
Stated sizes of sources are left out, since the twin reads other text: what `variables.data` names, or, without it, text
that every Python has, which `prepare_text` writes: the pages of `help()`, a part for each source.
"""

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from flows.recipe.schema import Recipe, differing_settings
from model.errors import RecipeError
from model.files import write_atomically
from tasks.sample.config import SOURCE_NAME

SCALE = "scale"

SCALES = "scales"

SIZES = frozenset(
    {
        "budget_tokens",
        "vocab.vocab_size",
        "vocab.sentinels",
        "train.device",
        "train.ranks",
        "train.tensor_parallel",
        "train.pipeline_parallel",
        "train.batch_rows",
        "train.micro_batch_rows",
        "train.checkpoint_steps",
        "train.batch_warmup.start_rows",
        "train.batch_warmup.step_rows",
        "train.batch_warmup.share",
        "train.length_warmup.start_length",
        "train.length_warmup.share",
        "train.clip.early_share",
        "train.schedule.warmup_share",
        "train.schedule.end_share",
        "train.model.context",
        "train.model.layers",
        "train.model.heads",
        "train.model.kv_heads",
        "train.model.head_size",
        "train.model.width",
        "train.model.embedding_width",
        "train.model.ffn_width",
    }
)
"""Keys that a twin may change: amounts, lengths and widths, and the device."""

FOLDER = Path("inputs/scales")

PASSAGE_CHARS = 1500


def apply_scale(raw: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the sizes of the table `[scales.NAME]` by key, and take the stated sizes of sources out of `raw`.

    Raises RecipeError where there is no such table, or a key of it is no size.
    """
    tables = raw.get(SCALES, {})
    if not isinstance(tables, dict) or not isinstance(tables.get(name), dict):
        known = ", ".join(tables) if isinstance(tables, dict) and tables else "none"
        raise RecipeError(f"--set {SCALE}={name}: the recipe has no table [{SCALES}.{name}]; it has: {known}")
    for key in tables[name]:
        if key not in SIZES:
            close = difflib.get_close_matches(key, SIZES, n=1)
            hint = f' Did you mean "{close[0]}"?' if close else ""
            raise RecipeError(
                f"[{SCALES}.{name}]: `{key}` is no size, and a twin differs from its recipe in sizes alone.{hint} Sizes"
                f" are {', '.join(sorted(SIZES))}; change others with --set"
            )
    for source in raw.get("sources", ()):
        if isinstance(source, dict):
            source.pop("tokens", None)
    return dict(tables[name])


def prepare_text(root: Path, name: str, sources: Any) -> Path:
    """Write a text of this machine for each source of the recipe `name`, and return the folder of all.

    `sources` is what the recipe's file has; a source without a proper name gets none, since nothing is checked yet.

    A source `NAME` is read from its subfolder `NAME`: the pages of `help()` in turn, by their paragraphs. Records have
    the fields that the source names; those of threads are in groups of four, each an answer to the one before.
    """
    from flows.recipe.quickstart import help_topics

    folder = root / FOLDER / name
    texts = [text for page in help_topics().values() for text in _passages(page)]
    named = [source for source in (sources if isinstance(sources, list) else ()) if _named(source)]
    for number, source in enumerate(named):
        place = folder / source["name"] / "text.jsonl"
        records = (_record(at, text, source) for at, text in enumerate(texts[number :: len(named)]))
        write_atomically(place, "".join(f"{json.dumps(record)}\n" for record in records).encode())
    return folder


def _named(source: Any) -> bool:
    """Return whether the name of a source is one, which leads out of no folder."""
    name = source.get("name") if isinstance(source, dict) else None
    return isinstance(name, str) and re.fullmatch(SOURCE_NAME, name) is not None


def _passages(page: str) -> Iterator[str]:
    """Yield whole paragraphs of a page in passages of at least `PASSAGE_CHARS`."""
    passage = ""
    for paragraph in page.split("\n\n"):
        passage = f"{passage}\n\n{paragraph}".strip()
        if len(passage) >= PASSAGE_CHARS:
            yield passage
            passage = ""
    if passage:
        yield passage


def _record(number: int, text: str, source: Mapping[str, Any]) -> dict[str, str]:
    given = source.get("thread")
    thread = {"thread_field": "thread_id", "id_field": "id", "reply_field": "parent_id"}
    thread |= {key: str(value) for key, value in given.items()} if isinstance(given, dict) else {}
    return {
        thread["id_field"]: f"m{number}",
        thread["thread_field"]: f"t{number // 4}",
        thread["reply_field"]: f"m{number - 1}" if number % 4 else "",
        str(source.get("text_field", "text")): text,
    }


def changed_sizes(recipe: Recipe, twin: Recipe) -> dict[str, tuple[Any, Any]]:
    """Return key -> (recipe's value, twin's) of the resolved settings that differ, without paths of sources."""
    differing = differing_settings(recipe.model_dump(mode="json"), twin.model_dump(mode="json"))
    return {key: (one, other) for key, one, other in differing if not key.endswith(".paths")}
