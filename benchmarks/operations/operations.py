"""`make prove-operations`: deployed runs that faults of every level of operation cannot keep from their end.

A service runs (`bessemer serve start`, with PostgreSQL). Each fault meets a run of its own at a drawn moment of a
drawn stage; the run ends with the stage behind that one. Nothing is started again by this program but what a machine's
own boot would start. In the end every artifact must have the content digest of an undisturbed run's, a run must be
Completed on the server, none may be left under way there, and no process of the run may live. Called again in the same
folder it goes on with the next fault, unless the code of a stage has changed."""

import argparse
import json
import random
import shutil
import signal
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from blake3 import blake3
from faults import FAULTS
from world import DeployedRun, World, wait_until

from benchmarks.proofs import PROJECT, NoChance, plan
from flows.recipe.stages import STAGES

SECONDS_TO_BEGIN = 300.0
SECONDS_TO_RECOVER = 900.0
SECONDS_TO_SETTLE = 240.0
"""Until the server reports that every run of it has ended: silent ones are missed after 90."""
SECONDS_TO_STAY = 150.0
"""After which nothing is late any more."""
TRAINING_SHARE = 0.3
"""Of the faults that may meet any stage; the others meet the eight stages alike."""
TRIES = 4
TERMINAL = {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}


@dataclass(frozen=True)
class Met:
    """A fault and what became of the run that it met."""

    number: int
    kind: str
    stage: str
    """What was being built."""
    step: int
    """Of the training; 0 in other stages."""
    done: str
    seconds: float
    """From the fault to the end of the run."""
    runs: list[str]
    """States in which its flow runs ended, in order: more than one where an automation began another."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--faults", type=int, default=68)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="after which a call brings no more")
    parser.add_argument("--only", action="append", choices=sorted(FAULTS), help="kinds; all by default")
    parser.add_argument("--table", action="store_true", help="print the table of what was done, and do nothing")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    # Other code makes other artifacts, and then begins anew.
    folder: Path = asked.folder.resolve() / f"{code_of_stages()}-{asked.seed}"
    folder.mkdir(parents=True, exist_ok=True)
    records = folder / "faults.jsonl"
    done = [Met(**json.loads(line)) for line in records.read_text().splitlines()] if records.exists() else []
    if asked.table:
        print_table(done)
        return 0
    world = World(folder)
    kinds = asked.only or list(FAULTS)
    for kind in [kind for kind in kinds if not FAULTS[kind].needs(world)]:
        print(f"{kind}: left out, this machine does not allow it", flush=True)
        kinds.remove(kind)
    planned = list(plan(kinds, asked.faults, asked.seed))
    until, first = time.monotonic() + 60 * asked.minutes, len(done)
    try:
        world.undisturbed()
        world.up()
        for number, kind in enumerate(planned[len(done) :], start=len(done)):
            if time.monotonic() > until:
                break
            met = meet(world, number, kind, asked.seed)
            done.append(met)
            with records.open("a") as file:
                file.write(json.dumps(asdict(met)) + "\n")
            print(row(met), flush=True)
        check_that_all_stay(world, done[first:])
        print_table(done)
        return 0
    finally:
        world.down()


def code_of_stages() -> str:
    """Return eight digits of the digest of the stages' code."""
    files = sorted(path for room in ("tasks", "model") for path in (PROJECT / room).rglob("*.py"))
    return blake3(b"".join(path.read_bytes() for path in files)).hexdigest()[:8]


def meet(world: World, number: int, kind: str, seed: int) -> Met:
    """Bring about one fault in a run of its own and wait for the end; raise SystemExit where anything is wrong."""
    fault = FAULTS[kind]
    for attempt in range(TRIES):
        chance = random.Random(f"{seed}: {number}: {attempt}")
        training = fault.in_training or chance.random() < TRAINING_SHARE
        stage = "train" if training else chance.choice(STAGES)
        deployed = world.deployed(number, stage, fault.on_disk)
        make_run(world, deployed)
        try:
            at, step = wait_for_moment(world, deployed, stage, chance)
            met_at = time.monotonic()
            what = fault.bring(world, deployed, chance)
        except NoChance as missed:
            print(f"{number + 1:4} {kind}: {missed}", flush=True)
            settle(world, deployed, kind)
            clear(deployed)
            continue
        settle(world, deployed, kind)
        seconds = round(time.monotonic() - met_at, 1)
        check(world, deployed, kind)
        runs = [run["state"]["type"] for run in world.runs(deployed)]
        clear(deployed)
        return Met(number, kind, at, step, what, seconds, runs)
    raise SystemExit(f"fault {number + 1}, {kind}: no chance in {TRIES} tries")


def make_run(world: World, deployed: DeployedRun) -> None:
    """Start a run on a server that may not answer yet; raise SystemExit where it takes none in SECONDS_TO_RECOVER."""
    if not wait_until(lambda: world.run(deployed), SECONDS_TO_RECOVER, every=1.0):
        raise SystemExit(f"{deployed.root}: the server takes no run within {SECONDS_TO_RECOVER:.0f} s")


