"""With portable numerics a training ends with one set of bytes under any layout, killed and resumed under another one.

Layouts are instruction sets of products and of oneDNN, what a shell sets for PyTorch's, the dispatch of MKL for either
vendor (which a preloaded function decides), ranks, micro-batches and threads. Ranks are started as the supervisor does,
without it: it would not pass these variables on.
"""

import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from model.checkpoint.checkpoint import checkpoint_steps
from model.config.train import TrainConfig, TrainerRun
from model.digests import digest_bytes
from model.distributed.protocol import create_rank_directory
from model.environment import trainer_environment
from tests.prove_resume.test_exact_resume import bytes_of

PROJECT = Path(__file__).resolve().parents[2]
NAME = "portable layouts"
LAYOUTS, LAYOUTS_OF_RUN = 20, 5
"""Of each network, and one after the other of each run."""
STEPS, CHECKPOINT_STEPS = 30, 2
SEGMENT = 4
"""Least steps between two kills; the last part has more, so that no part before it comes to the end."""
WIDTH = 136
"""Products of 544 hidden units are cut into three blocks."""
ISAS = ("DEFAULT", "SSE41", "AVX2", "AVX512_CORE")
AVX2 = {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx,+avx2,+fma"}
"""What has products compiled for processors without AVX-512."""
PYTORCH, WEIGHTS = "2.13.0", "17ea9b4bc18697e3f5a4047453a5b52a"
"""Digest of the weights of five steps as an AMD EPYC without AVX-512 computed them, and whose kernels it used."""
VENDOR = "int mkl_serv_intel_cpu_true(void) { return 1; }\n"
"""What MKL asks for the vendor of the processor."""


@dataclass(frozen=True)
class Layout:
    """Where and how a part of a training is computed."""

    onednn: str = "DEFAULT"
    aten: str = "default"
    """What a shell sets, which a trainer does not get."""
    avx2: bool = False
    intel: bool = False
    ranks: int = 1
    micro_batch_rows: int = 8
    threads: int = 1

    def of(self, run: TrainerRun) -> TrainerRun:
        """Return the run in this layout."""
        named = {name: getattr(self, name) for name in ("ranks", "micro_batch_rows", "threads")}
        named["micro_batch_rows"] = min(self.micro_batch_rows, run.train.batch_rows // self.ranks)
        return run.model_copy(update={"train": TrainConfig.model_validate(run.train.model_dump() | named)})


def drawn(draw: random.Random, vendors: list[bool]) -> Layout:
    """Draw a layout."""
    return Layout(
        draw.choice(ISAS),
        draw.choice(["default", "avx2", "avx512"]),
        draw.choice([False, True]),
        draw.choice(vendors),
        draw.choice([1, 2, 4]),
        draw.choice([2, 4, 8]),
        draw.choice([1, 2]),
    )


@pytest.fixture(scope="session")
def intel(tmp_path_factory: pytest.TempPathFactory) -> Path | None:
    """A library that lets MKL take any processor for Intel's; None without a C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    folder = tmp_path_factory.mktemp("vendor")
    (folder / "vendor.c").write_text(VENDOR)
    library = folder / "vendor.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, folder / "vendor.c"], check=True)
    return library


@contextmanager
def ranks_of(run: TrainerRun, layout: Layout, intel: Path | None) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start the ranks, and kill those left."""
    run = layout.of(run)
    file = run.out.with_suffix(".json")
    file.write_text(run.model_dump_json())
    run.out.mkdir(exist_ok=True)
    folder = create_rank_directory(run.out)
    shell = {**os.environ, "ATEN_CPU_CAPABILITY": layout.aten}
    environment = trainer_environment(shell, run.train.given) | {"ONEDNN_MAX_CPU_ISA": layout.onednn}
    if layout.avx2:
        environment |= AVX2
    if layout.intel:
        environment["LD_PRELOAD"] = str(intel)
    words = [sys.executable, "-m", "model.train.rank", str(file)]
    with run.out.with_suffix(".err").open("ab") as errors:
        ranks = [
            subprocess.Popen(
                [*words, str(rank), str(folder), str(layout.ranks), "", ""],
                cwd=PROJECT,
                env=environment | {"LOCAL_RANK": str(rank)},
                stdout=subprocess.DEVNULL,
                stderr=errors,
            )
            for rank in range(layout.ranks)
        ]
    try:
        yield ranks
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


def newest(run: TrainerRun) -> int:
    return max(checkpoint_steps(run.out / "checkpoints"), default=0)


def trained_until(run: TrainerRun, layout: Layout, intel: Path | None, step: float) -> bool:
    """Train until there is a checkpoint after this step, and kill all ranks; return whether the end came first."""
    with ranks_of(run, layout, intel) as ranks:
        while any(rank.poll() is None for rank in ranks):
            if newest(run) >= step:
                return False
            assert not any(rank.poll() for rank in ranks), run.out.with_suffix(".err").read_text()[-3000:]
            time.sleep(0.005)
        assert not any(rank.returncode for rank in ranks), run.out.with_suffix(".err").read_text()[-3000:]
    return True


def portable_run(small_run: Callable[..., TrainerRun], architecture: str, name: str, steps: int) -> TrainerRun:
    """A run with dropout, whose last batch is one of five rows; of GPT with Muon, which multiplies matrices too."""
    settings = {"batch_rows": 8, "micro_batch_rows": 8, "checkpoint_steps": CHECKPOINT_STEPS, "numerics": "portable"}
    settings["optimizer"] = {"kind": "muon" if architecture == "gpt" else "adamw"}
    run = small_run(architecture, name, positions=8 * steps - 3, **settings)
    return run.model_copy(update={"model": run.model.model_copy(update={"width": WIDTH, "dropout": 0.1})})


def all_bytes(run: TrainerRun) -> dict[str, bytes]:
    return {**bytes_of(run), "model.json": (run.out / "result" / "model.json").read_bytes()}


def test_bytes_are_those_of_another_layout_and_of_another_machine(small_run: Callable, intel: Path | None) -> None:
    whole = portable_run(small_run, "gpt", "whole", steps=5)
    assert trained_until(whole, Layout(), intel, float("inf"))
    if metadata.version("torch").partition("+")[0] == PYTORCH:
        weights = load_file(whole.out / "result" / "model.safetensors")
        assert digest_bytes(b"".join(weights[name].tobytes() for name in sorted(weights))) == WEIGHTS
    run = portable_run(small_run, "gpt", "killed", steps=5)
    trained_until(run, Layout("AVX2", "avx512", avx2=True, ranks=2, micro_batch_rows=2), intel, 2)
    assert newest(run) >= 2
    assert trained_until(run, Layout(intel=intel is not None, threads=2), intel, float("inf"))
    expected, found = all_bytes(whole), all_bytes(run)
    assert [name for name in expected | found if expected.get(name) != found.get(name)] == []


@pytest.mark.prove_layouts
@pytest.mark.parametrize("architecture", ["gpt", "bert", "t5"])
def test_drawn_layouts_have_one_set_of_bytes(
    proof: Callable, small_run: Callable, intel: Path | None, architecture: str
) -> None:
    tally, expected = proof(NAME), {}
    for number in range(LAYOUTS // LAYOUTS_OF_RUN):
        draw, began = random.Random(f"{architecture} {number}"), time.monotonic()
        cases = [f"{architecture} {number}.{part}" for part in range(LAYOUTS_OF_RUN)]
        if tally.out_of_time or cases[0] in tally.done:
            continue
        if not expected:
            whole = portable_run(small_run, architecture, "whole", STEPS)
            assert trained_until(whole, Layout(), intel, float("inf"))
            expected = all_bytes(whole)
        run = portable_run(small_run, architecture, f"run-{number}", STEPS)
        layouts = [drawn(draw, [False] if intel is None else [False, True]) for _ in cases]
        for layout in layouts:
            is_last = layout is layouts[-1]
            ended = trained_until(run, layout, intel, float("inf") if is_last else newest(run) + SEGMENT)
            assert ended == is_last, "the last part alone comes to the end"
        found = all_bytes(run)
        missed = ", ".join(name for name in expected | found if expected.get(name) != found.get(name))
        for case, layout in zip(cases, layouts, strict=True):
            seconds = (time.monotonic() - began) / len(cases)
            tally.add(case, missed, seconds, kind=architecture, layout=str(layout))
    tally.verdict()


STEP = """
import sys, time
from contextlib import nullcontext
from pathlib import Path
import torch
from model.config.network import GPTConfig
from model.config.train import TrainConfig, TrainerRun
from model.distributed.process_group import SINGLE_PROCESS
from model.engines import make_engine
from model.engines.products import fastest_products
from model.engines.runtime import flush_denormals
from model.nn.factory import make_network
from model.objectives.synthetic import random_batch
from model.optim.schedules import StepSchedule

torch.set_num_threads(1)
model = GPTConfig(vocab_size=4096, context=256, layers=4, heads=4, width=224)
train = TrainConfig(numerics=sys.argv[1], batch_rows=8, micro_batch_rows=8, threads=1)
paths = {"sequences": (), "order": Path("order"), "out": Path("out")}
run = TrainerRun(**paths, pad=3, tokenizer_digest="tokenizer", model=model, train=train)
engine, batch = make_engine(run, make_network(model).initialise(1), SINGLE_PROCESS), random_batch(model, 8).rows
products = fastest_products() if train.numerics == "native" else nullcontext()
with flush_denormals(), products:
    for _ in sys.stdin:
        began = time.process_time()
        engine.step(batch, StepSchedule(1e-4))
        print(time.process_time() - began, flush=True)
"""


@pytest.mark.prove_layouts
@pytest.mark.parametrize("vendor", ["own", "intel"])
def test_a_step_takes_hardly_longer(vendor: str, intel: Path | None) -> None:
    """Processor time of one thread, the least of thirty steps of each, in turns; of this processor's vendor, and where
    MKL computes as on Intel's."""
    if vendor == "intel" and intel is None:
        pytest.skip("a C compiler makes what MKL asks for the vendor, and there is none")
    shown = {"LD_PRELOAD": str(intel)} if vendor == "intel" else {}
    with stepping("native", shown) as native, stepping("portable", shown) as portable:
        times = [(native(), portable()) for _ in range(30)]
    seconds = {name: min(of_one) for name, of_one in zip(("native", "portable"), zip(*times, strict=True), strict=True)}
    print(f"seconds of a step: {seconds}")
    assert seconds["portable"] <= 1.15 * seconds["native"]


@contextmanager
def stepping(numerics: str, more: dict[str, str]) -> Iterator[Callable[[], float]]:
    """Start a process, and return what has it make a step and returns the seconds."""
    given = TrainConfig.model_validate({"numerics": numerics}).given
    environment = trainer_environment(os.environ, given) | more
    words, pipe = [sys.executable, "-c", STEP, numerics], subprocess.PIPE
    with subprocess.Popen(words, cwd=PROJECT, env=environment, stdin=pipe, stdout=pipe, text=True) as process:
        asked, answered = process.stdin, process.stdout
        assert asked is not None
        assert answered is not None

        def step() -> float:
            print(file=asked, flush=True)
            return float(answered.readline())

        yield step
