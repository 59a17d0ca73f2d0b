"""One edit of clean by itself: the text just before it in the chain, and just after it."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pydantic import ValidationError

from tasks.artifact import Artifact
from tasks.clean.chain import Chain
from tasks.clean.config import CleanConfig
from tasks.clean.edits import HTML_TO_TEXT
from tasks.clean.part_rows import handfuls_of
from tasks.schema import DOCUMENTS


def around_edit(clean: Artifact, document: dict[str, Any], cleaned: str, edit: str) -> tuple[str, str] | None:
    """(before, after) one edit of a document (a row of DOCUMENTS, as clean read it), from running its chain again.

    None where the chain cannot be run from the artifact alone, since the recipe brought lists or functions, or gives
    another text than `cleaned`, since the code changed since.
    """
    try:
        config = CleanConfig.model_validate(clean.manifest["identity_parts"]["params"])
    except ValidationError:
        return None  # Paths of what the recipe brought are no part of the identity.
    row = {name: document[name] for name in DOCUMENTS.names}
    (handful,) = handfuls_of(pa.Table.from_pylist([row], schema=DOCUMENTS), config.emoji)
    about = handful.abouts.about(0)
    chain = Chain.of(config, config.preset_of(about.source, about.kind))
    order = [HTML_TO_TEXT, *(step.name for step in chain.edits)]
    if edit not in order:
        return None

    def after(edits: Collection[str]) -> str:
        steps = tuple(step for step in chain.edits if step.name in edits)
        reads_html = chain.reads_html and HTML_TO_TEXT in edits
        some = replace(chain, edits=steps, rules=(), languages=frozenset(), reads_html=reads_html)
        return some.clean(document["text"], about).text

    if after(order) != cleaned:
        return None
    place = order.index(edit)
    return after(order[:place]), after(order[: place + 1])
