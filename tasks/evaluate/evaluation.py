"""The evaluate stage from end to end: held-out text, the 5-gram on it, each benchmark, samples; one unit each."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch

from model.transformer import GPT
from model.weights import DESCRIPTION, WEIGHTS, load_gpt
from tasks.artifact import Artifact, read_table
from tasks.evaluate.benchmarks import benchmark_scores, items_of, leak_states
from tasks.evaluate.config import EvaluateConfig
from tasks.evaluate.heldout import heldout_scores, heldout_texts
from tasks.evaluate.ngram_baseline import ngram_scores
from tasks.evaluate.samples import heldout_prompts, write_samples
from tasks.parts import unit_name
from tasks.report import StageReport
from tasks.schema import SCORES
from tasks.tokenizer import Tokenizer
from tasks.workspace import Workspace, table_file_name

MOST_LOGITS = 1 << 25
"""Logits in memory at once, 128 MiB in float32."""
NGRAM_UNIT, SAMPLES_UNIT = "5gram", "samples"


def evaluate_model(
    model: Artifact,
    vocab: Artifact,
    sequences: Artifact,
    decontaminated: Artifact,
    config: EvaluateConfig,
    workspace: Workspace,
) -> StageReport:
    """Write SCORES and the samples table.

    Raises InputError when the model was trained with another tokenizer.
    """
    tokenizer = Tokenizer.open(vocab)
    network = load_gpt(_checked_folder(model), tokenizer.digest)
    texts = heldout_texts(decontaminated, config.heldout_max_bytes, config.seed)
    batch_tokens = min(config.batch_tokens, max(network.config.context, MOST_LOGITS // tokenizer.vocab_size))
    with _threads(config.threads):
        _heldout_unit(network, tokenizer, texts, sequences, config, batch_tokens, workspace)
        _ngram_unit(tokenizer, texts, sequences, config, workspace)
        _benchmark_units(network, tokenizer, decontaminated, config, workspace)
        if workspace.finished(SAMPLES_UNIT) is None:
            with workspace.unit(SAMPLES_UNIT) as unit:
                prompts = config.prompts or heldout_prompts(texts)
                unit.write_table("samples", write_samples(network, tokenizer, prompts, config))
    report = StageReport()
    tables = [read_table(workspace.file(record.name)) for record in workspace.records() if record.table == "scores"]
    report.facts["headline"] = headline(pa.concat_tables(tables))
    return report


def _checked_folder(model: Artifact) -> Path:
    """The artifact's folder, once the bytes of weights and description agree with the manifest."""
    model.file(DESCRIPTION)
    return model.file(WEIGHTS).parent


def _heldout_unit(
    network: GPT,
    tokenizer: Tokenizer,
    texts: dict[str, list[str]],
    sequences: Artifact,
    config: EvaluateConfig,
    batch_tokens: int,
    workspace: Workspace,
) -> None:
    if workspace.finished(unit_name(0)) is not None:
        return
    rows = heldout_scores(
        network,
        tokenizer,
        texts,
        sequences.table("unigram"),
        stride=config.stride,
        batch_tokens=batch_tokens,
        rounds=config.bootstrap_rounds,
        seed=config.seed,
        advance=lambda done: workspace.advance(done, len(texts), "sources"),
    )
    _write_scores(rows, unit_name(0), workspace)


def _ngram_unit(
    tokenizer: Tokenizer,
    texts: dict[str, list[str]],
    sequences: Artifact,
    config: EvaluateConfig,
    workspace: Workspace,
) -> None:
    if workspace.finished(NGRAM_UNIT) is not None:
        return
    rows = ngram_scores(
        tokenizer,
        texts,
        sequences,
        most_tokens=config.ngram_tokens,
        rounds=config.bootstrap_rounds,
        seed=config.seed,
    )
    _write_scores(rows, NGRAM_UNIT, workspace)


def _benchmark_units(
    network: GPT,
    tokenizer: Tokenizer,
    decontaminated: Artifact,
    config: EvaluateConfig,
    workspace: Workspace,
) -> None:
    if not decontaminated.rows("items"):
        return
    items, leaks = decontaminated.table("items"), decontaminated.table("leaks")
    benchmarks = sorted(set(items.column("benchmark").to_pylist()))
    for number, benchmark in enumerate(benchmarks, start=1):
        if workspace.finished(unit_name(number)) is not None:
            continue
        mine = items_of(items, benchmark)
        total = min(len(mine), config.max_items) * len(config.shots)

        def advance(done: int, total: int = total) -> None:
            workspace.advance(done, total, "items")

        rows = benchmark_scores(
            network,
            tokenizer,
            benchmark,
            mine,
            leak_states(leaks, benchmark),
            config,
            advance=advance,
        )
        _write_scores(rows, unit_name(number), workspace)


def _write_scores(rows: list[dict[str, Any]], unit: str, workspace: Workspace) -> None:
    with workspace.unit(unit) as writing:
        table = pa.Table.from_pylist(rows, schema=SCORES)
        writing.write_table("scores", table, table_file_name("scores", unit))


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """The arithmetic uses `count` threads within the block: another number gives other last bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def headline(scores: pa.Table) -> dict[str, float | None]:
    """The few numbers that a summary shows: held-out bits per byte, and `acc` or `exact` on all items by benchmark."""
    chosen: dict[str, float | None] = {}
    for row in scores.to_pylist():
        if row["task"].startswith("heldout/") and row["metric"] == "bits_per_byte":
            chosen[row["task"]] = row["value"]
        elif row["metric"] in ("acc", "exact") and row["subset"] == "all":
            chosen[f"{row['task']}/{row['shots']}-shot"] = row["value"]
    return chosen
