"""Training steps beside others' on the same network, rows and first weights, and YaLM-100B's ladder rung by rung.

    python benchmarks/training.py --peers .peers --json .peers/training.json
    python benchmarks/training.py --peers .peers --device cuda --size gpt2-small --context 1024 --batch-rows 64
    python benchmarks/training.py --peers .peers --device cuda --size bert-base --context 512 --batch-rows 64
    python benchmarks/training.py --peers .peers --device cuda --size t5-base --context 512 --batch-rows 64

Contenders take turns, each in a process of its own. On a CPU the figure is tokens per second of processor time, all
threads together, which a busy machine disturbs least, times the threads; on a GPU it is wall time. The fastest of the
turns' median steps counts, compiling does not. All begin with the same bits and read the same rows, and their losses
must agree, or the table says where they part. Dropout is off but for the first rungs of the ladder, which is a GPT's.
`Bessemer` is its engine's step alone, `the whole trainer` all that a run does, of a GPT.
"""

import json
import os
import sys
import tempfile
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measuring import python_of
from rich.console import Console
from rich.table import Table
from trainers.setting import Setting, run_trainer

from flows.planning.machine_speed import preset_config
from model.checkpoint.weights import save_model
from model.config.network import BERTConfig, GPTConfig, NetworkConfig
from model.huggingface.decoders import GPT2
from model.huggingface.io import export_network
from model.huggingface.settings import Settings
from model.nn.factory import flops_per_token, make_network, parameter_count
from model.objectives.synthetic import random_batch

HERE = Path(__file__).parent
SMALL: dict[str, Any] = {"vocab_size": 8192, "layers": 4, "heads": 4, "width": 256}


def _gpt2(context: int, vocabulary: int, layers: int, heads: int, width: int) -> GPTConfig:
    sizes = {"n_positions": context, "vocab_size": vocabulary, "n_layer": layers, "n_head": heads, "n_embd": width}
    return GPT2.read(Settings(sizes))


SIZES: dict[str, Callable[[int], NetworkConfig]] = {
    # One more position than is predicted: the peer's loss shifts within the rows that it is given.
    "small": lambda context: _gpt2(context + 1, 8192, 4, 4, 256),
    "gpt2-small": lambda context: _gpt2(context + 1, 50_304, 12, 12, 768),
    "gpt2-medium": lambda context: _gpt2(context + 1, 50_304, 24, 16, 1024),
    "bert": lambda context: BERTConfig(context=context, **SMALL),
    "bert-base": lambda context: preset_config("bert-base").model_copy(update={"context": context}),
    "t5": lambda context: preset_config("t5-base").model_copy(
        update={"context": context, **SMALL, "head_size": 64, "ffn_width": 1024}
    ),
    "t5-base": lambda context: preset_config("t5-base").model_copy(update={"context": context}),
}
PEAK = {"cuda": {"bfloat16": 989e12, "float32": 67e12}}
"""FLOP/s of an H200 by its data sheet; of a CPU no share is given, since no measured peak is a bound."""
PATTERNS = 64
FIRST_LOSSES = 5
"""Steps over which losses of one type must agree; behind them the roundings of other kernels grow apart."""
AGREEMENT = {"float32": 1e-4, "bfloat16": 1e-2}


@dataclass(frozen=True)
class Contender:
    """A program, the name by which it is asked, and the type in which it multiplies."""

    label: str
    program: str
    name: str
    dtype: str
    peer: str | None = None
    dropout: float = 0.0


