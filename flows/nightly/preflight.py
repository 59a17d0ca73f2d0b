"""Checks before a nightly run: disk, memory, time, the server, and whether the new files can be read.

All problems are reported at once, so that all can be fixed before the next nightly run.
"""

import math
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from flows.metrics.formatting import format_bytes, format_duration
from flows.nightly.config import NightlyConfig
from flows.nightly.history import Files, Night
from flows.planning.cost_model import network_of, recipe_memory
from flows.planning.preconditions import find_source_files
from flows.recipe.schema import Recipe
from flows.recipe.stages import DATA_STAGES
from model.errors import BessemerError, Infra, InputError, RecipeError
from tasks.artifacts.artifact import Artifact, manifest_of
from tasks.artifacts.results import TrainResult
from tasks.sample.mixture import text_bytes
from tasks.sample.stage import UNREADABLE

DATA_BYTES = 6.0
"""Bytes on disk that the stages before training take at most for a byte of new text: four copies of the text, tokens,
spans, and temporary files."""
STAGE_MEMORY = 1.0e9
"""Memory of the largest data stage with two workers (docs/decisions.md, memory over growing input)."""
SERVER_SECONDS = 10.0


@dataclass(frozen=True)
class Needs:
    """What a nightly run is expected to take."""

    text_bytes: int
    """Bytes of new text."""
    disk_bytes: float
    memory_bytes: float
    seconds: float | None
    """None where no earlier run allows an estimate."""
    data_seconds: float | None = None
    """Of these, before training."""


def check_night(
    recipe: Recipe,
    new: Files,
    root: Path,
    config: NightlyConfig,
    before: Mapping[str, Artifact],
    server: str | None,
    nights: Iterable[Night] = (),
) -> Needs:
    """Return what the recipe will take, if everything it needs is available.

    `before` are the artifacts of the base's run, `server` is the address of the Prefect API, `nights` are the earlier
    nightly runs. Raises InputError, RecipeError or Infra with all problems.
    """
    needs = expected_needs(recipe, before, nights, measure=config.max_hours is not None)
    problems = [*_files(new), *_hours(needs, config), *_disk(needs, root, config), *_memory(needs), *_server(server)]
    if problems:
        kinds = [kind for kind, _ in problems]
        # What a user must fix takes precedence over what may pass: only the latter is worth a retry.
        worst = next(kind for kind in (InputError, RecipeError, Infra) if kind in kinds)
        lines = "\n".join(f"  {sentence}" for _, sentence in problems)
        raise worst(f"nightly: the nightly run did not start:\n{lines}")
    return needs


def expected_needs(
    recipe: Recipe, before: Mapping[str, Artifact], nights: Iterable[Night] = (), *, measure: bool
) -> Needs:
    """Return the needs of a recipe, with the time estimated from earlier nightly runs, or by a second of training if
    `measure`."""
    from model.engines.sizes import whole_sizes

    text = sum(text_bytes(listing) for listing in find_source_files(recipe))
    network = network_of(recipe)
    kept = recipe.train.keep_checkpoints + 1
    sizes = whole_sizes(network, recipe.train.trainer_config())
    disk = DATA_BYTES * text + sizes.weights + kept * (sizes.weights + sizes.moments)
    ranks = recipe.train.ranks if recipe.train.device == "cpu" else 0
    memory = STAGE_MEMORY + (ranks * recipe_memory(recipe).at_least if ranks else 0)
    tokens = min(recipe.chunk.budget_tokens, recipe.chunk.max_epochs * text / recipe.sample.bytes_per_token)
    return Needs(text, disk, memory, *_seconds(recipe, before, nights, text, tokens, measure=measure))


def data_throughput(before: Mapping[str, Artifact]) -> tuple[int, float]:
    """Return the bytes that a run's stages before training read, and the seconds that they took."""
    read = before["sample"].report.total().bytes_in if "sample" in before else 0
    return read, sum(manifest_of(before[stage])["timings"]["seconds"] for stage in DATA_STAGES if stage in before)


