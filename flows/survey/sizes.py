"""Sizes for a first recipe, chosen from the amount of text: vocabulary, network, budget."""

from dataclasses import dataclass

BYTES_PER_TOKEN = 3.5
BYTES_PER_PIECE = 300
"""Text for each piece of the vocabulary, so that rare pieces are still seen often enough to be learnt."""
SMALLEST_VOCABULARY, LARGEST_VOCABULARY = 512, 32_768
RESERVED_PIECES = 300
"""Special and byte pieces, and some room for merges."""
EPOCHS = 4
TOKENS_PER_PARAMETER = 20


@dataclass(frozen=True)
class Network:
    """A network by its sizes; parameters without the embedding's."""

    context: int
    layers: int
    heads: int
    width: int

    def parameters(self, vocab_size: int) -> int:
        """12 L D^2 of the blocks and V D of the embedding, to within a percent."""
        return 12 * self.layers * self.width**2 + vocab_size * self.width


NETWORKS = (
    Network(128, 2, 2, 64),
    Network(256, 4, 4, 128),
    Network(256, 4, 4, 224),
    Network(512, 6, 6, 384),
    Network(512, 8, 8, 512),
    Network(1024, 12, 12, 768),
    Network(1024, 24, 16, 1024),
)


@dataclass(frozen=True)
class Sizes:
    """What the recipe begins with."""

    tokens: int
    vocab_size: int
    network: Network
    budget_tokens: int


def choose_sizes(text_bytes: float, characters: int) -> Sizes:
    """The largest network that the text, read up to four times, feeds with 20 tokens a parameter."""
    tokens = max(1, round(text_bytes / BYTES_PER_TOKEN))
    vocabulary = SMALLEST_VOCABULARY
    while vocabulary < LARGEST_VOCABULARY and 2 * vocabulary * BYTES_PER_PIECE <= text_bytes:
        vocabulary *= 2
    while vocabulary < RESERVED_PIECES + characters:
        vocabulary *= 2
    fed = tokens * EPOCHS / TOKENS_PER_PARAMETER
    network = max(
        (net for net in NETWORKS if net.parameters(vocabulary) <= fed), key=NETWORKS.index, default=NETWORKS[0]
    )
    budget = min(tokens * EPOCHS, TOKENS_PER_PARAMETER * network.parameters(vocabulary))
    return Sizes(tokens, vocabulary, network, max(budget, 2 * network.context))
