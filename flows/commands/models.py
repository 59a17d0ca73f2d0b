"""Using a trained model."""

from typing import Annotated

import typer

from flows.commands.options import DEFAULT_ROOT, Json, Root
from flows.commands.output import print_json, told_errors


def generate(
    model: Annotated[
        str, typer.Argument(help="Run id or its beginning, `latest`, or a model's folder, artifacts/train/ID.")
    ],
    prompt: Annotated[str, typer.Option(help="Text to continue.")] = "",
    tokens: Annotated[int, typer.Option(min=1, help="Most tokens to write.")] = 100,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 always takes the likeliest token.")] = 0.8,
    top_p: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Keep the likeliest tokens of this total probability.")
    ] = 0.95,
    seed: Annotated[int, typer.Option(help="Same seed, same text.")] = 1,
    root: Root = DEFAULT_ROOT,
    as_json: Json = False,
) -> None:
    """Let a trained model continue a text."""
    with told_errors():
        from flows.generation import continue_text

        text = continue_text(root, model, prompt, tokens=tokens, temperature=temperature, top_p=top_p, seed=seed)
        if as_json:
            print_json({"prompt": prompt, "text": text})
        else:
            print(prompt + text)
