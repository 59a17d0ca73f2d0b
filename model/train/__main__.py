"""Run the trainer as a process: `python -m model.train run.json [PARENT]`.

PARENT is the process id of the launcher; with it, the trainer is killed when the launcher ends. The exit code is that
of the error's class (`model/errors.py`), and the error is the last line on stderr, as `Class: message`.

This process supervises the ranks (`model/launch/supervisor.py`). Each rank is a process of its own,
`python -m model.train run.json PARENT RANK RANK_DIR SIZE LEFT_OUT STORE`, which writes its error report into the folder
RANK_DIR, records that the replicas LEFT_OUT (`1,3`) do not train, and finds ranks on other machines through STORE.
"""

import signal
import sys
import traceback
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from model.config.train import TrainerRun, read_run
from model.errors import BessemerError, Bug, Infra, RecipeError
from model.guard.decisions import effective_config, read_decisions
from model.processes import collecting_seldom, die_with_parent, exit_now, write_log


def main(arguments: list[str]) -> int:
    """Train the run that the JSON file describes; return 0 when trained to the end, or the exit code of the error."""
    die_with_parent(signal.SIGKILL, parent=int(arguments[1]) if len(arguments) > 1 else None)
    if len(arguments) > 2:
        run_file, _, rank, rank_dir, size, left_out, store = arguments
        missing = tuple(map(int, filter(None, left_out.split(","))))
        return _rank(Path(run_file), Path(rank_dir), int(rank), int(size), missing, store)
    try:
        if not arguments:
            raise RecipeError("no run file given. Call: python -m model.train run.json")
        return _supervise(Path(arguments[0]))
    except BessemerError as error:
        return _report(error)
    except (OSError, MemoryError) as error:
        return _report(Infra(f"{type(error).__name__}: {error}"))
    except Exception as error:
        write_log(traceback.format_exc())
        return _report(Bug(f"{type(error).__name__}: {error}"))


def _supervise(run_file: Path) -> int:
    from model.engines import check_engine
    from model.launch.supervisor import supervise

    original = read_run(run_file)
    # Decisions since the run began may have changed its engine and the number of its ranks.
    run = effective_config(original, read_decisions(original.out))
    check_engine(run.train)
    return supervise(run, run_file)


def _report(error: BessemerError) -> int:
    write_log(f"{type(error).__name__}: {error}\n")
    return error.exit_code


def _rank(run_file: Path, rank_dir: Path, rank: int, size: int, left_out: tuple[int, ...], store: str) -> int:
    from model.distributed.protocol import error_file
    from model.errors import Paused
    from model.launch.failures import reported_error, reserve_error_report, write_error_report

    try:
        reserve_error_report(error_file(rank_dir, rank))
        _train_rank(read_run(run_file), rank_dir, rank, size, left_out, store)
    except Paused:
        return 0
    except Exception as error:
        reported = reported_error(error)
        if reported is None:
            return Infra.exit_code
        if isinstance(reported, Bug):
            write_log(traceback.format_exc())
        write_error_report(error_file(rank_dir, rank), f"{type(reported).__name__}: {reported}\n")
        return reported.exit_code
    return 0


def _train_rank(run: TrainerRun, rank_dir: Path, rank: int, size: int, left_out: tuple[int, ...], store: str) -> None:
    from model.distributed.heartbeat import Heartbeat
    from model.distributed.protocol import heartbeat_file, rendezvous_file
    from model.launch.watchdog import dump_stacks_on_request

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
    products = fastest_products() if config.numerics == "native" else nullcontext()
    with flush_denormals(), products, group as ranks:
        train(run, replace(ranks, left_out=left_out), messages)


if __name__ == "__main__":
    exit_now(main(sys.argv[1:]))
