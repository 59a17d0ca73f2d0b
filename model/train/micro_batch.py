"""How many rows pass through the model at once where the recipe leaves it to the machine: `micro_batch_rows = "auto"`.

The largest share of a batch that fits into memory. It is found before the first step and written down, so that a run
goes on with it: other micro-batches add up the same gradients in another order, which changes the last bits.

What the devices of a training could do at best, as the measure of what they do (MFU: Chowdhery et al. 2022, PaLM,
appendix B).
"""

import os
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from model.checksummed_json import read_sealed, write_sealed
from model.config.train import TrainConfig, TrainerRun
from model.data.dataset import SequenceReader
from model.digests import digest_bytes
from model.distributed.process_group import Ranks
from model.distributed.protocol import LauncherChannel
from model.engines.base import batch_loss
from model.engines.memory import rank_sizes
from model.engines.runtime import autocast, wrap_blocks
from model.errors import RecipeError
from model.nn.factory import Network, make_network
from model.objectives import make_objective
from model.objectives.base import concatenate_batches, slice_batch
from model.train.resume import deciding

DECISION = "micro_batch.json"

LOST = "Remove it: a size is found anew, which on another machine may be another."

DECIDED_FOR = "decided_for"
"""Its entry with the digest of all settings: another network, type or optimizer takes other memory."""

SHARE_OF_MACHINE = 0.8
"""Of the machine's memory, where no limit is named: others want some."""


@dataclass(frozen=True)
class Trial:
    """What a size of micro-batch takes."""

    rows: int
    tokens_s: int
    bytes: int
    """Resident memory of the process at its highest, and what a step will add."""
    idle_bytes: int
    """What of it would be there without any row."""

    def expected_bytes(self, rows: int) -> float:
        """Of another size, on a straight line."""
        return self.idle_bytes + (self.bytes - self.idle_bytes) * rows / self.rows


def with_decided_rows(run: TrainerRun, data: SequenceReader, ranks: Ranks, link: LauncherChannel) -> TrainerRun:
    """The run with a number for `micro_batch_rows`: its own, the one found before, or the one that the first rank finds
    now and tells. All ranks call it together.

    Raises RecipeError where not even one row fits.
    """
    if run.train.micro_batch_rows != "auto":
        return run
    file = run.out / DECISION
    decided_for = digest_bytes(deciding(run).encode())
    if ranks.is_first and not _stands(file, decided_for, link):
        share = run.train.batch_rows // run.train.data_parallel
        limit = (run.train.memory_limit or int(SHARE_OF_MACHINE * memory_of_machine())) // ranks.size
        trials = largest_that_fits(divisors(share), limit, _passes(run, data))
        told = "; ".join(f"{t.rows}: {t.tokens_s:,} tokens/s, {t.bytes / 2**20:,.0f} MiB" for t in trials)
        link.send("event", event="micro_batch_rows", rows=trials[-1].rows, limit_mib=limit >> 20, tried=told)
        found = {"rows": trials[-1].rows, "limit": limit, "tried": [asdict(trial) for trial in trials]}
        write_sealed(file, {DECIDED_FOR: decided_for, **found})
    ranks.barrier()
    rows = read_sealed(file, LOST)["rows"]
    return run.model_copy(update={"train": run.train.model_copy(update={"micro_batch_rows": rows})})


def _stands(file: Path, decided_for: str, link: LauncherChannel) -> bool:
    """Whether a size was found for these settings before; told where it was for others."""
    if not file.exists():
        return False
    before = read_sealed(file, LOST)
    if before.get(DECIDED_FOR) == decided_for:
        return True
    link.send(
        "event", event="micro_batch_rows_anew", rows=before.get("rows"), because="it was found for other settings"
    )
    return False


def divisors(share: int) -> list[int]:
    """Sizes that cut a rank's share of a batch into equal parts, smallest first."""
    return [rows for rows in range(1, share + 1) if share % rows == 0]


