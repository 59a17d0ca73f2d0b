"""Text from a trained model, found by run or by the folder of a MODEL artifact."""

from pathlib import Path

from flows.lineage import open_run, run_artifacts
from model.errors import InputError
from tasks.artifact import MANIFEST, Artifact


def find_model(root: Path, model: str) -> tuple[Artifact, Artifact]:
    """The MODEL and TOKENIZER artifacts of a run, or of a MODEL folder under the same root."""
    folder = Path(model)
    if (folder / MANIFEST).exists():
        trained = Artifact.open(folder)
        parent = trained.manifest["parents"].get("vocab")
        if parent is None:
            raise InputError(f"generate {model}: this is an artifact of the stage `{trained.stage}`, not a model")
        return trained, Artifact.open(folder.parent.parent / parent["stage"] / parent["identity"])
    artifacts = run_artifacts(open_run(root, model, needs="train"))
    if "train" not in artifacts:
        raise InputError(f"generate {model}: this run ended before training; choose another with `bessemer ls`")
    return artifacts["train"], artifacts["vocab"]


def continue_text(
    root: Path, model: str, prompt: str, *, tokens: int, temperature: float, top_p: float, seed: int
) -> str:
    """At most `tokens` tokens that the model writes after `prompt`; the same text for the same seed."""
    trained, vocab = find_model(root, model)
    from model.generate import generate_tokens
    from model.weights import load_gpt
    from tasks.tokenizer import Tokenizer

    tokenizer = Tokenizer.open(vocab)
    network = load_gpt(trained.path)
    ids = tokenizer.encode(prompt) if prompt else [tokenizer.eos]
    written = generate_tokens(
        network, ids, max_new_tokens=tokens, temperature=temperature, top_p=top_p, seed=seed, stop=tokenizer.eos
    )
    return tokenizer.decode_following(written) if prompt else tokenizer.decode(written)
