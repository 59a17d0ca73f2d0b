"""Extend a base vocabulary: characters and words of new scripts, found in this run's text, appended to its tokens.

Chinese-LLaMA (Cui et al. 2023) and BELLE do this by merging two vocabularies. Here, in contrast, every added token can
be emitted, no old id moves, and text without the new scripts keeps its ids. The first two are checked before anything
is published.
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from model.errors import Bug, InputError
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.report import StageReport
from tasks.artifacts.results import VocabResult, Vocabulary
from tasks.artifacts.workspace import Workspace
from tasks.tokenizer.open import tokenizer_of
from tasks.vocab.base import prepare_base
from tasks.vocab.bpe import Extension
from tasks.vocab.candidates import CandidateVocabulary, train_candidates
from tasks.vocab.comparison import compare_vocabularies, sample_texts_by
from tasks.vocab.config import VocabConfig
from tasks.vocab.corpus import bytes_by_source, count_sources, plan_bytes, sample_texts
from tasks.vocab.extenders import (
    count_emitted,
    extend_to,
    keeps_base,
    kind_of,
    make_normaliser,
    tokens_of_script,
    unreachable,
    vocabulary_size,
)
from tasks.vocab.output import UNIT, BaseVocabulary, write_tokenizer
from tasks.vocab.scripts import SCRIPTS, Script
from tasks.vocab.special_tokens import check_special
from tasks.vocab.train import measure_tokens

EXAMPLES = 20
"""Number of unused tokens that the report shows."""


def extend_vocabulary(
    documents: Artifact, config: VocabConfig, released: bytes, begins: bool, workspace: Workspace
) -> StageReport:
    """Write the base, whose file is `released`, with the tokens that `config.extend` requests; unextended where it
    requests none. `begins` is `texts_begin` of the base.

    Raises InputError when the base loses text or the run's text cannot give that many tokens.
    """
    finished = workspace.finished(UNIT)
    if finished is not None:
        return finished
    before = prepare_base(config, released)
    counted = count_sources(documents)
    sizes = bytes_by_source(counted)
    plan = plan_bytes(sizes, config.weights, config.max_bytes) if config.extend else {}
    model, added, first = before, dict[str, Extension](), dict[str, int]()
    runs: dict[str, Callable[[], Iterator[str]]] = {}
    for name, rows in sorted(config.extend.items()):
        workspace.advance(len(runs), len(config.extend), "scripts")
        script = SCRIPTS[name]
        runs[name] = functools.partial(
            _script_runs, documents, sizes, plan, config.seed, script, make_normaliser(before)
        )
        # As many more words as are tokens already, of the base or of another language of this script.
        words = rows + len(tokens_of_script(model, script))
        candidates = train_candidates(runs[name], words, config.character_coverage)
        extension = extend_to(model, candidates, script, rows, runs[name])
        _check_rows_found(name, rows, extension, candidates)
        first[name] = vocabulary_size(model)
        model, added[name] = extension.model, extension
    check_extension(before, model)
    tokenizer = tokenizer_of(model, begins=begins)
    check_special(tokenizer, config.special_names)
    per_token, unknown = measure_tokens(tokenizer, sample_texts_by("source", documents, config.seed))
    with workspace.unit(UNIT) as unit:
        rows_of_base = max(vocabulary_size(released), config.embedding_rows)
        write_tokenizer(unit, tokenizer, BaseVocabulary(released, before, rows_of_base))
        unit.report = counted
        made: Vocabulary = {
            "pieces": tokenizer.vocab_size,
            "model_type": kind_of(before),
            "base": {
                "pieces": vocabulary_size(released),
                "unreachable": len(unreachable(released)),
                "besides": vocabulary_size(before) - vocabulary_size(released),
            },
            "bytes_per_token": per_token,
            **unknown,
            "added": {
                name: _added_facts(extension, first[name], count_emitted(model, runs[name]()))
                for name, extension in added.items()
            },
            "languages": compare_vocabularies(
                released, model, sample_texts_by("lang", documents, config.seed), [SCRIPTS[name] for name in added]
            ),
        }
        unit.report.facts = VocabResult(made).facts()
    return unit.report


def check_extension(before: bytes, after: bytes) -> None:
    """Raise Bug unless the base's tokens are unchanged and every added token can be emitted."""
    if not keeps_base(before, after):
        raise Bug("vocab: extending the base has changed its own tokens; nothing was published")
    dead = sorted(set(unreachable(after)) - set(unreachable(before)))
    if dead:
        raise Bug(f"vocab: {len(dead)} added tokens are never emitted, such as `{dead[0]}`; nothing was published")


def _script_runs(
    documents: Artifact,
    sizes: Mapping[str, int],
    plan: Mapping[str, int],
    seed: int,
    script: Script,
    read: Callable[[str], str],
) -> Iterator[str]:
    for _, text in sample_texts(documents, sizes, plan, seed):
        yield from script.runs(read(text))


def _check_rows_found(name: str, requested: int, extension: Extension, candidates: CandidateVocabulary) -> None:
    if not candidates.characters:
        raise InputError(
            f"vocab.extend.{name}: the sampled text has no character of this script. Remove `{name}` from vocab.extend,"
            f" or add text in it."
        )
    if len(extension.added) < requested:
        raise InputError(
            f"vocab.extend.{name} is {requested}, and the sampled text gives {len(extension.added)} tokens at most."
            f" Set vocab.extend.{name} = {len(extension.added)} or less, or add text."
        )


def _added_facts(extension: Extension, first: int, counts: np.ndarray) -> dict[str, Any]:
    """Return the tokens added for one script, from id `first` on, and those of them that the whole sampled text
    never uses."""
    unused = [piece for piece, count in zip(extension.added, counts[first:], strict=False) if not count]
    return {
        "rows": len(extension.added),
        "intermediates": len(extension.intermediates),
        "unused": len(unused),
        "unused_examples": unused[:EXAMPLES],
    }
