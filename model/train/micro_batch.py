"""Find the micro-batch size for `micro_batch_rows = "auto"`: the largest share of a batch that fits into memory.

It is found before the first step and stored in the run's folder, because a resumed run must use the same: other
micro-batches add the same gradients in another order, which changes the last bits.
"""

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from model.checkpoint.run_folder import MICRO_BATCH
from model.checksummed_json import read_sealed, write_sealed
from model.config.machine import machine_memory, peak_bytes, reset_peak, resident_bytes
from model.config.train import TrainConfig, TrainerRun
from model.data.dataset import SequenceReader
from model.digests import digest_bytes
from model.distributed.process_group import Ranks
from model.distributed.protocol import LauncherChannel
from model.engines.base import batch_loss
from model.engines.runtime import autocast, move_batch, training_device, wrap_blocks
from model.engines.sizes import rank_sizes
from model.errors import RecipeError
from model.nn.factory import Network, make_network
from model.objectives import make_objective
from model.objectives.base import concatenate_batches, slice_batch
from model.train.resume import deciding_settings

HINT = "Remove it, and a size is found again, which on another machine may differ."

DECIDED_FOR = "decided_for"
"""Entry with the digest of all settings: another network, type or optimizer needs other memory."""

SHARE_OF_MACHINE = 0.8
"""Share of the memory of machine or device that a training may use where `train.memory_limit` is not set."""


def resolve_micro_batch_rows(
    run: TrainerRun, data: SequenceReader, ranks: Ranks, channel: LauncherChannel
) -> TrainerRun:
    """Return the run with a number for `micro_batch_rows`: its own, the one found before, or one that the first rank
    finds now and reports. All ranks call it together.

    Raises RecipeError where not even one row fits.
    """
    if run.train.micro_batch_rows != "auto":
        return run
    file = run.out / MICRO_BATCH
    decided_for = digest_bytes(deciding_settings(run).encode())
    if ranks.is_first and not _is_decided(file, decided_for, channel):
        share = run.train.batch_rows // run.train.data_parallel
        limit = _limit(run.train, ranks.size)
        sizes = divisors(share)
        if run.train.device == "cuda":
            # Each size is compiled by default.
            sizes = [rows for rows in sizes if rows.bit_count() == 1 or rows == share]
        trials = largest_that_fits(sizes, limit, _make_trial(run, data))
        # The blocks of the network refer to themselves, and the device's memory is needed.
        gc.collect()
        if run.train.device == "cuda":
            torch.cuda.empty_cache()
        tried = "; ".join(f"{t.rows}: {t.tokens_s:,} tokens/s, {t.bytes / 2**20:,.0f} MiB" for t in trials)
        channel.send_event("micro_batch_rows", rows=trials[-1].rows, limit_mib=limit >> 20, tried=tried)
        found = {"rows": trials[-1].rows, "limit": limit, "tried": [asdict(trial) for trial in trials]}
        write_sealed(file, {DECIDED_FOR: decided_for, **found})
    ranks.barrier()
    rows = read_sealed(file, HINT)["rows"]
    return run.model_copy(update={"train": run.train.model_copy(update={"micro_batch_rows": rows})})


def _is_decided(file: Path, decided_for: str, channel: LauncherChannel) -> bool:
    """Return whether a size was found for these settings before; report it where one was found for others."""
    if not file.exists():
        return False
    before = read_sealed(file, HINT)
    if before.get(DECIDED_FOR) == decided_for:
        return True
    channel.send_event("micro_batch_rows_anew", rows=before.get("rows"), because="it was found for other settings")
    return False