def largest_that_fits(sizes: Sequence[int], limit: int, trial: Callable[[int], Trial]) -> list[Trial]:
    """Trials of the sizes in turn, the last of which is the largest that fits into `limit` bytes.

    A size is only tried where a straight line through the one before says that it fits: memory that is not there is
    never asked for. Raises RecipeError where the smallest does not fit.
    """
    trials = [trial(sizes[0])]
    if trials[0].bytes > limit:
        raise RecipeError(
            f"one row takes {trials[0].bytes / 2**20:,.0f} MiB, and training may take {limit / 2**20:,.0f} MiB on each"
            f" rank (train.memory_limit, or {SHARE_OF_MACHINE:.0%} of the machine's memory, over the ranks). Set"
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


def _passes(run: TrainerRun, data: SequenceReader) -> Callable[[int], Trial]:
    network = make_network(run.model).initialise(run.train.seed).train()
    wrap_blocks(network, compiled=run.train.compile, recomputed=run.train.recompute)
    elements = sum(parameter.numel() for parameter in network.parameters())
    more = bytes_of_step(run, elements)
    # Gradients are there after the first pass, whatever its size.
    idle = resident_bytes() + 4 * elements + more

    def trial(rows: int) -> Trial:
        tokens_s = _tokens_a_second(run, data, network, rows)
        return Trial(rows, round(tokens_s), peak_bytes() + more, idle)

    return trial


def bytes_of_step(run: TrainerRun, elements: int) -> int:
    """What the step of a network of so many parameters takes on each rank beside them, their gradients and the passes.

    The optimizer's moments, where ranks share rows the one vector in which gradients travel, and a share of what
    checkpoints are written from: copies of weights and moments, once over all ranks. By then the passes' results are
    gone, but not all of their memory is given back.
    """
    sizes = rank_sizes(run.model, run.train).of(elements)
    exchanged = sizes.weights if run.train.data_parallel > 1 else 0
    return round(sizes.moments + exchanged + (sizes.weights + sizes.moments) / run.train.ranks)


def _tokens_a_second(run: TrainerRun, data: SequenceReader, network: Network, rows: int) -> float:
    objective = make_objective(run)
    batch = objective.loader(data).batch(0, min(rows, data.positions))
    # Of ORDER's few rows the last stands for what is missing: all are equally long.
    batch = concatenate_batches(
        batch, *[slice_batch(batch, data.positions - 1, data.positions)] * (rows - data.positions)
    )
    counted = tuple(max(count, 1) for count in objective.counts(batch))
    forget_peak()
    seconds = 0.0
    # The first pass compiles where that is asked for, and fills caches.
    for _ in range(2):
        began = time.perf_counter()
        with autocast(run.train.dtype, network.embedding.weight.device):
            sums = objective.sums(network, batch)
        batch_loss(sums, counted).backward()
        seconds = time.perf_counter() - began
    return rows * objective.tokens_per_row(data.row_length) / seconds


def memory_of_machine() -> int:
    """Bytes of main memory, or those that a container may use of them."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        file = Path("/sys/fs/cgroup", name)
        if file.is_file() and file.read_text().strip().isdigit():
            limits.append(int(file.read_text()))
    return min(limits)


def resident_bytes() -> int:
    """Memory of this process now; elsewhere than on Linux only its peak is known, in bytes on macOS."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def forget_peak() -> None:
    """Let `peak_bytes` begin anew, where the system can: sizes rise, so that elsewhere the last is the highest too."""
    references = Path("/proc/self/clear_refs")
    if references.exists() and os.access(references, os.W_OK):
        references.write_text("5")


def peak_bytes() -> int:
    """The most memory that this process has had since `forget_peak`."""
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


DATA_SHEETS = {
    "H200": {"bfloat16": 989e12, "float16": 989e12, "tf32": 495e12, "float32": 67e12},
    "H100": {"bfloat16": 989e12, "float16": 989e12, "tf32": 495e12, "float32": 67e12},
    "A100": {"bfloat16": 312e12, "float16": 312e12, "tf32": 156e12, "float32": 19.5e12},
    "V100": {"float16": 125e12, "float32": 15.7e12},
}
"""FLOP/s of dense products by NVIDIA's data sheets of the SXM modules, by what the driver calls the device."""


def peak_flops(train: TrainConfig, device: torch.device) -> float | None:
    """FLOP/s of one rank's device in the type of its products; None where no data sheet is known, as of a processor.

    What a processor does in a look before the first step is no bound: others had it then, its clock rises and falls,
    and products of other shapes are faster. Shares of such a peak passed 100%.
    """
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((sheet.get(train.dtype) for known, sheet in DATA_SHEETS.items() if known in name), None)
