"""Training on one GPU: its speed beside a loop written by hand, parity with the processor, exact resume, a profile.

    python benchmarks/gpu.py --json gpu.json
    python benchmarks/gpu.py --device cpu            # a rehearsal with small networks, in about a minute

It needs this repository, Python 3.11 or later, torch 2.11 or later, numpy, numba, pyarrow, safetensors, pydantic and
blake3, and no network. Speeds are medians of ten steps in a process of their own, after ten that are not timed, in wall
time: all tokens of a step over its seconds. MFU counts the FLOPs of forward and backward products over the data sheet's
peak (PaLM, appendix B). A step alone is timed without deterministic kernels, as the loop by hand; parity and resume are
of uncompiled float32. Ends with 1 where a trainer, parity or resume fails; speeds are shown only.
"""

import json
import sys
import tempfile
import time
import warnings
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE / "trainers")]

try:
    import numpy as np
    import torch
    from setting import Setting, run_trainer

    from model.checkpoint.run_folder import RESULT, WEIGHTS
    from model.checkpoint.weights import save_model
    from model.config.fields import Dtype
    from model.config.network import NetworkConfig, read_network_config
    from model.config.presets import PRESETS
    from model.config.train import TrainConfig
    from model.engines.runtime import peak_flops
    from model.nn.factory import flops_per_token, make_network, parameter_count
    from model.objectives.synthetic import random_batch
except ModuleNotFoundError as missing:
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    raise SystemExit(
        f"gpu.py needs the package {missing.name}. Install it; or on a machine of the same system with a network run\n"
        f"    pip download --python-version {python} --only-binary :all: -d wheels {missing.name}\n"
        f"and here\n    pip install --no-index --find-links wheels {missing.name}"
    ) from missing

OURS, PLAIN, WHOLE = "trainers/ours.py", "trainers/plain.py", "trainers/whole.py"
EAGER = {"nanogpt_compiled": "nanogpt", "compiled": "eager"}
PATTERNS = 64
"""Different rows; there is something to learn."""
PARITY_STEPS = 5
PARITY = 2e-4
"""Nats by which float32 losses of five steps may differ from the processor's: other kernels sum in other orders."""
SMALL: dict[str, Any] = {"vocab_size": 2048, "layers": 2, "heads": 4, "width": 128}


