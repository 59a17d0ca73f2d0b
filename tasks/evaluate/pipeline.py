"""The evaluate stage from end to end, one unit of work each: held-out text, the training objective, the 5-gram, each
benchmark, checks of generated text, samples."""

import functools
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from model.checkpoint.run_folder import DESCRIPTION, WEIGHTS
from model.checkpoint.weights import load_model
from model.config.network import OBJECTIVE_OF
from model.data.row_format import RowFormat
from model.engines.products import fastest_products
from model.inference.device import inference_on
from model.nn.bert import BERT
from model.nn.factory import Network
from model.nn.gpt import GPT
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.report import StageReport
from tasks.artifacts.results import EvaluateResult
from tasks.artifacts.tables.files import read_table, table_file_name, write_table
from tasks.artifacts.tables.map_parts import unit_name
from tasks.artifacts.tables.rows import HELDOUT
from tasks.artifacts.tables.schema import DOCUMENT_SCORES, GAPS, ITEM_SCORES, SCORES
from tasks.artifacts.workspace import Workspace
from tasks.evaluate.benchmarks.items import items_of, leak_states
from tasks.evaluate.benchmarks.likelihood import make_scorer
from tasks.evaluate.benchmarks.run import benchmark_scores
from tasks.evaluate.config import EvaluateConfig
from tasks.evaluate.forgetting import gate_rises, gate_scores, gated_model
from tasks.evaluate.heldout import EncodedSource, encode_sources, heldout_documents
from tasks.evaluate.masked_lm import pair_scores, pseudo_scores
from tasks.evaluate.memorization import OVERLAPS, check_generated_text
from tasks.evaluate.ngram_baseline import ngram_scores, repeated_in_training
from tasks.evaluate.perplexity import heldout_scores, unigram_code_lengths
from tasks.evaluate.samples import write_samples
from tasks.evaluate.scores import Scores
from tasks.evaluate.span_corruption import span_scores
from tasks.tokenizer.base import Tokenizer
from tasks.tokenizer.open import open_tokenizer

MOST_LOGITS = 1 << 25
"""Logits in memory at once, 128 MiB in float32."""

NGRAM_UNIT, OBJECTIVE_UNIT, CHECKS_UNIT, SAMPLES_UNIT, GATE_UNIT = "5gram", "objective", "checks", "samples", "gate"

KEY_METRICS = ("bits_per_byte", "pseudo_bits_per_byte", "target_bits_per_byte", "masked_accuracy", "next_accuracy")
"""Metrics of held-out text that a summary shows; the key of the first one is the name of its task alone."""


@dataclass(frozen=True)
class TrainedModel:
    """The model under evaluation, and what it was trained on."""

    network: Network
    tokenizer: Tokenizer
    sequences: Artifact
    description: dict[str, Any]
    """The model's description: how it was trained."""

    @property
    def rows(self) -> pa.Schema:
        """The schema of the training sequences."""
        return read_table(self.sequences.files("sequences")[0]).schema

    @property
    def row_format(self) -> RowFormat | None:
        """The format of the training sequences."""
        return RowFormat.of(self.rows)

    @property
    def code_lengths(self) -> np.ndarray:
        """Bits of each token [vocabulary] by its frequency in training."""
        return unigram_code_lengths(self.sequences.table("unigram"), self.tokenizer.vocab_size)


