"""The equation of training: FLOPs = devices x peak x MFU x seconds, solved for whatever is missing.

MFU, model FLOPs utilisation, is the share of the devices' peak that the model's own arithmetic reaches; recomputed
activations, waiting and restarts all lower it (Chowdhery et al. 2022, PaLM, appendix B).
"""

import math
from dataclasses import dataclass, replace

from flows.planning.scaling import TOKENS_PER_PARAMETER
from model.errors import RecipeError

SECONDS_PER_DAY = 86_400.0
DEFAULT_MFU = 0.40
MFU_REASON = "assumed; PaLM-540B reached 46%, OPT-175B 47% while it ran, and first runs stay below"
BALANCED = "20 tokens a parameter (Hoffmann et al. 2022)"
IMPLIED = "implied by the other numbers"
GIVEN = "given"
EXAMPLES = {"tokens": "20B", "parameters": "1B", "devices": "8", "days": "2"}
"""What may stand behind the options, where too few are given."""
_MOST_DIGITS = 4


@dataclass(frozen=True)
class Shape:
    """The three sizes of a network that decide what attention costs."""

    layers: int
    width: int
    context: int

    @property
    def attention_flops(self) -> float:
        """FLOPs of attention scores for one training token: 12 L D T (Kaplan et al. 2020, with full attention)."""
        return 12.0 * self.layers * self.width * self.context


def flops_of_token(parameters: float, shape: Shape | None = None) -> float:
    """FLOPs of one training token, forward and backward: 6 N, and attention where the network's shape is known."""
    return 6.0 * parameters + (shape.attention_flops if shape is not None else 0.0)


@dataclass(frozen=True)
class Training:
    """A training run's numbers; None where unknown. `mfu` is a share (0 to 1), `peak_flops` of one device."""

    peak_flops: float
    tokens: float | None = None
    parameters: float | None = None
    devices: float | None = None
    days: float | None = None
    mfu: float | None = None
    shape: Shape | None = None

    @property
    def flops(self) -> float:
        """Training FLOPs of the whole run."""
        return _known(self.tokens) * flops_of_token(_known(self.parameters), self.shape)

    @property
    def paid_flops(self) -> float:
        """FLOPs that the devices could do in the time at their peak."""
        return _known(self.devices) * self.peak_flops * _known(self.days) * SECONDS_PER_DAY

    @property
    def sustained_flops(self) -> float:
        """Model FLOP/s of one device over the whole time."""
        return self.flops / (_known(self.devices) * _known(self.days) * SECONDS_PER_DAY)

    @property
    def device_hours(self) -> float:
        """Hours of all devices together."""
        return _known(self.devices) * _known(self.days) * 24

    def missing(self) -> tuple[str, ...]:
        """Names of the unknowns."""
        return tuple(name for name in UNKNOWNS if getattr(self, name) is None)


UNKNOWNS = ("tokens", "parameters", "devices", "days", "mfu")


def _known(value: float | None) -> float:
    assert value is not None, "asked of a training that is not solved yet"
    return value


def solve(given: Training) -> tuple[Training, dict[str, str]]:
    """The training with nothing unknown, and how each number that was not given came to be, by its name.

    One unknown follows from the others. Where MFU and something else are unknown, MFU is assumed; where tokens and
    parameters both are, they are chosen as Hoffmann et al. (2022) would: 20 tokens a parameter. Raises RecipeError
    where that is not enough.
    """
    origins: dict[str, str] = {}
    if given.mfu is None and len(given.missing()) > 1:
        given = replace(given, mfu=DEFAULT_MFU)
        origins["mfu"] = MFU_REASON
    check_solvable(given)
    missing = given.missing()
    if missing == ("tokens", "parameters"):
        parameters = balanced_parameters(given.paid_flops * _known(given.mfu), given.shape)
        given = replace(given, parameters=parameters, tokens=TOKENS_PER_PARAMETER * parameters)
        return given, {**origins, **dict.fromkeys(missing, BALANCED)}
    for unknown in missing:
        given = replace(given, **{unknown: _solved(given, unknown)})
        origins[unknown] = IMPLIED
    return given, origins


def check_solvable(given: Training) -> None:
    """Raise RecipeError, with what could be added, where too little is known; looks at no `peak_flops`."""
    for name in ("days", "devices", "mfu"):
        if getattr(given, name) == 0:
            raise RecipeError(f"plan: --{name} is 0, so nothing is computed; give a number above 0")
    missing = tuple(name for name in given.missing() if name != "mfu" or len(given.missing()) == 1)
    if len(missing) < 2 or missing == ("tokens", "parameters"):
        return
    sought = [("tokens", "parameters")] if {"tokens", "parameters"} <= {*missing} else []
    sought += [(name,) for name in missing if not sought or name not in sought[0]]
    additions = [
        f"  to learn the {' and the '.join(names)}, add "
        + " ".join(f"--{name} {EXAMPLES[name]}" for name in missing if name not in names)
        for names in sought
    ]
    open_ones = ", ".join(f"--{name}" for name in missing)
    head = f"plan: too little is known: {open_ones} are all open."
    raise RecipeError("\n".join([head, *additions, "or plan a recipe: bessemer plan quickstart"]))


def _solved(given: Training, unknown: str) -> float:
    if unknown == "mfu":
        return given.flops / given.paid_flops
    speed = given.peak_flops * _known(given.mfu)
    if unknown == "days":
        return given.flops / (_known(given.devices) * speed * SECONDS_PER_DAY)
    if unknown == "devices":
        return math.ceil(round(given.flops / (speed * _known(given.days) * SECONDS_PER_DAY), _MOST_DIGITS))
    useful = given.paid_flops * _known(given.mfu)
    if unknown == "tokens":
        return useful / flops_of_token(_known(given.parameters), given.shape)
    of_attention = given.shape.attention_flops if given.shape is not None else 0.0
    parameters = (useful / _known(given.tokens) - of_attention) / 6
    if parameters <= 0:
        raise RecipeError(
            f"plan: attention alone over {_known(given.tokens):.3g} tokens takes more than {useful:.3g} FLOPs; give"
            f" more --days or --devices, or fewer --tokens"
        )
    return parameters


def balanced_parameters(flops: float, shape: Shape | None = None) -> float:
    """The parameters N that `flops` train on 20 N tokens: 20 N (6 N + attention) = flops."""
    attention = shape.attention_flops if shape is not None else 0.0
    per_token = flops / TOKENS_PER_PARAMETER
    return (-attention + math.sqrt(attention**2 + 24 * per_token)) / 12
