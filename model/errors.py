"""What may go wrong, on one screen. The exit code of a process is the code of its error's class.

    BessemerError
    |-- RecipeError     2   the recipe asks for something impossible: unknown key, wrong type, bad weight
    |-- InputError      3   a file, column or benchmark is missing, empty or broken
    |-- GuardError      4   a limit that protects the user was passed: source wiped out, too many rejects
    |-- IntegrityError  5   bytes are not what their digest says; nothing was computed from them
    |-- Bug            70   a fault of this program
    |-- Infra          75   the machine failed: disk, memory, network, a killed process (the only class retried)
    |-- Numerics       76   training produced numbers that are no numbers; the guard decides what follows
    `-- AccessError    77   a store or server refuses this machine's credentials: expired, unknown, or not allowed

Every message says what was asked, what was found, who is to blame and what to do.

A training that pauses: it came as far as it was asked to, and left a checkpoint from which it goes on.

Whoever compares many trainings stops the worse ones early and lets the better ones go on (Jamieson and Talwalkar 2016,
successive halving). A pause is no part of what is trained: paused or not, the same weights come out, bit for bit.
"""


class BessemerError(Exception):
    """The root of the tree; `exit_code` is what the command or trainer exits with, `retryable` what a task obeys."""

    exit_code = 70
    retryable = False


class RecipeError(BessemerError, ValueError):
    """The recipe asks for something impossible."""

    exit_code = 2


class InputError(BessemerError, ValueError):
    """Something that was named as input is missing, empty or broken."""

    exit_code = 3


class GuardError(BessemerError):
    """A limit that protects the user was passed; nothing goes on from what was built."""

    exit_code = 4


class IntegrityError(BessemerError):
    """Bytes do not agree with their digest, or two builds of one identity differ."""

    exit_code = 5


class Bug(BessemerError):
    """A fault of this program."""

    exit_code = 70


class Infra(BessemerError):
    """The machine failed; the same call may succeed later."""

    exit_code = 75
    retryable = True


class Numerics(BessemerError):
    """Training produced non-finite numbers too often to go on."""

    exit_code = 76


class AccessError(BessemerError):
    """A store or server refuses access; the next run goes on once this machine has credentials that it takes."""

    exit_code = 77


class Paused(Exception):
    """No error: training paused after `step` of `steps` steps, where its loss was `loss` nats (None where unknown)."""

    def __init__(self, step: int, steps: int, loss: float | None) -> None:
        super().__init__(step, steps, loss)
        self.step = step
        self.steps = steps
        self.loss = loss

    def __str__(self) -> str:
        return f"paused after step {self.step} of {self.steps}; a checkpoint was written, from which training goes on"
