"""Prefix language models: drawing of prefixes, masks, loss and generation."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from model.config.network import GPTConfig
from model.config.train import TrainerRun
from model.data.dataset import SequenceReader, open_table
from model.data.loader import PrefixBatch, PrefixLoader
from model.data.row_format import NO_LOSS
from model.distributed.process_group import Ranks
from model.errors import RecipeError
from model.huggingface.registry import fitting_family
from model.inference.scoring import choice_log_probabilities, text_nats
from model.nn.block import KeyValueCache
from model.nn.gpt import GPT, prefix_mask
from model.objectives.base import rank_batch
from model.objectives.causal import PrefixObjective
from model.objectives.synthetic import random_batch
from model.train.trainer import train
from tests.model.forked_trainers import train_in_ranks
from tests.model.inference.reference import continuation_log_probabilities, generate_tokens

PAD, EOS = 3, 2
CONFIG = GPTConfig(vocab_size=48, context=16, layers=2, heads=2, width=16, init_std=0.3, attention="prefix")
TOKENS = torch.randint(4, 48, (5, 17), generator=torch.Generator().manual_seed(2))


def prefix_gpt(**choices: object) -> GPT:
    return GPT(GPTConfig.model_validate(CONFIG.model_dump() | choices)).initialise(1).eval()


@pytest.fixture
def read(tmp_path: Path, write_sequences, write_order):
    def reader(tokens: np.ndarray, rows: list[int], epochs: list[int] | None = None, **columns: object):
        file = write_sequences(tmp_path / "rows.arrow", tokens, **columns)
        return SequenceReader([file], write_order(tmp_path / "order.arrow", rows, epochs))

    return reader


def test_a_prefix_has_any_length_up_to_the_token_before_the_last(read, p_of_counts) -> None:
    batch = PrefixLoader(read(np.full((8000, 17), 5), list(range(8000))), 1, PAD).batch(0, 8000)
    assert 0.01 < p_of_counts(np.bincount(batch.prefix_B)[1:], np.full(16, 1 / 16)) < 0.999
    assert torch.equal(batch.loss_start_B, batch.prefix_B)


def test_padding_is_no_prefix_and_a_later_loss_stays_later(read) -> None:
    tokens = TOKENS.numpy().copy()
    tokens[1, 4:], tokens[2, 1:] = PAD, PAD
    epochs = list(range(60))
    for row, most in ((0, 16), (1, 3), (2, 1)):
        loader = PrefixLoader(read(tokens, [row] * 60, epochs, loss_start=[0] * 5), 1, PAD)
        assert set(loader.batch(0, 60).prefix_B.tolist()) == set(range(1, most + 1))
    batch = PrefixLoader(read(tokens, [3] * 60, epochs, loss_start=[0, 0, 0, 9, 0]), 1, PAD).batch(0, 60)
    assert batch.loss_start_B.tolist() == [max(9, prefix) for prefix in batch.prefix_B.tolist()]


def test_prefixes_are_drawn_by_seed_row_and_epoch_alone(read) -> None:
    rows, epochs = [0, 1, 2, 3, 4] * 4, [epoch for epoch in range(4) for _ in range(5)]
    loader = PrefixLoader(read(TOKENS.numpy(), rows, epochs), 1, PAD)
    whole = loader.batch(0, 20)
    for size in (1, 3, 20):
        parts = [loader.batch(begin, min(begin + size, 20)).prefix_B for begin in range(0, 20, size)]
        assert torch.equal(torch.cat(parts), whole.prefix_B)
    other = PrefixLoader(read(TOKENS.numpy(), rows, epochs), 2, PAD).batch(0, 20)
    assert not torch.equal(other.prefix_B, whole.prefix_B)


def test_pieces_of_a_row_hold_its_prefix_and_all_that_counts() -> None:
    prefix = torch.tensor([1, 4, 5, 16, 8])
    batch = PrefixBatch(TOKENS, prefix, prefix)
    short = batch.shortened(4)
    assert short.prefix_B.view(5, 4).tolist() == [[1, 0, 0, 0], [4, 0, 0, 0], [4, 1, 0, 0], [4, 4, 4, 4], [4, 4, 0, 0]]
    objective = PrefixObjective(PAD, EOS, 1)
    assert objective.counts(short) == objective.counts(batch) == ((17 - prefix).sum(),)


@pytest.mark.parametrize("choices", [{}, {"positions": "relative"}, {"positions": "learned", "norm": "rmsnorm"}])
def test_nats_are_those_of_what_follows_under_the_mask(choices: dict[str, str]) -> None:
    network, prefix = prefix_gpt(**choices), torch.tensor([1, 4, 5, 16, 8])
    batch = PrefixBatch(TOKENS, prefix, prefix)
    sums = PrefixObjective(PAD, EOS, 1).sums(network, batch)
    logits = network.logits(network.hidden(TOKENS[:, :-1], visible_B1TT=prefix_mask(prefix, 16)))
    nats = torch.zeros(())
    for row in range(5):
        begin = int(prefix[row])
        nats = nats + F.cross_entropy(logits[row, begin - 1 :], TOKENS[row, begin:], reduction="sum")
    torch.testing.assert_close(sums.nats[0], nats)
    # What the model must say is not among what it sees.
    changed = TOKENS.clone()
    changed[:, -1] = 51 - changed[:, -1]
    seen = network.hidden(changed[:, :-1], visible_B1TT=prefix_mask(prefix, 16))
    assert torch.equal(network.logits(seen), logits)


def test_the_prefix_is_read_both_ways_and_the_rest_forwards() -> None:
    network, prefix = prefix_gpt(), torch.tensor([6])
    before = network.hidden(TOKENS[:1, :-1], visible_B1TT=prefix_mask(prefix, 16))[0]
    for place in (5, 9):
        changed = TOKENS[:1, :-1].clone()
        changed[0, place] = 51 - changed[0, place]
        moved = (network.hidden(changed, visible_B1TT=prefix_mask(prefix, 16))[0] != before).any(-1)
        assert moved.tolist() == [place < 6 or at >= place for at in range(16)]


def test_a_prefix_reaches_into_no_other_document() -> None:
    network = prefix_gpt(attend_within_documents=True)
    tokens = TOKENS[:1].clone()
    tokens[0, 4] = EOS
    batch = PrefixBatch(tokens, torch.tensor([8]), torch.tensor([8]))
    inputs = PrefixObjective(PAD, EOS, 1).inputs(network, batch)
    visible = inputs["visible_B1TT"][0, 0]
    for query in range(16):
        seen = [key for key in range(16) if visible[query, key]]
        first, last = (0, 3) if query < 4 else (4, max(query, 7))
        assert seen == list(range(first, last + 1))


def test_a_prompt_is_the_prefix_of_what_is_written() -> None:
    network = prefix_gpt(tied_head=False)
    prompt = TOKENS[0, :6].tolist()
    written = generate_tokens(network, prompt, max_new_tokens=8, temperature=0.0)
    for count in range(8):
        seen = torch.tensor([[*prompt, *written[:count]]])
        hidden = network.hidden(seen, visible_B1TT=prefix_mask(torch.tensor([6]), seen.shape[1]))
        assert int(network.logits(hidden)[0, -1].argmax()) == written[count]
    tokens = torch.tensor([prompt])
    forwards, both_ways = network(tokens)[0, -1], network(tokens, KeyValueCache())[0, -1]
    assert not torch.isclose(forwards, both_ways).any()


def test_scores_are_those_of_continuations_behind_a_prefix() -> None:
    network, context = prefix_gpt(), TOKENS[0, :7].tolist()
    continuations = [TOKENS[1, :3].tolist(), TOKENS[2, :1].tolist(), TOKENS[3, :6].tolist()]
    batched = continuation_log_probabilities(network, [(context, one) for one in continuations])
    assert choice_log_probabilities(network, context, continuations) == pytest.approx(batched, rel=1e-5)
    inputs = torch.tensor([[*context, *continuations[2]]])
    hidden = network.hidden(inputs[:, :-1], visible_B1TT=prefix_mask(torch.tensor([7]), 12))
    nats = F.cross_entropy(network.logits(hidden)[0, 6:], inputs[0, 7:], reduction="sum")
    assert batched[2] == pytest.approx(-float(nats.detach()), rel=1e-5)


def test_a_text_alone_is_scored_behind_its_beginning() -> None:
    """One token of prefix is what a causal model sees; longer texts have what is scored already as prefix."""
    network = prefix_gpt()
    causal = GPT(network.config.model_copy(update={"attention": "causal"}))
    causal.load_state_dict(network.state_dict())
    short, long = TOKENS[0, :10].tolist(), TOKENS[:2].flatten().tolist()
    mine, other = text_nats(network, [short, long], EOS), text_nats(causal.eval(), [short, long], EOS)
    assert mine[0] == pytest.approx(other[0], rel=1e-6)
    assert mine[1] != pytest.approx(other[1], rel=1e-6)


def test_targets_before_the_prefix_carry_no_loss() -> None:
    prefix = torch.tensor([1, 4, 5, 16, 8])
    counted = PrefixObjective(PAD, EOS, 1)._targets(PrefixBatch(TOKENS, prefix, prefix)) != NO_LOSS
    assert counted.sum(dim=1).tolist() == [16, 13, 12, 1, 9]
    assert counted[:, -1].all()


def test_shares_of_ranks_add_up_to_the_batch() -> None:
    """Three rows on two ranks in micro-batches of one; the last row is read again without loss."""
    network, objective, prefix = prefix_gpt(), PrefixObjective(PAD, EOS, 1), torch.tensor([3, 9, 16])
    batch = PrefixBatch(TOKENS[:3], prefix, prefix)
    shares = [rank_batch(Ranks(rank, 2), batch, objective, 1) for rank in range(2)]
    assert {share.counted for share in shares} == {objective.counts(batch)} == {(14 + 8 + 1,)}
    parts = [objective.sums(network, one).nats[0] for share in shares for one in share.micro_batches]
    assert len(parts) == 4
    torch.testing.assert_close(sum(parts), objective.sums(network, batch).nats[0])


def test_two_ranks_and_rows_that_grow_train_behind_prefixes(make_run) -> None:
    def behind_prefixes(name: str, **settings: object) -> TrainerRun:
        run = make_run(name, batch_rows=4, positions=40, **settings)
        return run.model_copy(update={"model": run.model.model_copy(update={"attention": "prefix"})})

    alone, both = behind_prefixes("alone"), behind_prefixes("both", ranks=2)
    grows = behind_prefixes("grows", length_warmup={"start_length": 4, "share": 0.5})
    train(alone)
    train(grows)
    train_in_ranks(both)
    losses = {}
    for run in (alone, both, grows):
        losses[run.out.name] = open_table(run.out / "result" / "metrics.arrow").column("loss").to_numpy()
    np.testing.assert_allclose(losses["both"], losses["alone"], rtol=1e-5)
    assert np.isfinite(losses["grows"]).all()
    assert losses["grows"][0] != pytest.approx(losses["alone"][0], rel=1e-6)


def test_a_random_batch_has_prefixes_too() -> None:
    made = random_batch(CONFIG, 40)
    assert set(made.rows.prefix_B.tolist()) <= set(range(1, 17))
    assert made.objective.counts(made.rows) == ((17 - made.rows.prefix_B).sum(),)
    assert torch.isfinite(made.objective.sums(prefix_gpt(), made.rows).nats[0])


def test_no_class_of_transformers_reads_a_prefix() -> None:
    plain = CONFIG.model_dump() | {"embedding_norm": False}
    with pytest.raises(RecipeError, match=r'attention = "prefix"'):
        fitting_family(GPTConfig.model_validate(plain))
