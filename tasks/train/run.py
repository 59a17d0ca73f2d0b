"""The train stage: write `run.json`, run the trainer, and move its results into the artifact."""

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

import pyarrow as pa
import pyarrow.compute as pc

from model.checkpoint.complete_marker import find_damage
from model.checkpoint.metrics import ADDED, final_rows, final_steps
from model.checkpoint.run_folder import (
    CHECKPOINTS,
    DESCRIPTION,
    EARLIER,
    HEARTBEAT,
    MICRO_BATCH,
    PREFIX,
    REPLAY,
    RESULT,
    RUN_FILE,
    checkpoint_folder,
    complete_markers,
    lasting_steps,
)
from model.checksummed_json import write_sealed
from model.config.network import NetworkConfig
from model.config.train import TrainConfig, TrainerRun, write_run
from model.distributed.messages import Message
from model.errors import IntegrityError, Paused, RecipeError
from model.files import link_or_copy
from model.guard.decisions import ATTEMPTS, effective_config, read_decisions
from model.launch.failures import FEWER_RANKS, LONGEST_PAUSE, RESTARTS_FILE
from model.launch.supervisor import DIAGNOSIS_SECONDS
from model.train.reproduction import LOCK, REPRODUCTION
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.report import StageReport
from tasks.artifacts.results import Rollback, TrainResult
from tasks.artifacts.tables.files import read_table
from tasks.artifacts.workspace import Workspace
from tasks.tokenizer.open import open_tokenizer
from tasks.train.base_model import make_starting_model
from tasks.train.config import TrainStageConfig
from tasks.train.launcher import OnLog, run_trainer

UNIT = "model"
TRAINING = "train"
"""The trainer's folder in the scratch folder."""
TRAINED_ANEW = "trained_anew"
"""A file that says that a replay was given up, since the guard rolled back in it."""
DETERMINISTIC_FILES = {
    "model.safetensors": "",
    "model.json": "",
    "steps.arrow": "steps",
    "metrics.arrow": "metrics",
    "validation.arrow": "validation",
}
CLOCK_FILES = {"perf.arrow": "perf", "events.arrow": "events", REPRODUCTION: "", LOCK: ""}
"""Files that record times and the machine, and belong to no digest."""


def train_model(
    sequences: Artifact,
    vocab: Artifact,
    config: TrainStageConfig,
    workspace: Workspace,
    *,
    on_log: OnLog,
    log_path: Path,
    base_digest: str | None = None,
    replay: Artifact | None = None,
) -> StageReport:
    """Train to the end of ORDER, continuing a killed build; `on_log` receives the trainer's messages, and `base_digest`
    is that of the base model in the run's identity. Checkpoints of the trained model `replay` are continued where its
    order began with the same rows.

    Raises RecipeError where the network's vocabulary is not the tokenizer's, Paused where the settings request a pause,
    and the errors of `launcher.run_trainer`.
    """
    finished = workspace.finished(UNIT)
    if finished is not None:
        return finished
    out = workspace.scratch(TRAINING).resolve()
    run = trainer_run(sequences, vocab, config, out, base_digest)
    write_run(out / RUN_FILE, run)
    if replay is not None and not (out / TRAINED_ANEW).exists():
        offer_checkpoints(replay, out)

    pauses: list[Paused] = []

    def listen(message: Message) -> None:
        if message["kind"] == "step":
            workspace.advance(message["step"], message["steps"], "steps")
        elif message["kind"] == "paused":
            pauses.append(Paused(message["step"], message["steps"], message["loss"]))
        on_log(message)

    def train() -> None:
        run_trainer(
            ["-m", "model.train", str(out / RUN_FILE), str(os.getpid())],
            given=config.given,
            log_path=log_path,
            heartbeat=out / HEARTBEAT,
            on_log=listen,
            hang_seconds=_supervisor_timeout(effective_config(run, read_decisions(out)).train),
            max_seconds=config.max_seconds,
            stop_seconds=config.stop_seconds,
        )
        if pauses:
            raise pauses[-1]

    train()
    if (out / REPLAY).exists() and begins_anew(_decisions(out / RESULT)):
        # The guard may roll back to a checkpoint that only a training from the first step has.
        for name in (RESULT, CHECKPOINTS, ATTEMPTS, REPLAY):
            shutil.rmtree(out / name, ignore_errors=True)
        (out / TRAINED_ANEW).touch()
        train()
    return _publish_result(out, config, workspace, on_log)


