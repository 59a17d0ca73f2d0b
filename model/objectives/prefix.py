"""The objective of a prefix language model: how surprised the network is by what follows the beginning of a row."""

from model.data import SequenceReader
from model.loader import PrefixLoader
from model.objectives.causal import CausalObjective


class PrefixObjective(CausalObjective):
    """Each next token behind a prefix of random length, whose tokens see each other both ways (Liu et al. 2018; Raffel
    et al. 2020, section 3.2.1)."""

    def __init__(self, pad: int, eos: int | None, seed: int) -> None:
        super().__init__(pad, eos)
        self._seed = seed

    def loader(self, data: SequenceReader) -> PrefixLoader:
        """Batches of these rows."""
        return PrefixLoader(data, self._seed, self._pad)