def _limit(train: TrainConfig, ranks: int) -> int:
    """Return the bytes that each rank may use, on a CUDA device of its own."""
    if train.device == "cuda":
        # More than the device has would take sizes that it ran out of memory with.
        own = int(SHARE_OF_MACHINE * torch.cuda.get_device_properties(training_device(train)).total_memory)
        return own if train.memory_limit is None else min(own, train.memory_limit // ranks)
    return (train.memory_limit or int(SHARE_OF_MACHINE * machine_memory())) // ranks


def divisors(share: int) -> list[int]:
    """Return the sizes that divide a rank's share of a batch into equal parts, smallest first."""
    return [rows for rows in range(1, share + 1) if share % rows == 0]


@dataclass(frozen=True)
class Trial:
    """Speed and memory of one micro-batch size."""

    rows: int
    tokens_s: int
    bytes: int
    """Peak resident memory of the process, or memory allocated on its device, and what a step will add."""
    idle_bytes: int
    """The part of it that does not depend on the rows."""

    def expected_bytes(self, rows: int) -> float:
        """Return the memory of another size, by linear extrapolation."""
        return self.idle_bytes + (self.bytes - self.idle_bytes) * rows / self.rows


def largest_that_fits(sizes: Sequence[int], limit: int, trial: Callable[[int], Trial]) -> list[Trial]:
    """Try the sizes in turn; return the trials, the last of which is the largest size that fits into `limit` bytes.

    A size is tried only where extrapolation from the one before says that it fits, so that hardly any trial exhausts
    the memory. Raises RecipeError where the smallest does not fit.
    """
    trials = [trial(sizes[0])]
    if trials[0].bytes > limit:
        raise RecipeError(
            f"one row needs {trials[0].bytes / 2**20:,.0f} MiB, and each rank may use {limit / 2**20:,.0f} MiB"
            f" (train.memory_limit divided by the ranks, or {SHARE_OF_MACHINE:.0%} of the machine or device). Set"
            f" train.recompute = true, a smaller train.model or train.model.context, or a larger train.memory_limit."
        )
    for rows in sizes[1:]:
        if trials[-1].expected_bytes(rows) > limit:
            break
        found = trial(rows)
        if found.bytes > limit:
            break
        trials.append(found)
    return trials


def _make_trial(run: TrainerRun, data: SequenceReader) -> Callable[[int], Trial]:
    device = training_device(run.train)
    network = make_network(run.model).initialise(run.train.seed).train().to(device)
    wrap_blocks(network, compiled=run.train.compile, recomputed=run.train.recompute)
    elements = sum(parameter.numel() for parameter in network.parameters())
    more = bytes_of_step(run, elements)
    # Gradients exist after the first pass, whatever its size.
    resident = torch.cuda.memory_allocated(device) if device.type == "cuda" else resident_bytes()
    idle = resident + 4 * elements + more

    def trial(rows: int) -> Trial:
        try:
            tokens_s = _tokens_per_second(run, data, network, rows)
        except torch.OutOfMemoryError:
            return Trial(rows, 0, torch.cuda.get_device_properties(device).total_memory + more, idle)
        peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else peak_bytes()
        return Trial(rows, round(tokens_s), peak + more, idle)

    return trial


def bytes_of_step(run: TrainerRun, elements: int) -> int:
    """Return the bytes that a step needs on each rank in addition to weights, gradients and activations.

    These are the optimizer's moments, with data parallelism the vector in which gradients are exchanged, and on a
    processor a rank's share of the copies of weights and moments from which checkpoints are written. Activations are
    freed by then, but not all of their memory is returned to the system.
    """
    sizes = rank_sizes(run.model, run.train).of(elements)
    exchanged = sizes.weights if run.train.data_parallel > 1 else 0
    copies = (sizes.weights + sizes.moments) / run.train.ranks if run.train.device == "cpu" else 0
    return round(sizes.moments + exchanged + copies)


def _tokens_per_second(run: TrainerRun, data: SequenceReader, network: Network, rows: int) -> float:
    objective, device = make_objective(run), network.embedding.weight.device
    batch = objective.loader(data).batch(0, min(rows, data.positions))
    # Where ORDER has fewer rows than that, its last one is repeated: all are equally long.
    batch = concatenate_batches(
        batch, *[slice_batch(batch, data.positions - 1, data.positions)] * (rows - data.positions)
    )
    counted = tuple(max(count, 1) for count in objective.counts(batch))
    _reset(device)
    seconds = 0.0
    # The first pass compiles, where the run is compiled, and fills caches; the second is timed.
    for _ in range(2):
        began = time.perf_counter()
        with autocast(run.train.dtype, device):
            sums = objective.sums(network, move_batch(batch, device))
        batch_loss(sums, counted).backward()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds = time.perf_counter() - began
    return rows * objective.tokens_per_row(data.row_length) / seconds


def _reset(device: torch.device) -> None:
    if device.type == "cuda":
        # Blocks that the allocator keeps for other sizes count neither here nor in the peak.
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    else:
        reset_peak()