def _decisions(result: Path) -> list[Rollback]:
    return json.loads((result / DESCRIPTION).read_text())["decisions"]


def begins_anew(decisions: Sequence[Rollback]) -> bool:
    """Return whether a replay with these decisions is given up: the guard rolled back in it. One in which a person
    decided, too, stays: no training from the first step would have that decision."""
    return bool(decisions) and all(one["by"] == "guard" for one in decisions)


def offer_checkpoints(trained: Artifact, out: Path) -> None:
    """Put the checkpoints that stayed with a trained model, and the names of its data, into a training's folder."""
    parent = trained.manifest["parents"]["sequences"]
    sequences = Artifact.open(trained.path.parents[1] / parent["stage"] / parent["identity"])
    if not (out / REPLAY / EARLIER).exists():
        # A copy, where links are not possible, may have been broken off.
        shutil.rmtree(out / REPLAY, ignore_errors=True)
    for record in trained.records:
        folder, dot, name = record.name.partition(".")
        if dot and folder.startswith(PREFIX):
            target = out / REPLAY / folder
            target.mkdir(parents=True, exist_ok=True)
            if not (target / name).exists():
                link_or_copy(trained.file(record.name), target / name)
    if (out / REPLAY).exists():
        heldout = _validation_file(sequences)
        earlier = {
            "sequences": [str(path.resolve()) for path in sequences.files("sequences")],
            "order": str(sequences.files("order")[0].resolve()),
            "heldout": None if heldout is None else str(heldout),
        }
        write_sealed(out / REPLAY / EARLIER, earlier)


def trainer_run(
    sequences: Artifact, vocab: Artifact, config: TrainStageConfig, out: Path, base_digest: str | None = None
) -> TrainerRun:
    """Return the trainer's input: verified files, the network with the tokenizer's vocabulary, and the settings;
    `base_digest` is that of the base model in the run's identity."""
    tokenizer = open_tokenizer(vocab)
    return TrainerRun(
        sequences=tuple(path.resolve() for path in sequences.files("sequences")),
        order=sequences.files("order")[0].resolve(),
        out=out,
        pad=tokenizer.pad,
        eos=tokenizer.eos,
        tokenizer_digest=tokenizer.digest,
        model=_with_vocabulary(config.model, tokenizer.vocab_size),
        train=config.trainer_config(),
        base=make_starting_model(config.base_model, vocab, tokenizer, base_digest),
        heldout=_validation_file(sequences) if config.validation_steps != 0 else None,
    )


def _validation_file(sequences: Artifact) -> Path | None:
    found = sequences.files("heldout_rows")
    return found[0].resolve() if found and sequences.rows("heldout_rows") else None


def _with_vocabulary(model: NetworkConfig, vocab_size: int) -> NetworkConfig:
    left_out = type(model).model_fields["vocab_size"].default
    if model.vocab_size not in (vocab_size, left_out):
        raise RecipeError(
            f"train.model.vocab_size is {model.vocab_size}, and the vocabulary of this run has {vocab_size} tokens."
            f" Leave the key out to use the vocabulary's size."
        )
    return model.model_copy(update={"vocab_size": vocab_size})


def _supervisor_timeout(train: TrainConfig) -> float:
    """Return the seconds without a heartbeat after which the supervisor itself must have failed: longer than it may
    wait for ranks, for diagnostics, and before a restart."""
    return train.hang_seconds + train.start_seconds + DIAGNOSIS_SECONDS + LONGEST_PAUSE