PLAIN, WHOLE = "trainers/plain.py", "trainers/whole.py"
CONTENDERS = [
    contender
    for dtype in ("float32", "bfloat16")
    for contender in (
        Contender("written by hand, eager", "trainers/plain.py", "nanogpt", dtype),
        Contender("by hand, compiled", "trainers/plain.py", "nanogpt_compiled", dtype),
        Contender("Hugging Face Trainer", "peers/transformers_trainer.py", "eager", dtype, "transformers"),
        Contender("Hugging Face, compiled", "peers/transformers_trainer.py", "compiled", dtype, "transformers"),
        Contender("Bessemer", "trainers/ours.py", "eager", dtype),
        Contender("Bessemer, compiled", "trainers/ours.py", "compiled", dtype),
        Contender("Bessemer, the whole trainer", WHOLE, "eager", dtype),
        Contender("... compiled", WHOLE, "compiled", dtype),
    )
]
RUNGS = [
    Contender("float32, all written out, dropout 0.1", PLAIN, "float32", "float32", dropout=0.1),
    Contender("matrices in bfloat16", PLAIN, "dtype", "bfloat16", dropout=0.1),
    Contender("optimizer in one kernel", PLAIN, "fused", "bfloat16", dropout=0.1),
    Contender("attention in one kernel", PLAIN, "attention", "bfloat16", dropout=0.1),
    Contender("no dropout", PLAIN, "no_dropout", "bfloat16"),
    Contender("compiled", PLAIN, "compile", "bfloat16"),
    Contender("Bessemer: logits in pieces, activation ranges", "trainers/ours.py", "eager", "bfloat16"),
    Contender("Bessemer, compiled", "trainers/ours.py", "compiled", "bfloat16"),
]
"""Each with what the rung before has. YaLM's authors state one gain of a rung, 80% for fetching weights ahead of ZeRO,
which one process cannot show, and more than twofold for all together."""


@dataclass(frozen=True)
class Course:
    """What all run over."""

    config: NetworkConfig
    row_tokens: int
    """Tokens of text that a row counts: of T5 those of the encoder's and of the decoder's side, without sentinels."""


