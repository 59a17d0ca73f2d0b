"""`bessemer model`: use, export, describe and promote trained models."""

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from flows.commands.common import (
    DEFAULT_ROOT,
    CommandGroup,
    Json,
    Root,
    Run,
    ended,
    of_home,
    print_found,
    print_run_header,
    shown_progress,
    utf8,
)

if TYPE_CHECKING:
    from rich.console import Console

    from flows.models.generate import FilledBlank, GeneratedText
    from tasks.artifacts.artifact import Artifact

model = typer.Typer(
    name="model",
    cls=CommandGroup,
    help="Trained models: generate text, evaluate, fine-tune, export, promote.",
    no_args_is_help=True,
)


Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="Run id or its beginning, `latest`, `current`, a model's folder (artifacts/train/ID), or a folder that"
        " `finetune` or `export` wrote.",
    ),
]


Licence = Annotated[
    str | None,
    typer.Option(
        "--licence",
        metavar="SPDX",
        help="Licence of the model, e.g. CC-BY-SA-4.0; refused if a source's licence does not allow it. Without it no"
        " licence is granted.",
    ),
]


DeviceOption = Annotated[
    Literal["cpu", "cuda"] | None,
    typer.Option(
        "--device", help="Where the model computes; by default where it was trained, if this machine has that device."
    ),
]


Temperature = Annotated[float, typer.Option(min=0.0, help="0 always takes the most likely token.")]

TopP = Annotated[
    float, typer.Option(min=0.0, max=1.0, help="Sample from the most likely tokens of this total probability.")
]

TopK = Annotated[int | None, typer.Option(min=1, help="Sample from this many of the most likely tokens.")]


@model.command()
def generate(
    model: Model,
    prompt: Annotated[
        list[str] | None,
        typer.Option(
            callback=utf8,
            help="Text to continue; T5 and BERT fill the blanks ___, [MASK] and <extra_id_0>. Repeatable.",
        ),
    ] = None,
    tokens: Annotated[
        int, typer.Option(min=1, help="Most tokens to write, or to write into each blank of a T5's prompt.")
    ] = 100,
    temperature: Temperature = 0.8,
    top_p: TopP = 0.95,
    top_k: TopK = None,
    samples: Annotated[int, typer.Option(min=1, max=1000, help="Texts to write from one seed.")] = 1,
    seed: Annotated[int, typer.Option(help="Same seed, same text.")] = 1,
    device: DeviceOption = None,
    root: Root = DEFAULT_ROOT,
    as_json: Json = False,
) -> None:
    """Generate text: a GPT continues a prompt, a T5 continues it or fills blanks, a BERT fills blanks.

    `bessemer model generate latest --prompt "Once upon a time"` continues a text. With a T5,
    `--prompt "Paris is the ___ of France and ___ of Texas."` writes a span into each blank. With a BERT each blank is
    one token, and its most likely fillings are listed. A fine-tuned T5 answers prompts with its task's prefix.
    """
    from flows.models.chat import say
    from flows.models.generate import continues_prompt, left_out, write_text, write_texts
    from flows.models.load import open_trained
    from model.inference.device import choose_device, inference_on
    from model.inference.generate import Sampling

    sampling = Sampling(temperature, top_p, top_k, seed)
    trained = open_trained(root, model)
    prompts = prompt or [""]
    for one in prompts:
        if sentence := left_out(trained, one):
            typer.echo(sentence, err=True)
    with inference_on(choose_device(device, trained.description), trained.description, trained.network):
        if len(prompts) * samples == 1 and not as_json:
            say(prompts[0] if continues_prompt(trained, prompts[0]) else "")
            written = write_text(trained, prompts[0], sampling, tokens=tokens, write=say)
            say("\n")
            _print_blanks(written.blanks)
            return
        found = write_texts(trained, prompts, sampling, tokens=tokens, samples=samples)

    def show(shown: "Console") -> None:
        for number, (one, texts) in enumerate(zip(prompts, found, strict=True), 1):
            for sample, text in enumerate(texts, 1):
                names = [*([str(number)] if len(prompts) > 1 else []), *([str(sample)] if samples > 1 else [])]
                say(f"[{'.'.join(names)}]\n{one if continues_prompt(trained, one) else ''}{text.text}\n")
                _print_blanks(text.blanks)

    objects = [_generated(*one) for one in zip(prompts, found, strict=True)]
    print_found(objects[0] if len(objects) == 1 else objects, as_json, show)


