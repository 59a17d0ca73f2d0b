"""A rank that starts a training's network and engine, and prints its peak of resident memory above that before.

Arguments: run.json, rank, rendezvous file, number of ranks.
"""

import gc
import json
import sys
from pathlib import Path

from model.config.machine import peak_bytes, reset_peak, resident_bytes
from model.config.train import read_run
from model.distributed.process_group import join_process_group
from model.distributed.protocol import claim_stdout
from model.engines import make_engine
from model.processes import exit_now
from model.train.initial_weights import initial_network
from model.train.trainer import prepare_process


def main(file: str, rank: int, rendezvous: str, size: int) -> None:
    out = claim_stdout()
    run = read_run(Path(file))
    prepare_process(run)
    with join_process_group(rank, size, Path(rendezvous)) as ranks:
        ranks.barrier()
        gc.collect()
        reset_peak()
        before = resident_bytes()
        engine = make_engine(run, initial_network(run, resumes=False).network, ranks)
        ranks.barrier()
        found = {"above": peak_bytes() - before, "weights": sum(part.nbytes for part in engine.weights().values())}
        out.write(json.dumps(found) + "\n")
        out.flush()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
    exit_now(0)
