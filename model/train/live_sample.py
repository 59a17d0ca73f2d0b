"""A text that a GPT writes while it is trained, for those who watch.

It goes to the launcher as a message and is no part of the result. Writing draws from a generator of its own and runs
without gradient or dropout, so that the next step computes exactly what it would compute without it.
"""

from collections import Counter
from time import monotonic

import numpy as np
import pyarrow as pa

from model.config.train import TrainerRun
from model.data.dataset import open_table, text_lengths
from model.engines.base import Engine
from model.engines.native import NativeEngine
from model.engines.runtime import evaluating
from model.inference.generate import Sampling, stream_tokens
from model.nn.gpt import GPT

PROMPT_TOKENS, MOST_TOKENS = 12, 60

SHARE = 0.008
"""Share of the time since the training began that writing may take."""

SAMPLING = Sampling(temperature=0.7, top_p=0.9, seed=1)


class LiveSample:
    """Continues the beginning of a held-out row of the source that has most of them, each time with the network as it
    is, always with one seed."""

    def __init__(self, run: TrainerRun) -> None:
        assert run.heldout is not None, "Validation refuses a run without held-out rows, and a file without any"
        table = open_table(run.heldout)
        sources = table.column("source").cast(pa.string()).to_pylist()
        row = sources.index(Counter(sources).most_common(1)[0][0])
        tokens = table.column("tokens")[row].as_py()
        # Of a row with little text the rest is padding.
        length = int(text_lengths(np.array([tokens]), run.pad)[0])
        self._prompt: list[int] = tokens[: min(length, PROMPT_TOKENS)]
        self._end = run.eos
        self._possible = run.model.architecture == "gpt" and not run.train.recompute and len(self._prompt) > 1
        self._began, self._spent = monotonic(), 0.0

    def write(self, engine: Engine) -> tuple[list[int], list[int]] | None:
        """Return the token ids of the prompt and of its continuation, which ends early where the time is used up; None
        without any, and for engines that have no whole network here."""
        if not self._possible or type(engine) is not NativeEngine or not isinstance(engine.network, GPT):
            return None
        began = monotonic()
        left = SHARE * (began - self._began) - self._spent
        written: list[int] = []
        with evaluating(engine.network):
            for token in stream_tokens(
                engine.network, self._prompt, SAMPLING, max_new_tokens=MOST_TOKENS, stop=self._end
            ):
                written.append(token)
                if monotonic() - began >= left:
                    break
        self._spent += monotonic() - began
        return (self._prompt, written) if written else None