@model.command()
def chat(
    model: Model,
    web: Annotated[
        bool, typer.Option("--web", help="Serve a page on this machine instead, with probabilities.")
    ] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the page; 0 takes a free one.")] = 0,
    tokens: Annotated[int, typer.Option(min=1, max=4096, help="Most tokens of an answer.")] = 200,
    temperature: Temperature = 0.8,
    top_p: TopP = 0.95,
    top_k: TopK = None,
    seed: Annotated[int, typer.Option(help="Same seed and messages, same answers.")] = 1,
    device: DeviceOption = None,
    root: Root = DEFAULT_ROOT,
) -> None:
    """Converse with a GPT: one fine-tuned on conversations answers messages, any other continues what is typed.

    /reset forgets what was said, /quit ends, Ctrl-C ends an answer. `--web` prints the address of a page that shows how
    likely each token was, and what else it could have been; only this machine can open it.
    """
    from flows.models.chat import Chat, talk
    from flows.models.load import open_trained
    from model.inference.device import choose_device
    from model.inference.generate import Sampling

    trained = open_trained(root, model)
    sampling = Sampling(temperature, top_p, top_k, seed)
    conversation = Chat(trained, choose_device(device, trained.description))
    if not web:
        talk(conversation, sampling, tokens)
        return
    from flows.models.chat_server import address_of, chat_server

    with chat_server(conversation, f"{model} | Bessemer", sampling, tokens, port) as server:
        typer.echo(f"{address_of(server)}\nOpen this address in a browser on this machine; Ctrl-C ends the server.")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            typer.echo("")


def _generated(prompt: str, texts: list["GeneratedText"]) -> dict[str, Any]:
    found = [{"text": one.text, **({"blanks": one.blanks} if one.blanks else {})} for one in texts]
    return {"prompt": prompt, **found[0], **({"samples": found} if len(found) > 1 else {})}


def _print_blanks(blanks: tuple["FilledBlank", ...]) -> None:
    """Print on stderr what else a BERT would write into each blank."""
    for number, blank in enumerate(blanks, 1):
        if "likeliest" in blank:
            others = ", ".join(f"{one['text']} {one['probability']:.2f}" for one in blank["likeliest"])
            typer.secho(f"blank {number}: {others}", dim=True, err=True)


@model.command("eval")
def evaluate(
    model: Model,
    tasks: Annotated[list[str], typer.Argument(metavar="TASK", help="Names of tasks, as their YAML files give them.")],
    folder: Annotated[
        Path,
        typer.Option(callback=of_home, help="Folder with the YAML files of the tasks; their data are local files."),
    ],
    shots: Annotated[int | None, typer.Option(min=0, help="Examples before each item, instead of the task's.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Items of each task.")] = None,
    device: DeviceOption = None,
    root: Root = DEFAULT_ROOT,
    as_json: Json = False,
) -> None:
    """Score a GPT with lm-evaluation-harness (the extra `lmeval`) on the tasks of a folder, offline."""
    import importlib.util

    from model.errors import RecipeError

    if importlib.util.find_spec("lm_eval") is None:
        raise RecipeError(
            "model eval: the package lm-eval is not installed. Install the extra `lmeval`, or use the scores of the"
            " evaluate stage, which need no other package."
        )
    from flows.models.harness import harness_scores
    from flows.models.load import open_trained
    from model.inference.device import choose_device, inference_on

    trained = open_trained(root, model)
    with inference_on(choose_device(device, trained.description), trained.description, trained.network):
        found = harness_scores(trained, folder, tasks, shots=shots, limit=limit)
    lines = [
        f"{task}  {metric.partition(',')[0]}  {value:.4f}"
        for task, figures in found.items()
        for metric, value in figures.items()
        if isinstance(value, float)
    ]
    print_found(found, as_json, lambda _: typer.echo("\n".join(lines)))


