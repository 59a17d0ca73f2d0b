"""GPT, BERT and T5 through the flow on 20M tokens of real text at least, natively and by DeepSpeed's ZeRO 1 to 3.

    python benchmarks/architectures.py --root FOLDER [--data DATA] [--only gpt/native,bert/zero-3] [--budget 30M]

`make prove-architectures` does this; it takes hours on two cores. Whatever was done under FOLDER is not done again, and
a training that was stopped goes on from its checkpoint. Each model is exported and its logits compared with those of
`transformers`. What each kind must reach is in its line of the table:

- a GPT fewer bits per byte of held-out text than a Kneser-Ney 5-gram of all that it read;
- a BERT 80% of held-out sentence pairs, and twice the share of hidden tokens that the most frequent one would be;
- a T5 one nat a token of held-out spans under the frequencies of tokens.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from flows.models.load import open_trained
from flows.runs.record import list_runs
from model.nn.bert import BERT
from model.nn.gpt import GPT
from model.objectives.synthetic import random_batch
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import RunContext
from tasks.artifacts.results import ExportResult
from tasks.models.export import ExportConfig, build_export

HERE = Path(__file__).parent
RECIPE = HERE / "architectures.toml"
NSP_GOAL, MASKED_GOAL, NATS_GOAL = 0.8, 2.0, 1.0
LOGITS_AGREE = 1e-4
Scores = Mapping[str, float]


def gpt_verdict(scores: Scores) -> tuple[bool, str]:
    """Return whether a GPT takes fewer bits a byte than the 5-gram, and the figures in words."""
    ours, theirs = scores["bits_per_byte"], scores["5gram_bits_per_byte"]
    return ours < theirs, f"{ours:.3f} bits a byte, 5-gram {theirs:.3f}"


def bert_verdict(scores: Scores) -> tuple[bool, str]:
    """Return whether a BERT reaches NSP_GOAL and MASKED_GOAL times the most frequent token, and figures in words."""
    pairs, majority = scores["next_accuracy"], scores["majority_next_accuracy"]
    hidden, frequent = scores["masked_accuracy"], scores["frequent_token_accuracy"]
    reached = pairs >= NSP_GOAL and hidden >= MASKED_GOAL * frequent
    return reached, f"pairs {pairs:.1%} (majority {majority:.1%}), hidden {hidden:.1%} (most frequent {frequent:.1%})"


def t5_verdict(scores: Scores) -> tuple[bool, str]:
    """Return whether a T5 beats the frequencies of tokens by NATS_GOAL, and the figures in words."""
    ours, theirs = scores["text_target_nats_per_token"], scores["unigram_text_target_nats_per_token"]
    return theirs - ours >= NATS_GOAL, f"{ours:.2f} nats a token of spans, by frequency {theirs:.2f}"


@dataclass(frozen=True)
class Kind:
    """An architecture at a size that a core trains within half an hour, and what it must reach."""

    settings: tuple[str, ...]
    verdict: Callable[[Scores], tuple[bool, str]]
    tokens: str = "20M"


KINDS = {
    "gpt": Kind(
        (
            "train.model.architecture=gpt",
            "train.model.width=192",
            "train.model.heads=3",
        ),
        gpt_verdict,
    ),
    # Pieces of whole words say more of what a pair of short passages is about.
    "bert": Kind(
        (
            "vocab.vocab_size=8192",
            "train.model.architecture=bert",
            "train.model.width=192",
            "train.model.heads=3",
            "train.model.context=128",
            "train.batch_rows=32",
            "train.micro_batch_rows=32",
            "train.schedule.peak_lr=1e-3",
        ),
        bert_verdict,
    ),
    "t5": Kind(("train.model.architecture=t5", "train.model.width=128", "train.model.heads=2"), t5_verdict, "24M"),
}
ZERO = "train.engine=deepspeed", "train.ranks=2"
ENGINES = {"native": (), **{f"zero-{stage}": (*ZERO, f"train.zero_stage={stage}") for stage in (1, 2, 3)}}
CELLS = [f"{kind}/{engine}" for engine in ENGINES for kind in KINDS]


def settings_of(cell: str, options: Namespace) -> list[str]:
    """Return the options of `bessemer run` for a cell."""
    kind, _, engine = cell.partition("/")
    said = (
        f"variables.data={options.data}",
        f"budget_tokens={options.budget or KINDS[kind].tokens}",
        *KINDS[kind].settings,
        *ENGINES[engine],
    )
    return [word for setting in (*said, *options.set) for word in ("--set", setting)]


def run_cell(cell: str, options: Namespace) -> dict[str, Any]:
    """Run the pipeline (other cells may run beside it), export the model, and return its figures."""
    command = [sys.executable, "-m", "flows.cli", "run", RECIPE, "--root", options.root, *settings_of(cell, options)]
    options.root.mkdir(parents=True, exist_ok=True)
    log = options.root / f"{cell.replace('/', '-')}.log"
    with log.open("w") as output:
        done = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, check=False, cwd=HERE.parent)
    if done.returncode:
        raise SystemExit(f"{cell} ended with {done.returncode}; the last words of {log}:\n{log.read_text()[-2000:]}")
    # A run that found all stages built names the earlier one that built them.
    run_id = re.findall(r"run (\d{8}T\d{6}Z-[0-9a-f]{6})\b", log.read_text())[0]
    record = next(run for run in list_runs(options.root) if run["run_id"] == run_id)
    stages = {entry["stage"]: Artifact.open(Path(entry["path"])) for entry in record["stages"] if "path" in entry}
    rows = stages["evaluate"].table("scores").to_pylist()
    scores = {row["metric"]: row["value"] for row in rows if row["task"] == "heldout/all" and row["value"] is not None}
    training = stages["train"].report.facts["training"]
    reached, words = KINDS[cell.partition("/")[0]].verdict(scores)
    return {
        "cell": cell,
        "reached": reached,
        "words": words,
        "tokens": training["tokens"],
        "tokens_s": training["tokens_s"],
        "minutes": training["seconds"] / 60,
        "loss": training["last_loss"],
        "logits": exported_difference(options.root, record["run_id"]),
        "scores": scores,
    }


@torch.inference_mode()
def exported_difference(root: Path, run_id: str) -> float:
    """Return the largest difference between our logits and those of the exported model in `transformers`."""
    import transformers

    from flows.models.export import prepare_export, write_export

    trained = open_trained(root, run_id)
    network = trained.network
    batch = random_batch(network.config, 2).rows
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "exported"
        prepared = prepare_export(root, run_id, licence=None, config=ExportConfig())
        artifact = build_export(RunContext(root, run_id), *prepared)
        write_export(artifact, folder)
        loaded: Any = getattr(transformers, ExportResult.of(artifact.report).exported["class"])
        theirs: Any = loaded.from_pretrained(folder, dtype=torch.float32).eval()
        if isinstance(network, GPT):
            ours, found = network(batch.tokens_BL[:, :-1]), theirs(batch.tokens_BL[:, :-1]).logits
        elif isinstance(network, BERT):
            ids, types, is_token = batch.inputs_BT, batch.token_types_BT, batch.is_token_BT
            everywhere = torch.arange(network.config.context).expand(2, -1)
            ours = network.masked_logits(network.hidden(ids, types, is_token), everywhere)
            found = theirs(input_ids=ids, token_type_ids=types, attention_mask=is_token).prediction_logits
        else:
            encoded = network.encode(batch.inputs_BT, batch.is_token_BT)
            ours = network.logits(network.decode(batch.decoder_inputs_BU, encoded, batch.is_token_BT))
            found = theirs(
                input_ids=batch.inputs_BT,
                attention_mask=batch.is_token_BT.long(),
                decoder_input_ids=batch.decoder_inputs_BU,
            ).logits
        return float((ours - found).abs().max())


def asked() -> Namespace:
    """Parse the command line."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, required=True, help="folder of the artifacts")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder of the corpora")
    parser.add_argument("--only", default=",".join(CELLS), help="cells, by commas")
    parser.add_argument("--budget", help="tokens that each reads, in place of 20M and a T5's 24M")
    parser.add_argument(
        "--set", action="append", default=[], help="a setting for all cells, as `bessemer run` takes it"
    )
    parser.add_argument("--json", type=Path, help="write all figures there")
    options = parser.parse_args()
    options.root, options.data = options.root.resolve(), options.data.resolve()
    return options


def main() -> None:
    """Run the cells and print their table."""
    options, console = asked(), Console(width=140)
    table = Table("cell", "tokens", "tokens/s", "minutes", "held out", "logits differ by", "", box=None)
    results: list[dict[str, Any]] = []
    for cell in options.only.split(","):
        console.print(f"[dim]{cell}[/]")
        result = run_cell(cell, options)
        results.append(result)
        fine = result["reached"] and result["logits"] <= LOGITS_AGREE
        table.add_row(
            cell,
            f"{result['tokens']:,}",
            f"{result['tokens_s']:,.0f}",
            f"{result['minutes']:.0f}",
            result["words"],
            f"{result['logits']:.0e}",
            "reached" if fine else "[red]MISSED[/]",
        )
        if options.json:
            options.json.write_text(json.dumps(results, indent=1))
    console.print(table)
    missed = [one["cell"] for one in results if not one["reached"] or one["logits"] > LOGITS_AGREE]
    if missed:
        raise SystemExit(f"missed: {', '.join(missed)}")


if __name__ == "__main__":
    os.environ["HF_HUB_OFFLINE"] = "1"
    main()
