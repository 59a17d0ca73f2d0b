"""Choose vocabulary, network and budget of a new recipe together, from the amount of text.

A text of B bytes has B / b tokens, with b the bytes of a token of the vocabulary; read up to four times, which is
almost as good as new text (Muennighoff et al. 2023), it is enough for a network with a twentieth as many parameters
(Hoffmann et al. 2022). The embedding gets the share of the parameters that is best for the blocks (Tao et al. 2024,
"Scaling Laws with Vocabulary", approach 1: embedding parameters grow as the power .83 of all others; 39K entries of
width 3,200 for 3B). So small networks get small vocabularies, and most of their parameters are in the blocks.

A published model that is trained further has vocabulary and network; the text decides the budget alone, by the tokens
that its vocabulary gives samples of it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from model.config.network import GPTConfig
from model.config.rules import has_position_table
from model.errors import InputError
from model.model_files import SETTINGS, is_published

EPOCHS = 4

TOKENS_PER_PARAMETER = 20

BYTES_PER_TOKEN_BIT = 3.5
"""A token of a vocabulary of V entries has about log2(V) / 3.5 bytes. BPE of English and Italian prose and
documentation: 2,048 entries 2.8 to 3.3 bytes (this rule: 3.1), 4,096 3.2 to 3.7 (3.4), 16,384 4.0 to 4.2 (4.0);
Russian 1.6 times as many, Chinese .8 times."""

EMBEDDING_POWER = 0.83

EMBEDDING_FACTOR = 39_000 * 3200 / 3e9**EMBEDDING_POWER

SMALLEST_VOCABULARY, LARGEST_VOCABULARY = 512, 32_768

RESERVED_PIECES = 300
"""Special and byte tokens, and some merges, beside the characters."""

LONGEST_ROW = 1024
"""Tokens of a row of a base model that could read longer ones; memory grows with them."""


@dataclass(frozen=True)
class Network:
    """The sizes of a network."""

    context: int
    layers: int
    heads: int
    width: int

    @property
    def block_parameters(self) -> int:
        """Parameters of all matrices in blocks: attention 4 D^2, gated MLP 3 D F."""
        sizes = GPTConfig(context=self.context, layers=self.layers, heads=self.heads, width=self.width)
        return self.layers * (4 * self.width**2 + 3 * self.width * sizes.hidden)

    def parameters(self, vocab_size: int) -> int:
        """Return the parameters of blocks and embedding; norms are left out."""
        return self.block_parameters + vocab_size * self.width


NETWORKS = (
    Network(128, 2, 2, 64),
    Network(256, 3, 3, 96),
    Network(256, 4, 4, 128),
    Network(256, 5, 5, 160),
    Network(256, 6, 6, 192),
    Network(512, 6, 8, 256),
    Network(512, 6, 6, 384),
    Network(512, 8, 8, 512),
    Network(1024, 10, 10, 640),
    Network(1024, 12, 12, 768),
    Network(1024, 24, 16, 1024),
)


@dataclass(frozen=True)
class PublishedModel:
    """A published model that is trained further."""

    folder: Path
    vocabulary: Path
    architecture: str
    vocab_size: int
    parameters: int
    longest_row: int
    """Tokens of the longest row that it reads."""
    context: int
    """Tokens of a row of the training."""


@dataclass(frozen=True)
class Sizes:
    """The sizes of a new recipe, and the base model if it has one."""

    tokens: int
    """Tokens of the text, read once."""
    vocab_size: int
    network: Network | PublishedModel
    budget_tokens: int
    """Tokens that training reads, repetitions included."""
    bytes_per_token: float
    """Bytes of text in a token."""

    @property
    def parameters(self) -> int:
        """Parameters of blocks and embedding."""
        if isinstance(self.network, PublishedModel):
            return self.network.parameters
        return self.network.parameters(self.vocab_size)


def read_base_model(folder: Path) -> PublishedModel:
    """Return the published model in a folder; raise InputError where it is none that can be trained further here."""
    from model.huggingface.io import open_published
    from model.nn.factory import parameter_count
    from tasks.train.base_model import vocabulary_of_base

    if not is_published(folder):
        problem, download = f"has no {SETTINGS}", ""
        if not folder.exists():
            problem = "does not exist"
            if len(folder.parts) == 2 and not folder.is_absolute():
                download = f" One of the Hugging Face hub is copied by `hf download {folder} --local-dir FOLDER`."
        elif not folder.is_dir():
            problem = "is a file"
        raise InputError(
            f"--base-model {folder} {problem}. Name the folder of a published model, with {SETTINGS}, weights and"
            f" vocabulary.{download} For a model of an earlier run, docs/continue_training.md has the recipe."
        )
    network, vocabulary = open_published(folder).config, vocabulary_of_base(folder)
    if vocabulary is None:
        raise InputError(f"--base-model {folder} has no vocabulary that can be read here. Copy the whole folder.")
    context = network.context if has_position_table(network) else min(network.context, LONGEST_ROW)
    return PublishedModel(
        folder.absolute(),
        vocabulary[0],
        network.architecture,
        network.vocab_size,
        parameter_count(network),
        network.context,
        context,
    )


def sizes_with_base(base: PublishedModel, texts: Sequence[tuple[float, Sequence[str]]]) -> Sizes:
    """Return the sizes of a training that continues from `base`, with a budget as for a new network.

    `texts` has the bytes of text of each source and samples of it. A vocabulary trained on other languages may need
    several times as many tokens as one of the text itself, so its tokens are counted in the samples.
    """
    text_bytes = sum(size for size, _ in texts)
    per_source = _bytes_per_token_of(base, [samples for _, samples in texts])
    exact = sum(size / each for (size, _), each in zip(texts, per_source, strict=True))
    tokens = max(1, round(exact))
    budget = min(EPOCHS * tokens, TOKENS_PER_PARAMETER * base.parameters)
    of_token = text_bytes / exact if exact else bytes_per_token(base.vocab_size)
    return Sizes(tokens, base.vocab_size, base, max(budget, 2 * base.context), of_token)


def _bytes_per_token_of(base: PublishedModel, sources: Sequence[Sequence[str]]) -> list[float]:
    """Return for the samples of each source the bytes of a token in the vocabulary of `base`; the estimate where there
    are none, or the vocabulary cannot be read, which the checks of the recipe report."""
    from tasks.tokenizer.released import read_base
    from tasks.vocab.comparison import TokenCounter
    from tasks.vocab.extenders import kind_of

    estimate = bytes_per_token(base.vocab_size)
    found: list[float] = []
    try:
        model = read_base(base.vocabulary)
        kind_of(model)
        for samples in sources:
            counter = TokenCounter(model)
            counter.encode([*samples])
            size = sum(len(sample.encode(errors="replace")) for sample in samples)
            found.append(size / counter.tokens if counter.tokens else estimate)
    except (InputError, ValueError):
        return [estimate] * len(sources)
    return found


def sizes(text_bytes: float, characters: int = 0) -> Sizes:
    """Return the sizes with the largest network, of those in `NETWORKS`, that a text of `text_bytes` bytes is enough
    for; the smallest one for less.

    `characters` is the number of different characters, each of which gets an entry of the vocabulary.
    """
    smallest, *others = (_sizes(network, text_bytes, characters) for network in NETWORKS)
    enough = [one for one in others if TOKENS_PER_PARAMETER * one.parameters <= EPOCHS * one.tokens]
    return enough[-1] if enough else smallest


def _sizes(network: Network, text_bytes: float, characters: int) -> Sizes:
    vocabulary = vocabulary_of(network, characters)
    tokens = max(1, round(text_bytes / bytes_per_token(vocabulary)))
    budget = min(EPOCHS * tokens, TOKENS_PER_PARAMETER * network.parameters(vocabulary))
    return Sizes(tokens, vocabulary, network, max(budget, 2 * network.context), bytes_per_token(vocabulary))


def vocabulary_of(network: Network, characters: int = 0) -> int:
    """Return the power of two that is nearest to the best number of entries, large enough for all characters."""
    best = EMBEDDING_FACTOR * network.block_parameters**EMBEDDING_POWER / network.width
    vocabulary = min(LARGEST_VOCABULARY, max(SMALLEST_VOCABULARY, 2 ** round(math.log2(best))))
    while vocabulary < RESERVED_PIECES + characters:
        vocabulary *= 2
    return vocabulary


def bytes_per_token(vocab_size: int) -> float:
    """Return the bytes of text in a token of a vocabulary of `vocab_size` entries."""
    return math.log2(vocab_size) / BYTES_PER_TOKEN_BIT