@model.command()
def finetune(
    model: Model,
    task: Annotated[
        Path,
        typer.Option(
            "--task", callback=of_home, metavar="FILE.toml", help="The task file, as above; see docs/using_models.md."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "--output",
            "-o",
            callback=of_home,
            help="Folder for the result; ROOT/finetuned/FILE by default. Never overwritten.",
        ),
    ] = None,
    root: Root = DEFAULT_ROOT,
    as_json: Json = False,
) -> None:
    """Fine-tune a trained BERT, T5 or GPT on a task with examples.

    A BERT learns one task: a label or number for a text or a pair, a label for each word, or an answer in a passage. A
    T5 learns several at once, as text. A GPT learns the answers of conversations. The shortest task file:

    \b
    [[tasks]]
    name = "mood"
    kind = "classification"    # regression, tagging, span; a T5 also text
    train = "train.jsonl"      # JSON lines, beside this file
    test = "test.jsonl"        # scored once, at the end; optional
    fields = ["sentence"]      # the input, in this order
    answer = "label"           # the target

    For a GPT it is `kind = "chat"` without fields and answer; a line is {"messages": [{"role": "user", "content":
    "Hi"}, {"role": "assistant", "content": "Hello."}]}. A table [lora] above the tasks trains low-rank adapters.

    A tenth of the training examples is held out and selects the epoch; test items select nothing. The same model, files
    and settings give the same bytes; a stopped run resumes at its seed. Keys above the tasks: epochs, seeds,
    learning_rate, batch_size, dropout, max_length and others.
    """
    from flows.models.finetune import FOLDER, check_result_folder, prepare_finetune, write_finetuned
    from model.finetune.output import format_result
    from tasks.artifacts.results import FinetuneResult
    from tasks.models.finetune import build_finetune

    source, config = prepare_finetune(root, model, task)
    folder = out or root / FOLDER / task.stem
    check_result_folder(folder, source, config)
    words = {"model": model, "task": task.resolve()}
    artifact = _made("finetune", root, words, (source, config), partial(build_finetune, on_log=_say_line))
    if not write_finetuned(artifact, folder):
        _say_line(f"{folder} exists already, made from the same model, examples and settings; nothing to do")
    found = FinetuneResult.of(artifact.report).finetuned
    lines = [*format_result(found), f"written: {folder}"]
    print_found({"folder": str(folder), **found}, as_json, lambda _: print("\n".join(lines)))


def _say_line(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


def _made(
    stage: str, root: Path, words: dict[str, Any], inputs: tuple[Any, ...], build: Callable[..., "Artifact"]
) -> "Artifact":
    """Return the artifact of a stage of `tasks.models`: the one that exists, or what its Prefect flow makes.

    `build(context, *inputs)` builds it; `words` are those of the flow, from which it would prepare the same inputs.
    """
    from flows.commands.run import prefect_ready
    from tasks.artifacts.artifact import Artifact
    from tasks.artifacts.build import RunContext, WouldBuild

    try:
        return build(RunContext(root, run_id="", dry=True), *inputs)
    except WouldBuild:
        pass
    with shown_progress(as_json=True), prefect_ready(root):
        from flows.models import flow
        from flows.runs.context import given

        flows = {"finetune": flow.finetune, "export": flow.export}
        with given(flow.PREPARED, inputs):
            record = ended(lambda: flows[stage](root=root, **words))
    return Artifact.open(Path(record["stages"][-1]["path"]))


@model.command()
def predict(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Folder that `bessemer model finetune` wrote.")],
    records: Annotated[
        Path | None, typer.Argument(metavar="FILE.jsonl", help="Records with the fields that the task reads.")
    ] = None,
    field: Annotated[
        list[str] | None, typer.Option("--field", metavar="NAME=TEXT", help="A field of one record given here.")
    ] = None,
    task: Annotated[str | None, typer.Option(help="Which task, if the model learnt several.")] = None,
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="Add the probability of each label, as ANSWER_probabilities.")
    ] = False,
    root: Root = DEFAULT_ROOT,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON list instead of JSON lines.")] = False,
) -> None:
    """Answer records with a fine-tuned model: JSON lines in, the same lines with answers out.

    `bessemer model predict bessemer-data/finetuned/mood --field sentence="What a fine day"` answers one.
    """
    from flows.models.finetune import parse_fields, predict_records, read_records
    from model.errors import InputError

    if (records is None) == (not field):
        raise InputError("give a file of records, or the fields of one with --field NAME=TEXT")
    given = read_records(records) if records is not None else [parse_fields(field or [])]
    found, cut = predict_records(root, model, task, given, probabilities=probabilities)
    if cut:
        typer.echo(cut, err=True)
    lines = (f"{json.dumps(record, ensure_ascii=False)}\n" for record in found)
    print_found(found, as_json, lambda _: sys.stdout.writelines(lines))