def wait_for_moment(world: World, deployed: DeployedRun, stage: str, chance: random.Random) -> tuple[str, int]:
    """Wait for a drawn moment of the stage; return the stage that is then under way, and the training's step."""
    if not wait_until(lambda: deployed.is_under_way(stage) or ended(world, deployed), SECONDS_TO_BEGIN, every=0.02):
        raise SystemExit(f"{deployed.root}: {stage} did not begin within {SECONDS_TO_BEGIN:.0f} s")
    if stage == "train":
        steps = chance.randrange(0, 180)
        wait_until(lambda: deployed.step() >= steps or not deployed.is_under_way(stage), SECONDS_TO_BEGIN, every=0.02)
    else:
        time.sleep(chance.uniform(0, 1.0))
    at = deployed.under_way()
    return at, deployed.step() if at == "train" else 0


def ended(world: World, deployed: DeployedRun) -> bool:
    """Return whether one of its flow runs is Completed and none is under way."""
    states = [run["state"]["type"] for run in world.runs(deployed)]
    return "COMPLETED" in states and set(states) <= TERMINAL


def settle(world: World, deployed: DeployedRun, kind: str) -> None:
    """Wait until the run is done, on the server too; raise SystemExit where it is not in SECONDS_TO_RECOVER."""
    if not wait_until(lambda: ended(world, deployed), SECONDS_TO_RECOVER, every=1.0):
        raise SystemExit(
            f"{kind}, {deployed.root}: not at its end after {SECONDS_TO_RECOVER:.0f} s: {state(world, deployed)}"
        )


def check(world: World, deployed: DeployedRun, kind: str) -> None:
    """Raise SystemExit unless the bytes are those of an undisturbed run and all processes of the run end."""
    expected, found = world.undisturbed().contents(), deployed.contents()
    for stage in deployed.identities:
        if found.get(stage) != expected[stage]:
            raise SystemExit(
                f"{kind}, {deployed.root}: {stage} has OTHER BYTES: {found.get(stage)}, not {expected[stage]}"
            )
    if deployed.other_artifacts():
        raise SystemExit(f"{kind}, {deployed.root}: {deployed.other_artifacts()} belong to nobody")
    if not wait_until(lambda: not world.processes_with(str(deployed.root)), SECONDS_TO_SETTLE, every=1.0):
        left = [" ".join(process.cmdline()) for process in world.processes_with(str(deployed.root))]
        raise SystemExit(f"{kind}, {deployed.root}: processes outlive their run: {left}")


def check_that_all_stay(world: World, done: list[Met]) -> None:
    """Raise SystemExit where an ended run has begun again, even when all that was late has arrived."""
    time.sleep(SECONDS_TO_STAY)
    for met in done:
        states = [run["state"]["type"] for run in world.runs_of(met.number)]
        if states != met.runs:
            raise SystemExit(f"fault {met.number + 1}, {met.kind}: its runs were {met.runs}, and are {states} now")


def state(world: World, deployed: DeployedRun) -> str:
    """Return what the server knows of a run, for an error."""
    found: list[str] = []
    wait_until(lambda: found.extend(f"{run['state']}" for run in world.runs(deployed)) is None, 30.0)
    return f"{found}; under way: {deployed.under_way()}; see {world.root / 'service'}"


def clear(deployed: DeployedRun) -> None:
    """Remove the run's root: its artifacts are compared, and the disk is small."""
    shutil.rmtree(deployed.root, ignore_errors=True)


def row(met: Met) -> str:
    where = f"{met.stage} {met.step}" if met.step else met.stage
    states = ", ".join(state.lower() for state in met.runs)
    return f"{met.number + 1:4} {met.kind:24} {where:16} {met.seconds:6.1f} s  {states:30} {met.done}"


def print_table(done: list[Met]) -> None:
    print(f"\n{'fault':24} {'times':>5} {'to the end, s':>15} {'in training':>12} {'went on in':>21}")
    print(f"{'':24} {'':>5} {'median':>7} {'most':>7} {'':>12} {'the same run':>12} {'another':>8}")
    for kind in FAULTS:
        of_kind = [met for met in done if met.kind == kind]
        if of_kind:
            seconds = [met.seconds for met in of_kind]
            times = f"{median(seconds):7.1f} {max(seconds):7.1f}"
            training = sum(met.stage == "train" for met in of_kind)
            same = sum(len(met.runs) == 1 for met in of_kind)
            print(f"{kind:24} {len(of_kind):5} {times} {training:12} {same:12} {len(of_kind) - same:8}")
    kinds = len({met.kind for met in done})
    print(f"{len(done)} faults of {kinds} kinds; after each, artifacts with the bytes of an undisturbed run")


if __name__ == "__main__":
    sys.exit(main())
