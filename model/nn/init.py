"""Initial weights: Gaussian as in GPT-2 and BERT, T-Fixup, and T5's.

Element i of a weight, in row-major order, is a function of the seed, the weight's name and i alone, so that a rank can
compute any part of any weight by itself, bit for bit as one process computes all of them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from model.config.block import BlockConfig
from model.config.network import GPTConfig
from model.data.philox import numbers_from, philox_key

EMBEDDING_STD = 1.0
"""Standard deviation of T5's embedding."""

CHUNK = 1 << 13
"""Elements that are drawn at once; their intermediate results fit the cache of a core."""


@dataclass(frozen=True)
class InitialLaw:
    """The distribution of a weight's elements."""

    kind: Literal["constant", "normal", "uniform"]
    scale: float
    """The value; the standard deviation; the bound, on both sides of zero."""


def gpt_law(name: str, config: GPTConfig) -> InitialLaw:
    """Return N(0, `table_std`) for tables and heads, N(0, `matrix_std`) for matrices in blocks, zero for biases.

    Matrices that end a residual branch have that over sqrt(2 layers), so that the stream's variance does not grow with
    depth (GPT-2, section 2.3). In a network `width_multiplier` times as wide as the one that the learning rate was
    chosen for, the variance of matrices in blocks is divided by that factor, so that their outputs keep theirs (Yang et
    al. 2022, table 8).
    """
    if law := _norm_or_bias(name):
        return law
    std = config.matrix_std if name.startswith("blocks") else config.table_std
    if name.endswith(("_out.weight", "experts.mlp_out")):
        std /= math.sqrt(2 * config.layers)
    if config.width_multiplier != 1.0 and name.startswith("blocks"):
        std /= math.sqrt(config.width_multiplier)
    return InitialLaw("normal", std)


def bert_law(name: str, std: float) -> InitialLaw:
    """Return N(0, std) for matrices and tables, zero for biases (Devlin et al. 2019)."""
    return _norm_or_bias(name) or InitialLaw("normal", std)


def _norm_or_bias(name: str) -> InitialLaw | None:
    """Return the law of norms and biases; None for other weights."""
    if "norm" in name:
        return InitialLaw("constant", 1.0 if name.endswith("weight") else 0.0)
    return InitialLaw("constant", 0.0) if name.endswith("bias") else None


def t_fixup_law(name: str, shape: Sequence[int], config: GPTConfig) -> InitialLaw:
    """Return the law of a network without norms by T-Fixup (Huang et al. 2020, section 3.2 and their program).

    Matrices are drawn from Xavier's uniform distribution, queries and keys with its bound over sqrt(2). Tables are N(0,
    1 / width) times (9 N)^(-1/4); values, output projections and MLP are scaled by 0.67 N^(-1/4), as in the paper's
    encoder, whose blocks have two branches as well. N is the number of blocks.
    """
    if name.endswith("bias"):
        return InitialLaw("constant", 0.0)
    if name.startswith(("embedding", "new_rows")):
        return InitialLaw("normal", 1 / math.sqrt(config.width * math.sqrt(9 * config.layers)))
    if name.endswith(("attention_query.weight", "attention_key.weight")):
        return _xavier(shape, math.sqrt(0.5))
    return _xavier(shape, 0.67 / math.sqrt(math.sqrt(config.layers)) if name.startswith("blocks") else 1.0)


def t5_law(name: str, shape: Sequence[int], config: BlockConfig) -> InitialLaw:
    """Return the law of T5's program, whose attention does not scale its scores.

    Matrices are drawn with a standard deviation of one over the root of their inputs, queries with that over the root
    of a head's size, and the embedding from N(0, 1).
    """
    if "norm" in name:
        return InitialLaw("constant", 1.0)
    if name == "embedding.weight":
        return InitialLaw("normal", EMBEDDING_STD)
    inputs = config.width if name.startswith("embedding") else shape[1]
    is_query = name.endswith("attention_query.weight")
    return InitialLaw("normal", 1 / math.sqrt(inputs * config.head_size if is_query else inputs))


def _xavier(shape: Sequence[int], gain: float) -> InitialLaw:
    return InitialLaw("uniform", gain * math.sqrt(6 / sum(shape)))


@torch.no_grad()
def fill_box(part: Tensor, law: InitialLaw, seed: int, name: str, shape: Sequence[int], box: tuple[slice, ...]) -> None:
    """Fill a contiguous tensor with a part of a weight of this shape: a range of each dimension, all but the first two
    whole."""
    row = math.prod(shape[1:])
    if part.dim() < 2 or part.shape[1] == shape[1]:
        fill_elements(part, law, seed, name, box[0].start * row)
        return
    first_column = box[1].start * math.prod(shape[2:])
    for own, number in zip(part, range(box[0].start, box[0].stop), strict=True):
        fill_elements(own, law, seed, name, number * row + first_column)