@model.command()
def export(
    model: Model,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A new folder.")],
    licence: Licence = None,
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"],
        typer.Option(help="Type of the weights; 16 bits halve the files and round the weights."),
    ] = "float32",
    shard_size: Annotated[
        str, typer.Option(help="Largest file of weights; several files get an index, as in `transformers`.")
    ] = "5GB",
    root: Root = DEFAULT_ROOT,
    as_json: Json = False,
) -> None:
    """Export a trained model and its tokenizer for Hugging Face `transformers`, in float32 with the same logits.

    The default network becomes a Qwen3; another GPT a GPT-2, OPT, GPT-NeoX, Llama, Mistral, Qwen2 or OLMo 2, whichever
    has its options. If none has, the error names the options in the way and what to train instead. The model card is
    written as README.md; export.json names the model's artifact. A folder that holds the same export is left as it is.
    """
    from flows.models.export import check_target, prepare_export, write_export
    from flows.recipe.counts import parse_size
    from tasks.artifacts.results import ExportResult
    from tasks.models.export import ExportConfig, build_export

    config = ExportConfig(shard_bytes=parse_size(shard_size), dtype=dtype)
    prepared = prepare_export(root, model, licence, config)
    check_target(folder)
    words = {"model": model, "licence": licence or "", **config.model_dump()}
    artifact = _made("export", root, words, prepared, build_export)
    is_new = write_export(artifact, folder)
    found = ExportResult.of(artifact.report).exported
    name, tokenizer_class = found["class"], found["tokenizer_class"]
    for sentence in prepared[-1].left_out:
        typer.echo(f"left out: {sentence}", err=True)
    known = "" if is_new else " (exported before, unchanged)"
    sentence = f"{folder}{known}: load it with transformers.{name}.from_pretrained and {tokenizer_class}"
    values = {"folder": str(folder), "class": name, "tokenizer_class": tokenizer_class, "reused": not is_new}
    print_found(values, as_json, lambda _: typer.echo(sentence))


@model.command()
def card(
    run_id: Run = "latest",
    licence: Licence = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", callback=of_home, help="A file to write instead of printing.")
    ] = None,
    root: Root = DEFAULT_ROOT,
) -> None:
    """Print a run's model card in Hugging Face's format: data, mixture, duplicates, leaks, scores, energy, limits."""
    from flows.reports.model_card import model_card
    from flows.runs.lineage import need_stage, open_run, run_artifacts
    from model.files import write_atomically

    record = open_run(root, run_id, needs="train")
    need_stage(run_artifacts(record), "train")
    text = model_card(record, root, licence)
    if output is None:
        print_run_header(record)
        sys.stdout.write(text)  # not by `typer.echo`, which drops sequences
    else:
        write_atomically(output, text.encode())
        typer.echo(f"{output}: the card of run {record['run_id']}")


