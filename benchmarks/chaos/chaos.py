"""`make prove-chaos`: one training that a hundred faults cannot keep from its end, nor from its last bit.

A GPT, by default of 10.7M parameters on two ranks that share each batch, is trained twice: undisturbed, and with faults
at seeded steps. This program injects them from outside and starts nothing again; the supervisor, the task and the
automation (`launch.py`) must. In the end weights, optimizer, METRICS and STEPS of both are compared bit by bit. Called
again in the same folder it goes on with the next fault.
"""

import argparse
import json
import random
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from faults import FAULTS, SERVER_GONE, SLOW, Fault
from world import CHECKPOINT_STEPS, LAYOUTS, FlowWorld, World

from benchmarks.proofs import NoChance, plan
from model.code_digest import code_digest

STEPS_BETWEEN = 12
"""On average, from recovery to the next fault, beside what a fault takes itself."""
SECONDS_TO_RECOVER = 300.0
TRIES = 3


@dataclass(frozen=True)
class Injected:
    """A fault and what became of it."""

    number: int
    kind: str
    step: int
    done: str
    recovered_seconds: float
    """From the fault to a step that had not been made before it."""
    lost_steps: int
    """That were made again."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--faults", type=int, default=17)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--width", type=int, default=384, help="of the GPT's stream; 384: 10.7M parameters")
    parser.add_argument("--layout", choices=LAYOUTS, default="data", help="of the ranks; data: two share each batch")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="after which a call injects no more")
    parser.add_argument("--flow", action="store_true", help="train by `bessemer run`, and let its server die too")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    # Other code may have other bits, and then begins anew.
    kind = "flow" if asked.flow else "trainer"
    case = f"{kind}-{asked.layout}-{code_digest()[:8]}-{asked.width}-{asked.faults}-{asked.seed}"
    folder: Path = (asked.folder / case).resolve()
    of_flow = [kind for kind, fault in FAULTS.items() if not fault.needs_disk]
    kinds = of_flow if asked.flow else [kind for kind in FAULTS if kind != SERVER_GONE]
    if asked.layout != "data":
        # Waiting within the libraries' messages counts as a rank's own work, so none is slower than another.
        kinds.remove(SLOW)
    planned = list(plan(kinds, asked.faults, asked.seed))
    kind_of_world = FlowWorld if asked.flow else World
    steps = sum(FAULTS[kind].steps + STEPS_BETWEEN + CHECKPOINT_STEPS for kind in planned)
    steps = -(-steps // CHECKPOINT_STEPS) * CHECKPOINT_STEPS + 2 * CHECKPOINT_STEPS
    undisturbed = kind_of_world(folder / "undisturbed", steps, asked.width, asked.layout, small_disk=False)
    if not (folder / "undisturbed.done").exists():
        print(f"{steps} steps without faults ...", flush=True)
        run_to_end(undisturbed)
        (folder / "undisturbed.done").touch()
    disturbed = kind_of_world(folder / "disturbed", steps, asked.width, asked.layout, small_disk=not asked.flow)
    records = folder / "faults.jsonl"
    done = [Injected(**json.loads(line)) for line in records.read_text().splitlines()] if records.exists() else []
    until = time.monotonic() + 60 * asked.minutes
    disturbed.start()
    try:
        for injected in inject(disturbed, planned[len(done) :], len(done), asked.seed):
            done.append(injected)
            with records.open("a") as file:
                file.write(json.dumps(asdict(injected)) + "\n")
            print(row(injected), flush=True)
            if time.monotonic() > until:
                print_table(done)
                return 0
        print("no more faults; to the end ...", flush=True)
        wait_for_end(disturbed)
        print_table(done)
        return verdict(undisturbed, disturbed)
    finally:
        disturbed.stop()


def inject(world: World, kinds: list[str], first: int, seed: int) -> Iterator[Injected]:
    """Bring about one fault after the other, each some steps after training has recovered from the one before."""
    for number, kind in enumerate(kinds, start=first):
        chance = random.Random(f"{seed}: {number}")
        fault = FAULTS[kind]
        if fault.needs_disk and not world.has_disk:
            print(f"{number + 1:4} {kind}: left out, no file system can be mounted here", flush=True)
            continue
        for _ in range(TRIES):
            wait_for_steps(world, chance.randint(3, 2 * STEPS_BETWEEN - 3), chance)
            try:
                yield bring(world, number, kind, fault, chance)
                break
            except NoChance as missed:
                print(f"{number + 1:4} {kind}: {missed}", flush=True)


def bring(world: World, number: int, kind: str, fault: Fault, chance: random.Random) -> Injected:
    """Bring about one fault and wait for recovery; raise SystemExit where training does not go on."""
    step, starts = world.step(), len(world.starts())
    began = time.monotonic()
    done = fault.bring(world, chance)
    step = max(step, world.step()) if len(world.starts()) == starts else step

    def recovered() -> bool:
        return world.step() > step and (len(world.starts()) > starts or not fault.restarts)

    while not recovered():
        if time.monotonic() - began > SECONDS_TO_RECOVER or world.code() is not None:
            if world.code() == 0:
                break
            print_log(world)
            raise SystemExit(f"fault {number + 1}, {kind}, at step {step}: {done}, and training did not go on")
        time.sleep(0.05)
    lost = max((max(0, step - start) for start in world.starts()[starts:]), default=0)
    return Injected(number, kind, step, done, round(time.monotonic() - began, 1), lost)


def wait_for_steps(world: World, steps: int, chance: random.Random) -> None:
    """Wait for `steps` new steps and up to 0.5 s more; raise SystemExit where training does not make them."""
    began, first = time.monotonic(), 0
    while True:
        if world.code() is not None or time.monotonic() - began > SECONDS_TO_RECOVER:
            print_log(world)
            raise SystemExit(f"training ended ({world.code()}) or made no step while nothing was done to it")
        step = world.step()
        first = first or step
        if first and step >= first + steps:
            break
        time.sleep(0.02)
    time.sleep(chance.uniform(0, 0.5))


def run_to_end(world: World) -> None:
    world.start()
    try:
        wait_for_end(world)
    finally:
        world.stop()


def wait_for_end(world: World) -> None:
    seen, at = 0, time.monotonic()
    while (code := world.code()) is None:
        if world.step() != seen:
            seen, at = world.step(), time.monotonic()
        if time.monotonic() - at > SECONDS_TO_RECOVER:
            print_log(world)
            raise SystemExit(f"training made no step after step {seen}")
        time.sleep(0.2)
    if code != 0:
        print_log(world)
        raise SystemExit(f"training ended with exit code {code}")


def print_log(world: World) -> None:
    print(world.logs()[-4000:].decode(errors="replace"), file=sys.stderr)


def row(fault: Injected) -> str:
    return (
        f"{fault.number + 1:4} {fault.kind:27} step {fault.step:5}  {fault.recovered_seconds:6.1f} s"
        f" {fault.lost_steps:3} steps lost  {fault.done}"
    )


def print_table(done: list[Injected]) -> None:
    print(f"\n{'fault':27} {'times':>5} {'recovered, s':>15} {'steps lost':>15}")
    print(f"{'':27} {'':>5} {'median':>7} {'most':>7} {'median':>7} {'most':>7}")
    for kind in FAULTS:
        of_kind = [fault for fault in done if fault.kind == kind]
        if of_kind:
            seconds = [fault.recovered_seconds for fault in of_kind]
            lost = [fault.lost_steps for fault in of_kind]
            times = f"{median(seconds):7.1f} {max(seconds):7.1f}"
            print(f"{kind:27} {len(of_kind):5} {times} {median(lost):7.0f} {max(lost):7}")
    by_hand = sum(FAULTS[fault.kind].by_hand for fault in done)
    kinds = len({fault.kind for fault in done})
    print(f"{len(done)} faults of {kinds} kinds, {by_hand} of the sort after which people restarted OPT-175B by hand")


def verdict(undisturbed: World, disturbed: World) -> int:
    """Print whether the results of both have the same bytes; return 0 if all have, else 1."""
    expected, found = undisturbed.results(), disturbed.results()
    same = {name: name in found and found[name].read_bytes() == path.read_bytes() for name, path in expected.items()}
    for name, is_same in same.items():
        print(f"{name}: {'the same bytes' if is_same else 'OTHER BYTES'}")
    return 0 if all(same.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
