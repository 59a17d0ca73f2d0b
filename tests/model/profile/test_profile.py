"""The profile of a step: work against formulas, shares that add up, findings on steps made to have them."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from model.config.network import BERTConfig, GPTConfig, T5Config
from model.config.train import TrainerRun
from model.errors import InputError, RecipeError
from model.nn.bert import BERT
from model.nn.gpt import GPT
from model.nn.t5 import T5
from model.profile.modules import (
    ACTIVATION_RANGES,
    ATTENTION,
    EMBEDDING,
    HEAD,
    MLP,
    NORMS,
    OperationCounter,
    PartCost,
    bytes_of,
    part_of_module,
    size_of,
)
from model.profile.report import as_json, findings_of, table
from model.profile.roofline import Machine, clock_for
from model.profile.step import Shape, StepProfile, profile_step
from tests.command import invoke
from tests.model.pretended_cuda import pretended_cuda

PROJECT = Path(__file__).resolve().parents[3]
MACHINE = Machine(flops_s=1e11, bytes_s=1e10, threads=1, dtype="float32")
ROWS, T, D, F_, V, LAYERS = 2, 16, 16, 64, 48, 2
"""The network of `make_run`: two rows of 16 tokens a step."""


@pytest.fixture(scope="module")
def profile(build_run, tmp_path_factory: pytest.TempPathFactory) -> StepProfile:
    return profile_step(build_run(tmp_path_factory.mktemp("profile")), steps=2, machine=MACHINE)


def flops(profile: StepProfile) -> dict[tuple[str, str], float]:
    return {(cost.part, cost.phase): cost.flops for cost in profile.parts if cost.flops}


def named(profile: StepProfile) -> list[str]:
    return [finding.name for finding in findings_of(profile)]


def test_the_work_of_each_part_is_that_of_its_matrices(profile: StepProfile) -> None:
    tokens = ROWS * T
    projections = 2 * tokens * 4 * D * D * LAYERS
    scores = 4 * ROWS * T * T * D * LAYERS
    mlp = 2 * tokens * 2 * D * F_ * LAYERS
    head = 2 * tokens * V * D
    assert flops(profile) == {
        ("attention", "forward"): projections + scores,
        # Attention makes its scores again on the way back: five products for two.
        ("attention", "backward"): 2 * projections + 2.5 * scores,
        # One of its two products for four queries of each row and head.
        ("activation ranges", "forward"): scores / 2 * 4 / T,
        ("MLP", "forward"): mlp,
        ("MLP", "backward"): 2 * mlp,
        ("head and loss", "forward"): head,
        ("head and loss", "backward"): 2 * head,
    }


def test_every_part_is_seen_in_its_phases(profile: StepProfile) -> None:
    phases: dict[str, set[str]] = {}
    for cost in profile.parts:
        phases.setdefault(cost.part, set()).add(cost.phase)
        assert cost.operations > 0
        assert cost.bytes > 0
    both = {"forward", "backward"}
    assert phases == {
        "batch": {"forward"},
        "embedding": both,
        "norms": both,
        "attention": both,
        "MLP": both,
        "head and loss": both,
        "activation ranges": {"forward"},
        "clipping": {"update"},
        "optimizer": {"update"},
    }


def test_shares_add_up_to_the_step(profile: StepProfile) -> None:
    parts = sum(cost.seconds for cost in profile.parts)
    assert parts + profile.loader_seconds + profile.between_seconds == pytest.approx(profile.seconds)
    assert min(profile.loader_seconds, profile.seconds) > 0
    assert profile.between_seconds >= 0
    assert profile.slowdown > 1


def test_model_flops_count_attention_and_every_weight_six_times(profile: StepProfile) -> None:
    weights = V * D + LAYERS * (4 * D * D + 4 * D + 2 * D * F_ + F_ + D + 4 * D) + 4 * D
    assert profile.model_flops == ROWS * T * (6 * weights + 12 * LAYERS * D * T)


def test_the_update_reads_and_writes_each_weight_with_its_moments(profile: StepProfile) -> None:
    (update,) = profile.of_part("optimizer")
    weights = V * D + LAYERS * (4 * D * D + 4 * D + 2 * D * F_ + F_ + D + 4 * D) + 4 * D
    # Weight and two moments both ways, gradient one way, and a counter for each of the 26 tensors.
    assert update.bytes == pytest.approx(4 * 7 * weights, rel=0.02)


def test_a_bound_is_below_what_the_work_takes_on_a_slower_machine(profile: StepProfile, make_run) -> None:
    slower = Machine(flops_s=1e10, bytes_s=1e9, threads=1, dtype="float32")
    same = profile_step(make_run("other"), steps=1, machine=slower)
    for cost, other in zip(profile.parts, same.parts, strict=True):
        assert other.bound_seconds == pytest.approx(10 * cost.bound_seconds)
    assert MACHINE.ridge == slower.ridge == 10
    assert MACHINE.bound_seconds(flops=2e11, moved=1e10) == 2
    assert MACHINE.bound_seconds(flops=2e11, moved=3e10) == 3


def test_a_huge_vocabulary_is_found(make_run, profile: StepProfile) -> None:
    assert "oversized head" not in named(profile)
    run: TrainerRun = make_run("huge")
    run = run.model_copy(update={"model": run.model.model_copy(update={"vocab_size": 3000})})
    huge = profile_step(run, steps=1, machine=MACHINE)
    (finding,) = (one for one in findings_of(huge) if one.name == "oversized head")
    head = sum(cost.flops for cost in huge.of_part(HEAD))
    assert finding.value == head / huge.flops
    assert finding.value > 0.8
    assert "3,000 tokens at a width of 16" in finding.words
    # A head of a quarter is to the rest as one to three.
    balanced = round(3000 * (huge.flops - head) / 3 / head)
    assert f"about {balanced:,} tokens" in finding.words


def test_attention_within_documents_is_the_same_work(make_run, profile: StepProfile) -> None:
    run: TrainerRun = make_run("documents")
    model = run.model.model_copy(update={"attend_within_documents": True})
    within = profile_step(run.model_copy(update={"model": model, "eos": 5}), steps=1, machine=MACHINE)
    assert flops(within) == flops(profile)
    (batch,) = within.of_part("batch")
    (without,) = profile.of_part("batch")
    assert batch.operations > without.operations, "the mask is made before the network runs"


def test_a_step_of_short_operations_is_found(profile: StepProfile) -> None:
    def with_share(share: float) -> StepProfile:
        # Whether one operation takes less than 20 microseconds depends on the machine, so the times are given.
        parts = tuple(replace(cost, small_seconds=share * cost.seconds) for cost in profile.parts)
        seconds = sum(cost.seconds for cost in parts)
        return replace(profile, parts=parts, seconds=seconds, loader_seconds=0.0, between_seconds=0.0)

    assert all(0 <= cost.small_seconds <= cost.seconds for cost in profile.parts)
    assert "small operations" not in named(with_share(0.29))
    (finding,) = (one for one in findings_of(with_share(0.31)) if one.name == "small operations")
    assert finding.value == pytest.approx(0.31)


def test_a_run_of_ranks_is_measured_as_one_of_them_and_leaves_no_trace(make_run) -> None:
    run: TrainerRun = make_run("ranks", ranks=2)
    before = torch.are_deterministic_algorithms_enabled()
    one = profile_step(run, steps=1, machine=MACHINE)
    assert one.tokens == T
    assert not run.out.exists()
    assert torch.are_deterministic_algorithms_enabled() == before


def test_padding_at_the_ends_of_rows_is_counted(make_run) -> None:
    # Of the rows 0, 7, 4, 1, 8, 5, 2, ... only row 2 is padded, from its sixth token of 17 on.
    run: TrainerRun = make_run("padded", positions=7, batch_rows=7, micro_batch_rows=7)
    profile = profile_step(run, steps=1, machine=MACHINE)
    assert profile.padding_share == pytest.approx(12 / (7 * 17))
    (finding,) = (one for one in findings_of(profile) if one.name == "padding")
    assert finding.words.startswith("10% of the rows' tokens are padding")


def test_an_order_that_reads_nothing_is_an_error(make_run) -> None:
    with pytest.raises(InputError, match="lists no rows"):
        profile_step(make_run("empty", positions=0), steps=1, machine=MACHINE)


def test_tokens_that_the_model_has_no_row_for_are_an_error(make_run) -> None:
    run: TrainerRun = make_run("small")
    run = run.model_copy(update={"model": run.model.model_copy(update={"vocab_size": 20})})
    with pytest.raises(InputError, match="but the model has 20 tokens"):
        profile_step(run, steps=1, machine=MACHINE)


def test_new_rows_alone_are_refused(make_run) -> None:
    run: TrainerRun = make_run("rows")
    run = run.model_copy(update={"train": run.train.model_copy(update={"trainable": "new_rows"})})
    with pytest.raises(RecipeError, match="trainable is new_rows"):
        profile_step(run, steps=1, machine=MACHINE)


def test_a_run_on_a_device_is_not_measured_on_the_processor(make_run) -> None:
    with pretended_cuda(), pytest.raises(RecipeError, match="device is cuda, and the profile measures processors"):
        profile_step(make_run("device", device="cuda", compile=False), steps=1, machine=MACHINE)


def work_of(network: nn.Module, loss: Callable[[], Tensor]) -> dict[tuple[str, str], float]:
    """FLOPs by part and phase of one pass forward and backward."""
    counter = OperationCounter(network, MACHINE, clock_for(1))
    with counter:
        loss().backward()
    return {place: cost.flops for place, cost in counter.costs.items()}


class OtherBlock(nn.Module):
    """A block of another make: other names, attention as a module."""

    def __init__(self) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(8)
        self.attn = nn.Linear(8, 8, bias=False)
        self.ffn = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.ffn(F.gelu(self.attn(self.ln_1(x))))


class Stack(nn.Module):
    """Two such blocks, computed again on the way back."""

    def __init__(self) -> None:
        super().__init__()
        self.wte = nn.Embedding(10, 8)
        self.h = nn.ModuleList([OtherBlock(), OtherBlock()])
        self.lm_head = nn.Linear(8, 10, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.wte(tokens)
        for block in self.h:
            x = checkpoint(block, x, use_reentrant=False)
        return self.lm_head(x)


def test_work_done_again_is_backward_work_of_its_part() -> None:
    network = Stack()
    work = work_of(network, lambda: network(torch.arange(10).view(2, 5)).sum())
    product = 2 * 10 * 8 * 8
    assert {key: value for key, value in work.items() if value} == {
        ("attention", "forward"): 2 * product,
        ("attention", "backward"): 6 * product,
        ("MLP", "forward"): 2 * product,
        # Its product is the block's last, and no gradient asks for that one's result again.
        ("MLP", "backward"): 4 * product,
        ("head and loss", "forward"): 2 * 10 * 10 * 8,
        ("head and loss", "backward"): 4 * 10 * 10 * 8,
    }
    assert ("norms", "backward") in work
    assert ("embedding", "backward") in work


@pytest.mark.parametrize("qk_norm", ["none", "head", "all"])
def test_attention_on_normalised_queries_is_no_norm(qk_norm: str) -> None:
    settings = {"vocab_size": 30, "context": 12, "layers": 2, "heads": 2, "width": 8, "qk_norm": qk_norm}
    network = GPT(GPTConfig.model_validate(settings)).initialise(1)
    work = work_of(network, lambda: network.hidden(torch.arange(24).view(2, 12)).sum())
    projections, scores = 2 * 24 * 4 * 8 * 8 * 2, 4 * 2 * 12 * 12 * 8 * 2
    assert work["attention", "forward"] == projections + scores
    assert work["attention", "backward"] == 2 * projections + 2.5 * scores
    assert work["norms", "forward"] == work["norms", "backward"] == 0


def test_experts_are_the_mlp_of_their_block() -> None:
    settings = {"vocab_size": 30, "context": 12, "layers": 2, "heads": 2, "width": 8, "experts": 4}
    network = GPT(GPTConfig.model_validate(settings)).initialise(1)
    work = work_of(network, lambda: network.hidden(torch.arange(24).view(2, 12)).sum())
    # The router has a column for each expert; each of 24 tokens has two experts of three matrices of 8 x 24.
    products = 2 * (2 * 24 * 8 * 4 + 2 * (2 * 24) * 3 * 8 * 24)
    assert (work["MLP", "forward"], work["MLP", "backward"]) == (products, 2 * products)
    assert work["norms", "forward"] == work["norms", "backward"] == 0


def test_the_parts_of_an_encoder_with_two_heads() -> None:
    config = BERTConfig(vocab_size=30, context=12, layers=2, heads=2, width=8)
    network = BERT(config).initialise(1)
    tokens = torch.arange(24).view(2, 12)
    positions = torch.tensor([[1, 5, 7], [2, 3, 11]])

    def loss() -> Tensor:
        hidden = network.hidden(tokens, torch.zeros_like(tokens), torch.ones(2, 12, dtype=torch.bool), ranges=[])
        return network.masked_logits(hidden, positions).logsumexp(2).sum() + network.next_logits(hidden).sum()

    work = work_of(network, loss)
    projections, scores = 2 * 24 * 4 * 8 * 8 * 2, 4 * 2 * 12 * 12 * 8 * 2
    # Six hidden tokens pass a matrix of width x width and the table, two [CLS] one such matrix and one of two columns.
    head = 2 * (6 * (8 * 8 + 8 * 30) + 2 * (8 * 8 + 8 * 2))
    assert {key: value for key, value in work.items() if value} == {
        ("attention", "forward"): projections + scores,
        ("attention", "backward"): 2 * projections + 2.5 * scores,
        # As one product for both heads, with zeros for the other one's keys.
        ("activation ranges", "forward"): 2 * scores / 2 * 4 / 12,
        ("MLP", "forward"): 2 * 24 * 2 * 8 * 32 * 2,
        ("MLP", "backward"): 2 * 2 * 24 * 2 * 8 * 32 * 2,
        ("head and loss", "forward"): head,
        ("head and loss", "backward"): 2 * head,
    }
    assert ("activation ranges", "backward") not in work


def test_the_parts_of_an_encoder_and_a_decoder() -> None:
    network = T5(T5Config(vocab_size=30, layers=1, heads=2, width=8)).initialise(1)
    inputs, outputs = torch.arange(24).view(2, 12), torch.arange(10).view(2, 5)
    seen = torch.ones(2, 12, dtype=torch.bool)

    def loss() -> Tensor:
        encoded = network.encode(inputs, seen, ranges=[])
        return network.logits(network.decode(outputs, encoded, seen, ranges=[])).logsumexp(2).sum()

    work = work_of(network, loss)
    # 24 tokens of the encoder and 10 of the decoder; cross attention has its queries from these, its keys from those.
    projections = 2 * 8 * 8 * (4 * 24 + 4 * 10 + 2 * 10 + 2 * 24)
    scores = 4 * 2 * 8 * (12 * 12 + 5 * 5 + 5 * 12)
    assert work["attention", "forward"] == projections + scores
    assert work["activation ranges", "forward"] == 2 * (2 * 2 * 8 * 4 * (12 + 5 + 12))
    assert work["MLP", "forward"] == 2 * (24 + 10) * 2 * 8 * 32
    assert work["MLP", "backward"] == 2 * work["MLP", "forward"]
    assert work["head and loss", "forward"] == 2 * 10 * 8 * 30
    assert work["head and loss", "backward"] == 2 * work["head and loss", "forward"]
    assert ("embedding", "backward") in work
    assert ("activation ranges", "backward") not in work


@pytest.mark.parametrize(
    ("path", "part"),
    [
        ("blocks.0", None),
        ("blocks.0.attention_in", ATTENTION),
        ("blocks.11.attention_norm", NORMS),
        ("blocks.3.mlp_out", MLP),
        ("blocks.3.score_range", ACTIVATION_RANGES),
        ("embedding", EMBEDDING),
        ("embedding_norm", NORMS),
        ("final_norm", NORMS),
        ("decoder.layers.0.cross_attention.query", ATTENTION),
        ("decoder.layers.0.cross_attention.relative_bias", ATTENTION),
        ("mlm_head.norm", HEAD),
        ("lm_head", HEAD),
        ("position_embeddings", EMBEDDING),
        ("transformer.h.0.ln_1", NORMS),
        ("transformer.wte", EMBEDDING),
        ("norm_study.blocks.0.mlp_in", MLP),
    ],
)
def test_parts_are_recognised_by_names_of_modules(path: str, part: str | None) -> None:
    assert part_of_module(path) == part


def test_bytes_are_those_that_go_in_and_out() -> None:
    aten = torch.ops.aten
    one, other = torch.ones(5, 4), torch.ones(5, 4)
    assert bytes_of(aten.add.Tensor, (one, other), {}, one + other) == 3 * 80
    assert bytes_of(aten.add_.Tensor, (one, other), {}, one) == 3 * 80
    assert bytes_of(aten.copy_.default, (one, other), {}, one) == 2 * 80
    # A lookup of three rows of a table of a thousand: three numbers, three rows read and written.
    found = torch.ones(3, 4)
    assert bytes_of(aten.embedding.default, (torch.ones(1000, 4), torch.arange(3)), {}, found) == 3 * 8 + 2 * 48
    assert size_of(torch.ones(4).expand(100, 4)) == 16
    assert size_of(torch.ones(0, 4)) == 0


def cost(part: str, seconds: float, flops: float = 0.0, small: float = 0.0) -> PartCost:
    return PartCost(part, "forward", seconds, seconds / 2, flops, 1e6, 10, small)


WELL = StepProfile(
    seconds=1.0,
    loader_seconds=0.01,
    between_seconds=0.09,
    parts=(cost("MLP", 0.6, 60e9), cost(HEAD, 0.2, 20e9), cost("optimizer", 0.1)),
    slowdown=1.5,
    tokens=8192,
    padding_share=0.01,
    model_flops=8e10,
    shape=Shape(
        vocabulary=32000, width=512, hidden=2048, layers=8, context=512, micro_batch_rows=8, batch_rows=16,
        element_bytes=4,
    ),
    machine=MACHINE,
)  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "names"),
    [
        ({}, []),
        ({"padding_share": 0.06}, ["padding"]),
        ({"between_seconds": 0.31}, ["small operations"]),
        ({"loader_seconds": 0.06}, ["slow loader"]),
        ({"slowdown": 0.9}, ["busy machine"]),
        ({"parts": (cost("MLP", 0.6, 60e9), cost("optimizer", 0.1), cost("clipping", 0.06))}, ["small batch"]),
        ({"parts": (cost("MLP", 0.6, 60e9, small=0.25),)}, ["small operations"]),
        ({"parts": (cost("MLP", 0.6, 59e9), cost(HEAD, 0.2, 41e9))}, ["oversized head"]),
        # 16 tokens against matrices of 512 x 2048: 16 x 2 / 4 bytes, less what the activations add.
        ({"shape": replace(WELL.shape, context=16, micro_batch_rows=1)}, ["small micro-batch"]),
        # No batch makes a network of this width busy: that is not the micro-batch's fault.
        ({"shape": replace(WELL.shape, width=8, hidden=32, context=16, micro_batch_rows=1)}, []),
        # Nor is there a larger micro-batch than the whole batch.
        ({"shape": replace(WELL.shape, context=16, micro_batch_rows=1, batch_rows=1)}, []),
    ],
)
def test_findings_follow_their_limits(changed: dict, names: list[str]) -> None:
    assert named(replace(WELL, **changed)) == names


def test_the_table_names_parts_findings_and_the_machine() -> None:
    text = table(WELL, findings_of(WELL))
    assert "8,192 tokens/s (" in text
    assert "MFU" not in text
    assert "100 GFLOP/s" in text
    assert "10.0 FLOP/B keep it busy" in text
    # 20 of 80 GFLOP and 0.2 of 1 s; the embedding only looks up.
    assert "head and embedding: 25.0% of the arithmetic, 20.0% of the time" in text
    (head,) = (line for line in text.splitlines() if line.startswith("head and loss"))
    assert head.split() == ["head", "and", "loss", "forward", "200.00", "20.0%", "20.000", "1.0", "20000.0", "50%",
                            "10", "########"]  # fmt: skip
    assert text.endswith("no finding: head, rows, operations and batch are balanced")
    padded = replace(WELL, padding_share=0.5)
    assert table(padded, findings_of(padded)).splitlines()[-1].startswith("! padding: 50% of the rows' tokens")


def test_json_holds_every_number_and_the_shares() -> None:
    reported = json.loads(json.dumps(as_json(WELL, findings_of(replace(WELL, padding_share=0.5)))))
    assert [part["share"] for part in reported["parts"]] == [0.6, 0.2, 0.1]
    assert "mfu" not in reported
    assert reported["findings"][0]["name"] == "padding"
    assert reported["machine"]["flops_s"] == 1e11


def test_the_command_prints_json_and_writes_a_trace(make_run, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(make_run().model_dump_json())
    done = invoke("model", "profile", path, "--steps", "1", "--json", "--trace", tmp_path / "step.json")
    reported = json.loads(done.stdout)
    within = sum(part["seconds"] for part in reported["parts"])
    assert math.isclose(within + reported["loader_seconds"] + reported["between_seconds"], reported["seconds"])
    assert reported["machine"]["flops_s"] > reported["machine"]["bytes_s"] > 0
    traced = {event.get("name") for event in json.loads((tmp_path / "step.json").read_text())["traceEvents"]}
    assert {"aten::addmm", "AddmmBackward0", "aten::_fused_adamw_"} <= traced


def test_a_trace_that_cannot_be_written_is_an_error_before_the_measurement(make_run, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(make_run().model_dump_json())
    for trace, reason in ((tmp_path, "Is a directory"), (tmp_path / "no" / "step.json", "No such file or directory")):
        refused = invoke("model", "profile", path, "--trace", trace, code=3)
        assert f"--trace {trace}: cannot be written ({reason})" in " ".join(refused.stderr.split())


def test_the_command_says_what_is_wrong_with_its_run(tmp_path: Path) -> None:
    missing = invoke("model", "profile", tmp_path / "nothing.json", code=3)
    assert missing.stderr.startswith("InputError: there is no file")
    (tmp_path / "run.json").write_text('{"ordre": 1}')
    assert "ordre" in invoke("model", "profile", tmp_path / "run.json", code=2).stderr
    invoke("model", "profile", tmp_path / "run.json", "--steps", "0", code=2)