@model.command()
def profile(
    run_file: Annotated[Path, typer.Argument(metavar="RUN.JSON", help="The file that the trainer is started with.")],
    steps: Annotated[int, typer.Option(min=1, help="Steps to measure, plain and timed.")] = 5,
    trace: Annotated[
        Path | None,
        typer.Option(
            callback=of_home, metavar="FILE", help="Write the operations of a step too, for chrome://tracing."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure where the time of a training step goes. The training's folder is not changed.

    An unfinished training has its RUN.JSON at ROOT/work/IDENTITY/scratch/train/run.json.
    """
    from model.config.train import read_run
    from model.errors import InputError
    from model.profile.report import as_json as profile_as_json
    from model.profile.report import findings_of, table
    from model.profile.step import profile_step

    run = read_run(run_file)
    if trace is not None:
        try:
            # PyTorch only logs that it cannot write.
            trace.open("ab").close()
        except OSError as error:
            raise InputError(f"--trace {trace}: cannot be written ({error.strerror})") from error
    found = profile_step(run, steps, trace=trace)
    findings = findings_of(found)
    print_found(profile_as_json(found, findings), as_json, lambda shown: typer.echo(table(found, findings)))


@model.command()
def presets(as_json: Json = False) -> None:
    """List the published networks that `train.model.preset` names, and the cost of training each.

    Parameters are counted with the published vocabulary; a run's own may be smaller. Memory is that of weights,
    gradients and AdamW's moments, over all ranks, without activations.
    """
    from flows.planning.machine_speed import preset_costs
    from flows.reports.document import Table

    costs = list(preset_costs())
    rows = [
        (
            cost.name,
            cost.architecture,
            cost.parameters,
            f"{cost.training_bytes / 1e9:,.1f}",
            f"{cost.flops_a_token / 1e9:,.2f}",
        )
        for cost in costs
    ]
    columns = ("preset", "architecture", "parameters", "GB to train", "GFLOPs a token")
    table = Table(columns, rows, texts=("architecture",))
    print_found(costs, as_json, lambda shown: shown.print(table.rich()))


@model.command()
def promote(
    run_id: Run = "",
    undo: Annotated[bool, typer.Option("--undo", help="Undo the latest promotion.")] = False,
    because: Annotated[str, typer.Option("--because", metavar="WHY", help="Kept with the promotion.")] = "",
    root: Root = DEFAULT_ROOT,
    as_json: Json = False,
) -> None:
    """Make a run's model the current one, or undo the latest promotion.

    \b
    bessemer model promote 20261122T0200 --because "worse on code, which nobody reads"
    bessemer model promote --undo --because "it writes nonsense"

    Nothing is copied or deleted. The next nightly run and all commands that name `current` use it.
    """
    from flows.runs.lineage import open_run
    from flows.runs.model_registry import promote as make_current
    from flows.runs.model_registry import undo as undo_promotion
    from model.errors import RecipeError

    if undo == bool(run_id):
        raise RecipeError("model promote: name a run, or give --undo; not both")
    if undo:
        made = undo_promotion(root, because)
    else:
        made = make_current(root, open_run(root, run_id, needs="train"), because or "by hand")
    sentence = f"the current model is that of run {made.run_id} ({made.why})"
    print_found(made, as_json, lambda shown: shown.print(sentence, markup=False))


@model.command()
def current(
    history: Annotated[bool, typer.Option("--history", help="Every promotion, oldest first.")] = False,
    root: Root = DEFAULT_ROOT,
    as_json: Json = False,
) -> None:
    """Show which model is current, who promoted it, when and why.

    Commands accept `current` as a RUN; ROOT/current/model is its folder.
    """
    from flows.runs.model_registry import current_run, point_to_latest
    from flows.runs.model_registry import history as promotions

    current_run(root)
    point_to_latest(root)
    found = promotions(root)
    latest = found[-1]
    if history:
        from flows.nightly.terminal import table_of_promotions

        print_found(found, as_json, lambda shown: shown.print(table_of_promotions(found).rich()))
        return
    sentence = f"{latest.run_id}, promoted by {latest.who} on {latest.when}: {latest.why}"
    print_found(latest, as_json, lambda shown: shown.print(sentence, markup=False))
