"""Profiles of BERT and T5: every part is found, and the parts add up to the step."""

from typing import Any

import numpy as np
import pytest

from model.config.network import BERTConfig, T5Config
from model.data.row_format import RowFormat
from model.profile.modules import ATTENTION, EMBEDDING, HEAD, MLP, NORMS, OPTIMIZER
from model.profile.roofline import Machine
from model.profile.step import profile_step

SIZES: dict[str, Any] = {"vocab_size": 48, "layers": 2, "heads": 2, "width": 16}
NETWORKS = {"bert": (BERTConfig(context=24, **SIZES), 24), "t5": (T5Config(context=32, **SIZES), 34)}
SENTINELS = tuple(range(7, 20))


@pytest.mark.parametrize("architecture", ["bert", "t5"])
def test_parts_of_other_networks_are_distinguished(make_run, write_sequences, architecture: str) -> None:
    config, length = NETWORKS[architecture]
    run = make_run(positions=8, dtype="bfloat16")
    row_format = RowFormat(
        objective="masked_lm" if architecture == "bert" else "span_corruption",
        tokenizer_digest="tokenizer",
        vocab_size=48,
        eos=2,
        pad=3,
        cls=4,
        sep=5,
        mask=6,
        sentinels=SENTINELS,
        special=(2, 3, 4, 5, 6, *SENTINELS),
    )
    tokens = np.random.default_rng(1).integers(20, 48, size=(10, length))
    pairs = {"pairs": ([12] * 10, [True] * 10)} if architecture == "bert" else {}
    file = write_sequences(run.out.with_suffix(".arrow"), tokens, row_format=row_format, **pairs)
    run = run.model_copy(update={"sequences": (file,), "model": config})
    profile = profile_step(run, steps=1, machine=Machine(1e11, 1e10, 1, "float32"))
    assert {cost.part for cost in profile.parts} >= {EMBEDDING, NORMS, ATTENTION, MLP, HEAD, OPTIMIZER}
    within = sum(cost.seconds for cost in profile.parts)
    assert within + profile.loader_seconds + profile.between_seconds == pytest.approx(profile.seconds)
    assert profile.tokens == 2 * length
    assert profile.shape.element_bytes == 2
