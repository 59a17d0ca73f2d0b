"""Extending a base: characters and words of new scripts, found in this run's text, behind the base's own pieces.

What Chinese-LLaMA (Cui et al., 2023) and BELLE do by merging two vocabularies, without their losses: every added piece
is emitted, no old id moves, and text without the new scripts keeps its ids. Both are checked before anything is
published.
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from model.errors import Bug, InputError
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.report import StageReport
from tasks.artifacts.workspace import Workspace
from tasks.tokenizer.open import tokenizer_of
from tasks.vocab.base import prepared_base
from tasks.vocab.bpe import Growth
from tasks.vocab.candidates import Donor, train_donor
from tasks.vocab.comparison import compare, texts_by
from tasks.vocab.config import VocabConfig
from tasks.vocab.corpus import bytes_by_source, count_documents, planned_bytes, sampled_texts
from tasks.vocab.extenders import emitted, extended, kind_of, never_emitted, piece_count, pieces_of, reader, stands
from tasks.vocab.output import UNIT, Origin, write_tokenizer
from tasks.vocab.scripts import SCRIPTS, Script
from tasks.vocab.special_tokens import check_special
from tasks.vocab.train import bytes_per_token, unknown_shares

EXAMPLES = 20
"""Pieces shown of those that the text never uses."""


def extend_vocabulary(documents: Artifact, config: VocabConfig, released: bytes, workspace: Workspace) -> StageReport:
    """Write the base, whose file holds `released`, with the rows that `config.extend` asks for; as it is where nothing
    is asked for.

    Raises InputError when the base loses text or the run's text cannot give that many rows.
    """
    finished = workspace.finished(UNIT)
    if finished is not None:
        return finished
    before = prepared_base(config, released)
    counted = count_documents(documents)
    sizes = bytes_by_source(counted)
    plan = planned_bytes(sizes, config.weights, config.max_bytes) if config.extend else {}
    model, added, first = before, dict[str, Growth](), dict[str, int]()
    runs: dict[str, Callable[[], Iterator[str]]] = {}
    for name, rows in sorted(config.extend.items()):
        workspace.advance(len(runs), len(config.extend), "scripts")
        script = SCRIPTS[name]
        runs[name] = functools.partial(_runs, documents, sizes, plan, config.seed, script, reader(before))
        donor = train_donor(runs[name], rows + len(pieces_of(before, script)), config.character_coverage)
        growth = extended(model, donor, script, rows, runs[name])
        _check_rows(name, rows, growth, donor)
        first[name] = piece_count(model)
        model, added[name] = growth.model, growth
    check_extension(before, model)
    tokenizer = tokenizer_of(model)
    check_special(tokenizer, config.special_names)
    with workspace.unit(UNIT) as unit:
        rows_of_base = max(piece_count(released), config.embedding_rows)
        write_tokenizer(unit, tokenizer, Origin(released, before, rows_of_base))
        unit.report = counted
        unit.report.facts["vocabulary"] = {
            "pieces": tokenizer.vocab_size,
            "model_type": kind_of(before),
            "base": {
                "pieces": piece_count(released),
                "unreachable": len(never_emitted(released)),
                "besides": piece_count(before) - piece_count(released),
            },
            "bytes_per_token": {
                source: round(bytes_per_token(tokenizer, texts), 4)
                for source, texts in sorted(texts_by("source", documents, config.seed).items())
            },
            **unknown_shares(tokenizer, texts_by("source", documents, config.seed)),
            "added": {name: _told(growth, first[name], emitted(model, runs[name]())) for name, growth in added.items()},
            "languages": compare(
                released, model, texts_by("lang", documents, config.seed), [SCRIPTS[name] for name in added]
            ),
        }
    return unit.report


def check_extension(before: bytes, after: bytes) -> None:
    """Raise Bug unless the base's pieces stand where they stood and every added piece is emitted."""
    if not stands(before, after):
        raise Bug("vocab: extending the base has changed its own pieces; nothing was published")
    dead = sorted(set(never_emitted(after)) - set(never_emitted(before)))
    if dead:
        raise Bug(f"vocab: {len(dead)} pieces are never emitted, `{dead[0]}` among them; nothing was published")


def _runs(
    documents: Artifact,
    sizes: Mapping[str, int],
    plan: Mapping[str, int],
    seed: int,
    script: Script,
    read: Callable[[str], str],
) -> Iterator[str]:
    for _, text in sampled_texts(documents, sizes, plan, seed):
        yield from script.runs(read(text))


def _check_rows(name: str, asked: int, growth: Growth, donor: Donor) -> None:
    if not donor.characters:
        raise InputError(
            f"vocab.extend.{name}: the sampled text holds no character of this script. Leave `{name}` out of"
            f" vocab.extend, or bring text in it."
        )
    if len(growth.added) < asked:
        raise InputError(
            f"vocab.extend.{name}: {asked} rows were asked for, and the sampled text gives {len(growth.added)} at most."
            f" Set vocab.extend.{name} = {len(growth.added)} or less, or bring more text."
        )


def _told(growth: Growth, first: int, counts: np.ndarray) -> dict[str, Any]:
    """Rows of one script, from the id `first` on, and those of them that the whole sampled text never uses."""
    unused = [piece for piece, count in zip(growth.added, counts[first:], strict=False) if not count]
    return {
        "rows": len(growth.added),
        "intermediates": len(growth.intermediates),
        "unused": len(unused),
        "unused_examples": unused[:EXAMPLES],
    }