def evaluate_model(
    model: Artifact,
    vocab: Artifact,
    sequences: Artifact,
    decontaminated: Sequence[Artifact],
    config: EvaluateConfig,
    workspace: Workspace,
) -> StageReport:
    """Write SCORES and the samples table. The last of `decontaminated` is the run's own, whose benchmark items are
    scored; held-out text and leaks are those of all.

    Raises InputError when the model was trained with another tokenizer, or the forgetting gate does not apply to it.
    """
    description = json.loads(model.file(DESCRIPTION).read_text())
    tokenizer = open_tokenizer(vocab, OBJECTIVE_OF[description["config"].get("architecture", "gpt")])
    network = load_model(model.file(WEIGHTS).parent, tokenizer.digest)
    trained = TrainedModel(network, tokenizer, sequences, description)
    documents = heldout_documents(decontaminated, config.heldout_max_bytes, config.seed)
    texts = {source: [one.text for one in mine] for source, mine in documents.items()}
    sources = encode_sources(tokenizer, documents)
    gated = None if config.gate is None else gated_model(model, vocab, network, tokenizer)
    repeated = functools.cache(lambda: _repeated(trained, sources, config))
    most_tokens = max(network.config.context, MOST_LOGITS // tokenizer.vocab_size)
    config = config.model_copy(update={"batch_tokens": min(config.batch_tokens, most_tokens)})
    with _threads(config.threads), fastest_products(), inference_on(config.device, trained.description, network):
        _write_scores(
            unit_name(0),
            workspace,
            lambda: heldout_scores(
                network if isinstance(network, GPT) else None,
                tokenizer.opening,
                sources,
                trained.code_lengths,
                config,
                advance=lambda done: workspace.advance(done, len(sources), "sources"),
                repeated=repeated(),
            ),
        )
        if gated is not None:
            _write_scores(GATE_UNIT, workspace, lambda: Scores(gate_scores(gated, sources, config)))
        if not isinstance(network, GPT):
            _write_scores(OBJECTIVE_UNIT, workspace, lambda: _score_objective(trained, sources, config))
        _write_scores(
            NGRAM_UNIT, workspace, lambda: Scores(ngram_scores(tokenizer, sources, sequences, config, repeated()))
        )
        _score_benchmarks(trained, decontaminated, config, workspace)
        if isinstance(network, GPT) and config.checked_texts and workspace.finished(CHECKS_UNIT) is None:
            rows, overlaps = check_generated_text(network, tokenizer, sequences, texts, config)
            with workspace.unit(CHECKS_UNIT) as unit:
                table = pa.Table.from_pylist(rows, schema=SCORES)
                write_table(unit, "scores", table, table_file_name("scores", CHECKS_UNIT))
                write_table(unit, "overlaps", pa.Table.from_pylist(overlaps, schema=OVERLAPS))
        if workspace.finished(SAMPLES_UNIT) is None:
            with workspace.unit(SAMPLES_UNIT) as unit:
                write_table(unit, "samples", write_samples(network, tokenizer, trained.row_format, texts, config))
    report = StageReport()
    tables = [read_table(workspace.file(record.name)) for record in workspace.records() if record.table == "scores"]
    scores = pa.concat_tables(tables)
    report.facts = EvaluateResult(
        headline=key_figures(scores),
        gaps=_significant_gaps(workspace),
        gate=None if config.gate is None else gate_rises(config.gate, scores.to_pylist()),
    ).facts()
    return report


def _repeated(
    trained: TrainedModel, sources: Sequence[EncodedSource], config: EvaluateConfig
) -> dict[str, list[np.ndarray]] | None:
    """Return by source which tokens of each held-out document training read too, bool[tokens]; None for a network that
    does not predict next tokens."""
    if not sources or not isinstance(trained.network, GPT):
        return None
    return repeated_in_training(sources, trained.sequences, config.ngram_tokens)


def _score_objective(trained: TrainedModel, sources: Sequence[EncodedSource], config: EvaluateConfig) -> Scores:
    """Score a BERT or a T5 by its training objective on held-out text."""
    network, tokenizer, row_format = trained.network, trained.tokenizer, trained.row_format
    assert row_format is not None, "sequences of BERT and T5 declare their format"
    if not isinstance(network, BERT):
        assert not isinstance(network, GPT), "held-out bits per byte are a GPT's objective"
        row_length = trained.rows.field("tokens").type.list_size
        return span_scores(network, tokenizer, sources, trained.code_lengths, row_format, row_length, config)
    scores = pseudo_scores(network, tokenizer, sources, config)
    if trained.sequences.rows("heldout_rows"):
        rows, spans = trained.sequences.table("heldout_rows"), trained.sequences.table("heldout_spans")
        masked_share = trained.description["train"]["masked_share"]
        scores.rows += pair_scores(network, rows, spans, trained.code_lengths, row_format, masked_share, config)
    return scores


def _score_benchmarks(
    trained: TrainedModel, decontaminated: Sequence[Artifact], config: EvaluateConfig, workspace: Workspace
) -> None:
    if not decontaminated[-1].rows("items"):
        return
    scorer = make_scorer(trained.network, trained.row_format)
    items = decontaminated[-1].table("items")
    leaks = [artifact.table("leaks") for artifact in decontaminated]
    for number, benchmark in enumerate(sorted(set(items.column("benchmark").to_pylist())), start=1):
        scores = functools.partial(
            benchmark_scores,
            scorer,
            trained.tokenizer,
            benchmark,
            items_of(items, benchmark),
            leak_states(leaks, benchmark),
            config,
            advance=lambda done, total: workspace.advance(done, total, "items"),
        )
        _write_scores(unit_name(number), workspace, scores)


def _write_scores(unit: str, workspace: Workspace, scores: Callable[[], Scores]) -> None:
    """Write the result of `scores` as one unit, unless an earlier build has written it."""
    if workspace.finished(unit) is not None:
        return
    found = scores()
    tables = {
        "scores": (found.rows, SCORES),
        "item_scores": (found.items, ITEM_SCORES),
        "gaps": (found.gaps, GAPS),
        "document_scores": (found.documents, DOCUMENT_SCORES),
    }
    with workspace.unit(unit) as writing:
        for name, (rows, schema) in tables.items():
            # The first unit writes all tables, so that a run without benchmarks has empty ones.
            if rows or name == "scores" or unit == unit_name(0):
                write_table(writing, name, pa.Table.from_pylist(rows, schema=schema), table_file_name(name, unit))


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Limit arithmetic to `count` threads within the block: another number changes the last bits of results."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _significant_gaps(workspace: Workspace) -> list[dict[str, Any]]:
    """Return the gaps between leaked and clean items that are significant."""
    files = [record.name for record in workspace.records() if record.table == "gaps"]
    return [row for name in files for row in read_table(workspace.file(name)).to_pylist() if row["beyond_chance"]]


def key_figures(scores: pa.Table) -> dict[str, float | None]:
    """Return the few numbers that a summary shows: those of held-out text, and `acc` or `exact` on all items by
    benchmark; of one with both, whose items are of two forms, `exact` under a key of its own."""
    chosen: dict[str, float | None] = {}
    for row in scores.to_pylist():
        if row["task"].startswith(HELDOUT) and row["metric"] in KEY_METRICS:
            name = row["task"] if row["metric"] == KEY_METRICS[0] else f"{row['task']}/{row['metric']}"
            chosen[name] = row["value"]
        elif row["metric"] in ("acc", "exact") and row["subset"] == "all":
            name = f"{row['task']}/{row['shots']}-shot"
            chosen[f"{name}/{row['metric']}" if name in chosen else name] = row["value"]
    return chosen
