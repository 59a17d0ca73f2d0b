"""Using a trained model."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from flows.commands.options import DEFAULT_ROOT, Json, Root
from flows.commands.output import print_json, told_errors

Model = Annotated[
    str,
    typer.Argument(
        help="Run id or its beginning, `latest`, `current`, a model's folder (artifacts/train/ID), or one that"
        " `finetune` or `export` wrote."
    ),
]


def generate(
    model: Model,
    prompt: Annotated[
        str, typer.Option(help="Text to continue; ___, [MASK] or <extra_id_0> is a hole that T5 and BERT fill.")
    ] = "",
    tokens: Annotated[int, typer.Option(min=1, help="Most tokens to write, in each hole of a T5's prompt.")] = 100,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 always takes the likeliest token.")] = 0.8,
    top_p: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Keep the likeliest tokens of this total probability.")
    ] = 0.95,
    top_k: Annotated[int | None, typer.Option(min=1, help="Keep this many of the likeliest tokens.")] = None,
    samples: Annotated[int, typer.Option(min=1, max=1000, help="Texts to write from the one seed.")] = 1,
    seed: Annotated[int, typer.Option(help="Same seed, same text.")] = 1,
    root: Root = DEFAULT_ROOT,
    as_json: Json = False,
) -> None:
    """Let a trained model write: a GPT goes on, a T5 fills holes or goes on, a BERT fills holes.

    `bessemer generate latest --prompt "Once upon a time"` continues a text. With a T5,
    `--prompt "Paris is the ___ of France and ___ of Texas."` writes a span into each hole; with a BERT each hole is one
    token, and its likeliest fillings are told. A fine-tuned T5 answers what its task's prefix asks.
    """
    with told_errors():
        from flows.generation import goes_on, write_text
        from flows.trained import open_trained
        from model.sampling import Sampling

        sampling = Sampling(temperature, top_p, top_k, seed)
        trained = open_trained(root, model)
        tell = _say_nothing if as_json else _say
        written = []
        for sample in range(samples):
            tell(f"[{sample + 1}]\n" if samples > 1 else "")
            tell(prompt if goes_on(trained, prompt) else "")
            written.append(write_text(trained, prompt, sampling, tokens=tokens, sample=sample, tell=tell))
            tell("\n")
            if not as_json:
                _tell_holes(written[-1].holes)
        if as_json:
            texts = [{"text": one.text, **({"holes": one.holes} if one.holes else {})} for one in written]
            print_json({"prompt": prompt, **texts[0], **({"samples": texts} if samples > 1 else {})})


def harness(
    model: Model,
    tasks: Annotated[list[str], typer.Argument(help="Names of tasks, as their YAML files give them.")],
    folder: Annotated[Path, typer.Option(help="Folder with the YAML files of the tasks; their data are local files.")],
    shots: Annotated[int | None, typer.Option(min=0, help="Examples before each item, instead of the task's.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Items of each task.")] = None,
    root: Root = DEFAULT_ROOT,
    as_json: Json = False,
) -> None:
    """Score a GPT with EleutherAI's lm-evaluation-harness (the extra `lmeval`), on tasks of a folder, offline."""
    with told_errors():
        import importlib.util

        from model.errors import RecipeError

        if importlib.util.find_spec("lm_eval") is None:
            raise RecipeError(
                "harness: the package lm-eval is not installed. Install the extra `lmeval`, or take the scores of the"
                " evaluate stage, which need nothing more."
            )
        from flows.harness import harness_scores
        from flows.trained import open_trained

        found = harness_scores(open_trained(root, model), folder, tasks, shots=shots, limit=limit)
        if as_json:
            print_json(found)
            return
        for task, figures in found.items():
            for metric, value in figures.items():
                if isinstance(value, float):
                    typer.echo(f"{task}  {metric.partition(',')[0]}  {value:.4f}")


def _say(text: str) -> None:
    """Text on stdout as it comes."""
    sys.stdout.write(text)
    sys.stdout.flush()


def _say_nothing(_: str) -> None:
    """JSON is printed whole."""


def _tell_holes(holes: tuple[dict[str, Any], ...]) -> None:
    """What else a BERT would put into each hole, on stderr."""
    for number, hole in enumerate(holes, 1):
        if "likeliest" in hole:
            others = ", ".join(f"{one['text']} {one['probability']:.2f}" for one in hole["likeliest"])
            typer.secho(f"hole {number}: {others}", dim=True, err=True)