def _publish_result(out: Path, config: TrainStageConfig, workspace: Workspace, on_log: OnLog) -> StageReport:
    """Publish the trained model, and the lasting checkpoints that are intact; report the others."""
    result = out / RESULT
    if reason := find_damage(result):
        raise IntegrityError(
            f"{result} is damaged ({reason}). Run again: training resumes from its newest complete checkpoint."
        )
    with workspace.unit(UNIT) as unit:
        tables: dict[str, pa.Table] = {}
        for name, table in {**DETERMINISTIC_FILES, **CLOCK_FILES}.items():
            if table in ADDED and not (result / name).exists():
                continue
            link_or_copy(result / name, unit.path(name))
            if table:
                tables[table] = read_table(unit.path(name))
            rows = tables[table].num_rows if table else 0
            unit.add_file(name, table=table, rows=rows, deterministic=name in DETERMINISTIC_FILES)
        steps, decisions = final_steps(tables["steps"]).num_rows, _decisions(result)
        for step in () if decisions else lasting_steps(config.lasting_checkpoints, steps):
            folder = checkpoint_folder(out / CHECKPOINTS, step)
            if reason := find_damage(folder) if folder.is_dir() else "it was not written":
                # As where the setting was another then; no further training would write it.
                missing = {"kind": "event", "event": "no_lasting_checkpoint", "step": step, "because": reason}
                on_log(cast(Message, missing))
                continue
            for path in sorted(folder.iterdir()):
                name = f"{folder.name}.{path.name}"
                link_or_copy(path, unit.path(name))
                unit.add_file(name, deterministic=False)
        unit.report.facts = _result(tables, decisions, config).facts()
    return unit.report


def _result(tables: dict[str, pa.Table], decisions: list[Rollback], config: TrainStageConfig) -> TrainResult:
    steps = final_steps(tables["steps"])
    metrics, perf = (final_rows(tables[name], steps) for name in ("metrics", "perf"))
    applied = pc.sum(steps.column("applied").cast(pa.int64())).as_py() or 0
    losses = metrics.column("loss").to_pylist()
    base_events = tables["events"].filter(pc.equal(tables["events"].column("kind"), "base_model"))
    return TrainResult(
        base_model=json.loads(base_events.column("detail")[0].as_py()) if base_events.num_rows else None,
        training={
            "steps": steps.num_rows,
            "skipped_steps": steps.num_rows - applied,
            "rollbacks": len(decisions),
            "tokens": metrics.column("tokens")[-1].as_py() if metrics.num_rows else 0,
            "first_loss": losses[0] if losses else None,
            "last_loss": losses[-1] if losses else None,
            "seconds": pc.sum(perf.column("wall_s")).as_py(),
            "tokens_s": pc.quantile(perf.column("tokens_s"), 0.5)[0].as_py() if perf.num_rows else None,
        },
        decisions=decisions or None,
        exact=applied == steps.num_rows
        and not decisions
        and config.deterministic
        and (config.numerics == "portable" or FEWER_RANKS not in tables["events"].column("kind").to_pylist()),
    )


def kept_files(scratch: Path) -> Iterator[tuple[Path, ...]]:
    """Yield the files of an unfinished training that another machine needs to finish it with the same bits: whether a
    replay was given up, then complete checkpoints, each whole or not at all, then decisions.

    The order matters: a rollback decision invalidates the checkpoints after it, which a reader with both knows; a later
    checkpoint without its decision would be taken for one of the first attempt. Checkpoints of a replay are removed
    before it counts as given up.
    """
    out = scratch / TRAINING
    if (out / TRAINED_ANEW).exists():
        yield (out / TRAINED_ANEW,)
    for marker in sorted(complete_markers(out)):
        yield tuple(sorted(path for path in marker.parent.iterdir() if path.is_file()))
    for attempt in sorted((out / ATTEMPTS).glob("[0-9]*")):
        yield tuple(sorted(path for path in attempt.iterdir() if path.is_file()))
    for name in (MICRO_BATCH, RESTARTS_FILE):
        if (out / name).exists():
            yield (out / name,)
