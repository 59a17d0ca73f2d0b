"""Train as one rank: a process that the template of the machine starts (`model/train/template.py`).

Where ranks are programs it is `python -m model.train.rank RUN_FILE RANK RANK_DIR SIZE LEFT_OUT STORE`. It writes
its error report into the folder RANK_DIR, records that the replicas LEFT_OUT (`1,3`) do not train, and finds ranks on
other machines through STORE.
"""

import sys
import traceback
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from model.config.train import TrainerRun, read_run
from model.distributed.heartbeat import Heartbeat
from model.distributed.protocol import error_file, heartbeat_file, rendezvous_file
from model.errors import Bug, Infra, Paused
from model.guard.decisions import effective_config, read_decisions
from model.launch.failures import reported_error, reserve_error_report, write_error_report
from model.launch.watchdog import dump_stacks_on_request
from model.processes import collecting_seldom, exit_now, write_log


def main(arguments: list[str]) -> int:
    """Train to the end or a pause, which is 0, or return the exit code of the error."""
    run_file, rank, rank_dir, size, left_out, store = arguments
    report = error_file(Path(rank_dir), int(rank))
    missing = tuple(map(int, filter(None, left_out.split(","))))
    try:
        reserve_error_report(report)
        _train(read_run(Path(run_file)), Path(rank_dir), int(rank), int(size), missing, store)
    except Paused:
        return 0
    except Exception as error:
        reported = reported_error(error)
        if reported is None:
            return Infra.exit_code
        if isinstance(reported, Bug):
            write_log(traceback.format_exc())
        write_error_report(report, f"{type(reported).__name__}: {reported}\n")
        return reported.exit_code
    return 0


def _train(run: TrainerRun, rank_dir: Path, rank: int, size: int, left_out: tuple[int, ...], store: str) -> None:
    heartbeat = Heartbeat(heartbeat_file(rank_dir, rank))
    dump_stacks_on_request(rank_dir, rank)

    # Only here: garbage of a step may hold tensors.
    with collecting_seldom():
        from model.data.without_pandas import leave_out_pandas
        from model.distributed.process_group import Ranks, join_process_group
        from model.distributed.protocol import claim_stdout
        from model.engines.products import fastest_products
        from model.engines.runtime import flush_denormals
        from model.train.trainer import train

        leave_out_pandas()
    messages = claim_stdout()
    config = effective_config(run, read_decisions(run.out)).train
    # DeepSpeed and FSDP need a process group even for a single rank.
    if size > 1 or config.engine != "native":
        group = join_process_group(rank, size, store or rendezvous_file(rank_dir), config.device, heartbeat)
    else:
        group = nullcontext(Ranks(heartbeat=heartbeat))
    is_native = config.numerics == "native" and config.device == "cpu"
    # The guard may change the type without a new process.
    products = fastest_products(*config.possible_dtypes) if is_native else nullcontext()
    with flush_denormals(), products, group as ranks:
        train(run, replace(ranks, left_out=left_out), messages)


if __name__ == "__main__":
    exit_now(main(sys.argv[1:]))
