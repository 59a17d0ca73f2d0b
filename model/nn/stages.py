"""Networks in stages: consecutive blocks, with the embedding before the first and the last norm after the last.

Blocks are divided evenly, the remainder to the first stages, since the last one has the head. A weight that several
stages use (a head that is the embedding, a table of relative positions) is held by each of them.

Shapes: B rows, T tokens, D width; T5's encoder reads T tokens and its decoder U.
"""

from typing import Any

from torch import Tensor, nn

from model.config.network import NetworkConfig
from model.nn.activation_stats import activation_range
from model.nn.block import key_mask, run_blocks
from model.nn.dropout import DECODER_EMBEDDING
from model.nn.factory import Network
from model.nn.gpt import GPT
from model.nn.t5 import T5


def block_count(config: NetworkConfig) -> int:
    """Return the number of blocks; T5's encoder comes first."""
    return 2 * config.layers if config.architecture == "t5" else config.layers


def stage_blocks(stage: int, stages: int, blocks: int) -> range:
    """Return the blocks of one stage."""
    base, remainder = divmod(blocks, stages)
    begin = stage * base + min(stage, remainder)
    return range(begin, begin + base + (stage < remainder))


def stages_holding(name: str, config: NetworkConfig, stages: int) -> list[int]:
    """Return the stages that hold a weight, ascending; the first of them is its writer."""
    count = block_count(config)
    stage_of = [stage for stage in range(stages) for _ in stage_blocks(stage, stages, count)]
    top, _, rest = name.partition(".")
    if top in ("blocks", "encoder_blocks", "decoder_blocks"):
        number = int(rest.partition(".")[0])
        return [stage_of[number + (config.layers if top == "decoder_blocks" else 0)]]
    if name == "embedding.weight":
        readers = {0, stage_of[config.layers]} if config.architecture == "t5" else {0}
        is_head_tied = config.architecture == "bert" or config.tied_head
        return sorted(readers | ({stages - 1} if is_head_tied else set()))
    if top == "embedding_encoder_distances":
        return sorted(set(stage_of[: config.layers]))
    if top == "embedding_decoder_distances":
        return sorted(set(stage_of[config.layers :]))
    if top == "embedding_distances":
        return list(range(stages))
    if top == "encoder_norm":
        return [stage_of[config.layers - 1]]
    return [0] if top.startswith(("embedding", "from_embedding")) else [stages - 1]


def keep_stage_weights(network: nn.Module, config: NetworkConfig, stage: int, stages: int) -> None:
    """Remove the weights of other stages from a network."""
    for name, _ in list(network.named_parameters()):
        if stage not in stages_holding(name, config, stages):
            module, _, kind = name.rpartition(".")
            setattr(network.get_submodule(module), kind, None)


def run_stage(
    network: Network, blocks: range, received: tuple[Tensor, ...], inputs: dict[str, Any], ranges: list[Tensor]
) -> list[Tensor]:
    """Return the tensors for the next stage; of the last stage what the head reads, [B, T, D].

    `received` are the previous stage's, none for the first; `inputs` are the objective's for the whole network.
    Activation ranges are appended to `ranges`.
    """
    if isinstance(network, T5):
        return _run_t5(network, blocks, received, inputs, ranges)
    tokens_BT = inputs["tokens_BT"]
    if isinstance(network, GPT):
        context = network.attention_context(0, tokens_BT.shape[1], inputs["visible_B1TT"], tokens_BT.device)
        x_BTD = received[0] if received else _entered(network.enter(tokens_BT), ranges)
    else:
        context = network.attention_context(inputs["is_token_BT"])
        x_BTD = received[0] if received else _entered(network.enter(tokens_BT, inputs["token_types_BT"]), ranges)
    x_BTD = run_blocks(network.blocks[blocks.start : blocks.stop], x_BTD, context, ranges=ranges)
    if blocks.stop < len(network.blocks):
        return [x_BTD]
    return [network.leave(x_BTD) if isinstance(network, GPT) else network.final_norm(x_BTD)]


def _run_t5(
    network: T5, blocks: range, received: tuple[Tensor, ...], inputs: dict[str, Any], ranges: list[Tensor]
) -> list[Tensor]:
    """Run the blocks of a stage: encoder stages return the encoder's stream, decoder stages theirs and the encoder's
    output, the last one its own alone."""
    layers, is_token_BT, tokens_BU = network.config.layers, inputs["is_token_BT"], inputs["decoder_inputs_BU"]
    begin, end = max(blocks.start - layers, 0), max(blocks.stop - layers, 0)
    encoded_BTD = received[-1] if received else _entered(network.enter(inputs["inputs_BT"]), ranges)
    if blocks.start < layers:
        own = network.encoder_blocks[blocks.start : min(blocks.stop, layers)]
        context = network.encoder_context(len(encoded_BTD), encoded_BTD.shape[1], is_token_BT)
        encoded_BTD = run_blocks(own, encoded_BTD, context, ranges=ranges)
        encoded_BTD = network.leave_encoder(encoded_BTD) if blocks.stop >= layers else encoded_BTD
    if not end:
        return [encoded_BTD]
    x_BUD = received[0] if begin else _entered(network.enter(tokens_BU, DECODER_EMBEDDING), ranges)
    context = network.decoder_context(len(tokens_BU), 0, tokens_BU.shape[1])
    block_inputs = (context, None, encoded_BTD, key_mask(is_token_BT))
    x_BUD = run_blocks(network.decoder_blocks[begin:end], x_BUD, *block_inputs, ranges=ranges)
    return [network.leave_decoder(x_BUD)] if end == layers else [x_BUD, encoded_BTD]


def _entered(x: Tensor, ranges: list[Tensor]) -> Tensor:
    ranges.append(activation_range(x))
    return x


def received_streams(config: NetworkConfig, block: int) -> list[str]:
    """Return the inputs from which the streams are computed that the stage beginning with this block receives: the
    residual stream's; for T5 the encoder's, after the decoder's where it has begun."""
    if not block:
        return []
    if config.architecture != "t5":
        return ["tokens_BT"]
    return ["decoder_inputs_BU", "inputs_BT"] if block > config.layers else ["inputs_BT"]


def ranges_before(config: NetworkConfig, block: int) -> int:
    """Return the number of activation ranges before those of a stage that begins with this block."""
    if not block:
        return 0
    # One for the embedding, and two a block; T5's decoder has an embedding too, and a third range a block.
    in_decoder = max(block - config.layers, 0) if config.architecture == "t5" else 0
    return 1 + 2 * block + in_decoder + (in_decoder > 0)