@dataclass(frozen=True)
class Size:
    """A network, its rows, and the tokens a second that an H200 should reach."""

    preset: str
    context: int
    batch_rows: int
    goal: int

    def config(self, small: bool) -> NetworkConfig:
        """Return the published network, or one of its kind that a processor trains in a second."""
        preset = PRESETS[self.preset]
        changes = {"vocab_size": -(-preset.vocab_size // 64) * 64, "context": self.context}
        if small:
            changes = {**SMALL, "context": 64}
            changes |= {name: 256 for name in ("ffn_width",) if name in preset.values}
            changes |= {name: 32 for name in ("head_size",) if name in preset.values}
        return read_network_config({**preset.values, **changes})


SIZES = (
    Size("gpt2-small", 1024, 64, 520_000),
    Size("bert-base", 512, 128, 670_000),
    Size("t5-base", 512, 64, 500_000),
)


@dataclass(frozen=True)
class Speed:
    """A line of the table of speeds."""

    network: str
    trainer: str
    dtype: str
    tokens_s: float
    mfu: float | None
    peak_gb: float
    losses: Sequence[float]


@dataclass(frozen=True)
class Course:
    """First weights and rows of a network in a folder."""

    name: str
    folder: Path
    config: NetworkConfig
    row_tokens: int
    batch_rows: int


def main() -> int:
    """Print the tables."""
    options = asked()
    rehearses = options.device == "cpu"
    if not rehearses and not torch.cuda.is_available():
        raise SystemExit("torch finds no CUDA device; `--device cpu` rehearses the same on the processor")
    device = "the processor, a rehearsal with small networks" if rehearses else torch.cuda.get_device_name()
    print(f"torch {torch.__version__}, {device}\n")
    with tempfile.TemporaryDirectory() as scratch:
        sizes = {size.preset: size for size in SIZES}
        if options.only:
            sizes = {options.only: sizes[options.only]}
        courses = [prepare(Path(scratch) / name, name, size, rehearses) for name, size in sizes.items()]
        failed: list[str] = []
        speeds = list(race(courses, options, failed))
        for course in courses:
            print_speeds(course, [one for one in speeds if one.network == course.name], sizes[course.name].goal)
        small = [prepare(Path(scratch) / f"{name} small", name, size, True) for name, size in sizes.items()]
        apart = {} if rehearses else {course.name: difference(course) for course in small}
        print_parity(apart)
        gpt = prepare(Path(scratch) / "resumed", SIZES[0].preset, SIZES[0], True)
        resumes = is_resume_exact(gpt, options.device, Path(scratch))
        print(f"stopped in the middle and resumed: {'the same bits' if resumes else 'OTHER BITS'}\n")
        for course in courses:
            print_profile(course, options.device)
    if options.json:
        found = {"device": device, "torch": torch.__version__, "parity": apart, "resumes": resumes, "failed": failed}
        options.json.write_text(json.dumps({**found, "speeds": [asdict(one) for one in speeds]}, indent=1))
    return int(bool(failed) or not resumes or any(one > PARITY for one in apart.values()))


def asked(arguments: Sequence[str] | None = None) -> Namespace:
    """Return the options of the command line."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--json", type=Path, help="write all figures there")
    parser.add_argument("--only", help="a network alone, such as gpt2-small", choices=[size.preset for size in SIZES])
    return parser.parse_args(arguments)


def prepare(folder: Path, name: str, size: Size, small: bool) -> Course:
    """Write first weights, and rows that repeat a few random patterns."""
    config, batch_rows = size.config(small), 8 if small else size.batch_rows
    (folder / "ours").mkdir(parents=True)
    described = {"architecture": config.architecture, "tokenizer_digest": "rows"}
    save_model(folder / "ours", config, make_network(config).initialise(1).state_dict(), described)
    drawn = random_batch(config, PATTERNS)
    picked = torch.from_numpy(np.random.default_rng(1).integers(0, PATTERNS, size=20 * batch_rows))
    np.savez(folder / "rows.npz", **{name: values[picked].numpy() for name, values in vars(drawn.rows).items()})
    return Course(name, folder, config, drawn.tokens // PATTERNS, batch_rows)


def race(courses: Sequence[Course], options: Namespace, failed: list[str]) -> Iterator[Speed]:
    """Run every trainer over every network, one after the other; append those that end with an error to `failed`."""
    for course in courses:
        is_gpt = course.config.architecture == "gpt"
        programs = [
            *([("by hand, compiled", PLAIN, "nanogpt_compiled", "bfloat16")] if is_gpt else []),
            *([("Bessemer's step", OURS, "eager", "bfloat16")] if options.device == "cuda" else []),
            ("Bessemer's step, compiled", OURS, "compiled", "bfloat16"),
            *([("Bessemer's trainer, compiled", WHOLE, "compiled", "bfloat16")] if is_gpt else []),
            *([("the same, not deterministic", WHOLE, "compiled_fast", "bfloat16")] if is_gpt else []),
            ("Bessemer's step, compiled", OURS, "compiled", "float32"),
        ]
        if options.device == "cpu":
            # Compilation for a processor takes longer than the rehearsal.
            programs = [(t.replace("compiled", "eager"), p, EAGER[n], d) for t, p, n, d in programs if n in EAGER]
        for trainer, program, name, dtype in programs:
            setting = setting_of(course, options.device, dtype, 6 if options.device == "cpu" else 20)
            try:
                result = run(program, [name], setting)
            except SystemExit as error:
                failed.append(f"{course.name}, {trainer}, {dtype}")
                print(f"{failed[-1]}: FAILED. {error}\n")
                continue
            tokens_s = course.row_tokens * course.batch_rows / result["seconds"]
            train = TrainConfig(device=options.device, dtype=cast(Dtype, dtype))
            peak = peak_flops(train, torch.device(options.device))
            mfu = None if peak is None else tokens_s * flops_per_token(course.config) / peak
            yield Speed(course.name, trainer, dtype, tokens_s, mfu, result["peak_bytes"] / 1e9, result["losses"])


def setting_of(course: Course, device: str, dtype: str, steps: int = 20) -> Setting:
    """Return a race over the rows of a network."""
    warm = steps // 2
    return Setting(str(course.folder), course.batch_rows, warm, steps - warm, dtype, device, torch.get_num_threads())


def run(program: str, words: Sequence[str], setting: Setting) -> dict[str, Any]:
    """Return what a trainer's process reports."""
    return run_trainer(HERE / program, words, setting, paths=[HERE.parent])


def print_speeds(course: Course, speeds: Sequence[Speed], goal: int) -> None:
    """Print a network's table; the last column divides by the first line."""
    print(
        f"{course.name}: {parameter_count(course.config) / 1e6:.1f}M parameters, {course.batch_rows} rows of "
        f"{course.row_tokens} tokens; goal on an H200: {goal:,} tokens/s"
    )
    print(f"  {'trainer':30} {'type':9} {'tokens/s':>10} {'MFU':>5} {'GB':>6} {'ratio':>6}")
    for one in speeds:
        mfu = "" if one.mfu is None else f"{one.mfu:.0%}"
        ratio = one.tokens_s / speeds[0].tokens_s
        print(f"  {one.trainer:30} {one.dtype:9} {one.tokens_s:10,.0f} {mfu:>5} {one.peak_gb:6.2f} {ratio:6.2f}")
    print()


def difference(course: Course) -> float:
    """Return the largest difference in nats between float32 losses of the device and of the processor."""
    found = [
        run(OURS, ["eager"], setting_of(course, device, "float32", PARITY_STEPS))["losses"]
        for device in ("cuda", "cpu")
    ]
    return float(np.abs(np.subtract(*found)).max())


def print_parity(apart: dict[str, float]) -> None:
    """Print by how much losses differ from the processor's."""
    if not apart:
        print("losses beside the processor's: not compared, since this is the processor")
    for name, found in apart.items():
        verdict = "agrees" if found <= PARITY else "DIFFERS"
        print(f"{name}, small, {PARITY_STEPS} steps: {verdict} with the processor, by {found:.1e} nats at most")


def is_resume_exact(course: Course, device: str, scratch: Path) -> bool:
    """Return whether the whole trainer, paused after half of its steps and resumed, ends with the same weights."""
    setting = setting_of(course, device, "float32", 8)
    run(WHOLE, ["eager", str(scratch / "undisturbed")], setting)
    run(WHOLE, ["eager", str(scratch / "paused"), "0.5"], setting)
    assert not (scratch / "paused" / RESULT).exists(), "it pauses before its end"
    run(WHOLE, ["eager", str(scratch / "paused")], setting)
    weights = [(scratch / name / RESULT / WEIGHTS).read_bytes() for name in ("undisturbed", "paused")]
    return weights[0] == weights[1]


def print_profile(course: Course, device: str) -> None:
    """Print where a step in bfloat16 waits for the device before its numbers are read, and what three steps spend there
    by kernel, with the share of time in which the device computes."""
    from ours import make_step
    from torch.autograd import DeviceType  # pyright: ignore[reportPrivateImportUsage]
    from torch.profiler import ProfilerActivity, profile

    step = make_step("eager" if device == "cpu" else "compiled", setting_of(course, device, "bfloat16"))
    for _ in range(3):
        step()
    if device == "cuda":
        print_waits(course, step)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device == "cuda" else [])]
    with profile(activities=activities) as measured:
        began = time.perf_counter()
        for _ in range(3):
            step()
        if device == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - began
    by, kind = ("self_device_time_total", DeviceType.CUDA) if device == "cuda" else ("self_cpu_time_total", None)
    rows = [one for one in measured.key_averages() if kind in (None, one.device_type)]
    rows = sorted(rows, key=lambda one: getattr(one, by), reverse=True)
    total = sum(getattr(one, by) for one in rows)
    print(f"three steps of {course.name}: {total / 1e3:,.1f} ms of {device} time in {1e3 * seconds:,.1f} ms")
    for one in rows[:16]:
        print(f"  {getattr(one, by) / total:5.1%}  {one.count:6} times  {one.key[:90]}")
    print()


def print_waits(course: Course, step: Callable[[], Any]) -> None:
    """Print where a step waits for the device."""
    torch.cuda.set_sync_debug_mode("warn")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        step()
    torch.cuda.set_sync_debug_mode("default")
    places = sorted({f"{Path(one.filename).name}:{one.lineno}" for one in caught if "synchroniz" in str(one.message)})
    print(f"waits for the device in a step of {course.name}: {', '.join(places) or 'none'}")


if __name__ == "__main__":
    sys.exit(main())