def prepare(folder: Path, size: str, context: int, rows: int) -> Course:
    """Write first weights in both formats, and random rows that repeat a few patterns: there is something to learn."""
    config = SIZES[size](context)
    network = make_network(config).initialise(1)
    for name in ("ours", "transformers"):
        (folder / name).mkdir()
    described = {"architecture": config.architecture, "tokenizer_digest": "rows"}
    save_model(folder / "ours", config, network.state_dict(), described)
    ends = {"eos_token_id": 0, "bos_token_id": 0, "pad_token_id": 0, "decoder_start_token_id": 0}
    export_network(folder / "transformers", config, network.state_dict(), ends)
    drawn = random_batch(config.model_copy(update={"context": context}), PATTERNS)
    picked = torch.from_numpy(np.random.default_rng(1).integers(0, PATTERNS, size=rows))
    np.savez(folder / "rows.npz", **{name: values[picked].numpy() for name, values in vars(drawn.rows).items()})
    return Course(config, drawn.tokens // PATTERNS)


def run(contender: Contender, setting: Setting, peers: Path) -> dict[str, Any]:
    """Return what a contender's process reports."""
    python = Path(sys.executable) if contender.peer is None else python_of(peers, contender.peer)
    if python is None:
        raise SystemExit(f"there is no environment of {contender.peer} under {peers}; make it: make bench-train")
    given = Setting(**{**setting.__dict__, "dtype": contender.dtype, "dropout": contender.dropout})
    paths = [HERE.parent] if contender.peer is None else []
    return run_trainer(HERE / contender.program, [contender.name], given, python, paths)


def race(contenders: Sequence[Contender], setting: Setting, peers: Path, turns: int, console: Console) -> list[Any]:
    """Return the best of each contender's turns."""
    races: list[list[dict[str, Any]]] = [[] for _ in contenders]
    for turn in range(turns):
        for results, contender in zip(races, contenders, strict=True):
            console.print(f"[dim]turn {turn + 1} of {turns}: {contender.label}, {contender.dtype}[/]")
            results.append(run(contender, setting, peers))
    return [min(results, key=lambda one: one["seconds"]) for results in races]


def parity(results: Sequence[dict[str, Any]], dtype: str) -> str:
    """Return in words whether the first losses of all are those of the first."""
    first = np.array(results[0]["losses"][:FIRST_LOSSES])
    apart = max(float(np.abs(np.array(one["losses"][:FIRST_LOSSES]) - first).max()) for one in results)
    verdict = "agree" if apart <= AGREEMENT[dtype] else "PART"
    return f"{dtype}: the first {FIRST_LOSSES} losses {verdict}, largest difference {apart:.1e} nats"


def asked(arguments: Sequence[str] | None = None) -> Namespace:
    """Parse the command line."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, default=Path(".peers"), help="where install.sh made the environments")
    parser.add_argument("--json", type=Path, help="write all figures there")
    parser.add_argument("--size", choices=SIZES, default="small", help="of the network")
    parser.add_argument("--context", type=int, default=256, help="predictions a row")
    parser.add_argument("--batch-rows", type=int, default=16, help="rows of a step")
    parser.add_argument("--warm", type=int, default=6, help="steps before the clock starts")
    parser.add_argument("--timed", type=int, default=10, help="steps on the clock")
    parser.add_argument("--turns", type=int, default=2, help="how often each contender runs")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="CPU threads")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    return parser.parse_args(arguments)


def main() -> None:
    """Run the race, and a GPT's ladder; print their tables."""
    options, console = asked(), Console(width=140)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        setting = Setting(
            name, options.batch_rows, options.warm, options.timed, "float32", options.device, options.threads
        )
        course = prepare(folder, options.size, options.context, setting.steps * setting.batch_rows)
        is_gpt = isinstance(course.config, GPTConfig)
        contenders = [one for one in CONTENDERS if is_gpt or one.program not in (PLAIN, WHOLE)]
        races = race(contenders, setting, options.peers, options.turns, console)
        ladder = race(RUNGS, setting, options.peers, options.turns, console) if is_gpt else []
    step_tokens = options.batch_rows * course.row_tokens
    share = options.threads if options.device == "cpu" else 1
    flops = flops_per_token(course.config)

    def rate(result: dict[str, Any]) -> float:
        return step_tokens / result["seconds"] * share

    console.print(
        f"\n{options.size}: {parameter_count(course.config) / 1e6:.1f}M parameters, {course.row_tokens} tokens of text"
        f" a row, {options.batch_rows} rows a step, {options.device}, {options.threads} threads"
    )
    table = Table("trainer", "type", "tokens/s", "MFU", "memory, MB", "beside HF", "beside by hand", box=None)
    for contender, result in zip(contenders, races, strict=True):
        of_type = {c.label: rate(r) for c, r in zip(contenders, races, strict=True) if c.dtype == contender.dtype}
        top = PEAK.get(options.device, {}).get(contender.dtype)
        by_hand = of_type.get("written by hand, eager")
        table.add_row(
            contender.label,
            contender.dtype,
            f"{rate(result):,.0f}",
            f"{rate(result) * flops / top:.0%}" if top else "",
            f"{result['peak_bytes'] / 1e6:,.0f}",
            f"{rate(result) / of_type['Hugging Face Trainer']:.2f}",
            f"{rate(result) / by_hand:.2f}" if by_hand else "",
        )
    console.print(table)
    for dtype in ("float32", "bfloat16"):
        console.print(parity([r for c, r in zip(contenders, races, strict=True) if c.dtype == dtype], dtype))
    if ladder:
        console.print(climbed(ladder, rate))
        console.print("YaLM-100B's authors: more than 2 for all their measures; 1.8 for fetching ZeRO's weights ahead")
    if options.json:
        measured = [{**c.__dict__, **r, "tokens_s": rate(r)} for c, r in zip(contenders, races, strict=True)]
        rungs = [{**c.__dict__, **r, "tokens_s": rate(r)} for c, r in zip(RUNGS, ladder, strict=False)]
        options.json.write_text(json.dumps({"setting": setting.__dict__, "race": measured, "ladder": rungs}, indent=1))


def climbed(ladder: Sequence[dict[str, Any]], rate: Callable[[dict[str, Any]], float]) -> Table:
    """Return the ladder's table."""
    table = Table("the ladder", "tokens/s", "beside the rung before", "beside the first", box=None)
    for number, (rung, result) in enumerate(zip(RUNGS, ladder, strict=True)):
        before = ladder[max(number - 1, 0)]
        table.add_row(
            rung.label,
            f"{rate(result):,.0f}",
            f"{rate(result) / rate(before):.2f}",
            f"{rate(result) / rate(ladder[0]):.2f}",
        )
    return table


if __name__ == "__main__":
    main()