@torch.no_grad()
def fill_elements(part: Tensor, law: InitialLaw, seed: int, name: str, begin: int = 0) -> None:
    """Fill a contiguous tensor with the elements of a weight from `begin` on, rounded to float32."""
    if law.kind == "constant":
        part.fill_(law.scale)
        return
    key, flat = philox_key(seed, f"weight\x1f{name}"), part.view(-1)
    for first in range(0, len(flat), CHUNK):
        chunk = flat[first : first + CHUNK]
        uniform = uniform_numbers(key, begin + first, len(chunk))
        values = inverse_normal(uniform) if law.kind == "normal" else 2 * uniform - 1
        chunk.copy_(torch.from_numpy((values * law.scale).astype(np.float32)))


def uniform_numbers(key: np.ndarray, begin: int, count: int) -> np.ndarray:
    """Return numbers of a stream between 0 and 1, f64[count], exclusive: multiples of 2^-52, plus half of that."""
    return ((numbers_from(key, begin, count) >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


_CENTRE = (
    (3.3871328727963666080e0, 1.3314166789178437745e2, 1.9715909503065514427e3, 1.3731693765509461125e4,
     4.5921953931549871457e4, 6.7265770927008700853e4, 3.3430575583588128105e4, 2.5090809287301226727e3),
    (1.0, 4.2313330701600911252e1, 6.8718700749205790830e2, 5.3941960214247511077e3,
     2.1213794301586595867e4, 3.9307895800092710610e4, 2.8729085735721942674e4, 5.2264952788528545610e3),
)  # fmt: skip
_TAIL = (
    (1.42343711074968357734e0, 4.63033784615654529590e0, 5.76949722146069140550e0, 3.64784832476320460504e0,
     1.27045825245236838258e0, 2.41780725177450611770e-1, 2.27238449892691845833e-2, 7.74545014278341407640e-4),
    (1.0, 2.05319162663775882187e0, 1.67638483018380384940e0, 6.89767334985100004550e-1,
     1.48103976427480074590e-1, 1.51986665636164571966e-2, 5.47593808499534494600e-4, 1.05075007164441684324e-9),
)  # fmt: skip
_FAR_TAIL = (
    (6.65790464350110377720e0, 5.46378491116411436990e0, 1.78482653991729133580e0, 2.96560571828504891230e-1,
     2.65321895265761230930e-2, 1.24266094738807843860e-3, 2.71155556874348757815e-5, 2.01033439929228813265e-7),
    (1.0, 5.99832206555887937690e-1, 1.36929880922735805310e-1, 1.48753612908506148525e-2,
     7.86869131145613259100e-4, 1.84631831751005468180e-5, 1.42151175831644588870e-7, 2.04426310338993978564e-15),
)  # fmt: skip


def inverse_normal(p: np.ndarray) -> np.ndarray:
    """Return the quantiles of the standard normal distribution, f64[n], for probabilities f64[n] between 0 and 1.

    Wichura 1988, algorithm AS 241 (PPND16), with a relative error of 1e-16. Only sums, products, quotients and roots
    are used, one array operation each: those are rounded alike on every processor, and none is fused with another, as a
    compiler may do.
    """
    from_half = p - 0.5
    z = from_half * _quotient(0.180625 - from_half * from_half, *_CENTRE)
    is_tail = np.abs(from_half) > 0.425
    tail = p[is_tail]
    root = np.sqrt(-logarithm(np.minimum(tail, 1 - tail)))
    is_far = root > 5
    of_tail = _quotient(root - 1.6, *_TAIL)
    of_tail[is_far] = _quotient(root[is_far] - 5, *_FAR_TAIL)
    z[is_tail] = np.copysign(of_tail, tail - 0.5)
    return z


def _quotient(x: np.ndarray, numerator: Sequence[float], denominator: Sequence[float]) -> np.ndarray:
    return _polynomial(x, numerator) / _polynomial(x, denominator)


def _polynomial(x: np.ndarray, coefficients: Sequence[float]) -> np.ndarray:
    value = np.full_like(x, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        value *= x
        value += coefficient
    return value


def logarithm(x: np.ndarray) -> np.ndarray:
    """Return ln x by 2 artanh((m - 1) / (m + 1)), with x = m 2^e and m between the roots of 1/2 and 2; the C library's
    differs in the last bit between processors."""
    mantissa, exponent = np.frexp(x)
    is_small = mantissa < math.sqrt(0.5)
    mantissa, exponent = np.where(is_small, 2 * mantissa, mantissa), exponent - is_small
    s = (mantissa - 1) / (mantissa + 1)
    return exponent * math.log(2) + 2 * s * _polynomial(s * s, [1 / (2 * term + 1) for term in range(12)])