def _seconds(
    recipe: Recipe, before: Mapping[str, Artifact], nights: Iterable[Night], text: int, tokens: float, *, measure: bool
) -> tuple[float | None, float | None]:
    """Return the seconds of the whole nightly run, and of its stages before training."""
    # In a nightly run that read little, other costs than its bytes dominate.
    rates = [data_throughput(before), *((night.read_bytes or 0, night.data_seconds or 0.0) for night in nights)]
    read, took = max(rates)
    speed = TrainResult.of(before["train"].report).training["tokens_s"] if "train" in before else None
    if read and speed:
        measured = manifest_of(before["evaluate"])["timings"]["seconds"] if "evaluate" in before else 0.0
        data = took / read * text
        return data + tokens / speed + measured, data
    if not measure or recipe.train.device != "cpu":
        return None, None
    from flows.planning.machine_speed import measured_step

    train = recipe.train
    step = measured_step(network_of(recipe), train.rows_at_once, train.threads, train.dtype)
    return tokens / step.tokens_per_second, None


def _files(new: Files) -> Iterator[tuple[type[BessemerError], str]]:
    lost = [
        f"{source}: {path}"
        for source, files in new.items()
        for path, digest in files.items()
        if digest.startswith(UNREADABLE)
    ]
    if lost:
        more = f" and {len(lost) - 3} more" if len(lost) > 3 else ""
        yield (
            InputError,
            f"files that cannot be read: {', '.join(lost[:3])}{more}; give this user the right to read them",
        )


def _hours(needs: Needs, config: NightlyConfig) -> Iterator[tuple[type[BessemerError], str]]:
    if config.max_hours is None or needs.seconds is None or needs.seconds <= 3600 * config.max_hours:
        return
    message = f"time: about {format_duration(needs.seconds)} at the rate of earlier nightly runs, and"
    message += f" nightly.max_hours = {config.max_hours:g}; "
    if needs.data_seconds is not None and needs.data_seconds > 3600 * config.max_hours:
        # A nightly run takes all new files, so a lower budget would not help.
        message += (
            f"{format_duration(needs.data_seconds)} of it before training, for {format_bytes(needs.text_bytes)} of new"
            f" text: add fewer files at once, or raise the limit for this nightly run (--set nightly.max_hours=...)"
        )
    else:
        message += "lower nightly.later.budget_tokens, or raise the limit"
    yield RecipeError, message


def _disk(needs: Needs, root: Path, config: NightlyConfig) -> Iterator[tuple[type[BessemerError], str]]:
    root.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(root).free
    wanted = needs.disk_bytes + 1e9 * config.spare_gigabytes
    if free < wanted:
        yield (
            Infra,
            f"disk: {format_bytes(free)} free under {root}; the nightly run needs up to"
            f" {format_bytes(needs.disk_bytes)} plus a reserve of {config.spare_gigabytes:g} GB. Free some space"
            f" (`bessemer store gc`)",
        )


def _memory(needs: Needs) -> Iterator[tuple[type[BessemerError], str]]:
    free = psutil.virtual_memory().available
    if free < needs.memory_bytes:
        yield (
            Infra,
            f"memory: {format_bytes(free)} free; the nightly run needs about {format_bytes(needs.memory_bytes)}. End"
            f" other programs",
        )


def _server(address: str | None) -> Iterator[tuple[type[BessemerError], str]]:
    if address is None:
        return
    try:
        with urllib.request.urlopen(f"{address.rstrip('/')}/health", timeout=SERVER_SECONDS):
            return
    except urllib.error.HTTPError as error:
        # A server that asks for a password is running; the flow has the password.
        if error.code < 500:
            return
        yield (
            Infra,
            f"server: the Prefect server at {address} answers {error.code}; see its log (`bessemer serve status`)",
        )
    except (urllib.error.URLError, OSError, ValueError) as error:
        yield (
            Infra,
            f"server: the Prefect server at {address} does not answer ({error}); start it (`bessemer serve start`), or"
            f" unset PREFECT_API_URL",
        )


def describe_needs(needs: Needs) -> str:
    """Return `about 2 h 3 min, up to 1.2 GB of disk`."""
    time = "" if needs.seconds is None or math.isnan(needs.seconds) else f"about {format_duration(needs.seconds)}, "
    return f"{time}up to {format_bytes(needs.disk_bytes)} of disk"
