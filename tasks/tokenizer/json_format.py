"""Read and check the file `tokenizer.json` of the library `tokenizers`."""

import json
from typing import Any

import tokenizers

from model.errors import InputError


def read_tokenizer_json(text: bytes, place: str = "tokenizer") -> dict[str, Any]:
    """Return the content of a `tokenizer.json` whose model has a vocabulary, piece -> id; errors begin with `place`.

    Raises InputError for a damaged file, for other JSON, and for a vocabulary in which two tokens share an id or a
    token has two ids."""
    try:
        parsed = json.loads(text)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(
            f"{place}: this file begins like a tokenizer.json and is not JSON ({error}). It may be truncated:"
            f" download it again."
        ) from error
    model = parsed.get("model") if isinstance(parsed, dict) else None
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if not isinstance(parsed, dict) or not isinstance(vocabulary, dict) or not vocabulary:
        raise InputError(
            f"{place}: this JSON file is no tokenizer.json with pieces and their ids. Byte-level vocabularies (as"
            f" GPT-2's) and WordPiece (as BERT's) are supported; for others use SentencePiece's `.model` file."
        )
    try:
        tokenizers.Tokenizer.from_buffer(text)
    except Exception as error:  # the library raises plain exceptions
        raise InputError(f"{place}: the library `tokenizers` cannot read this tokenizer.json: {error}") from error
    owners = {number: piece for piece, number in vocabulary.items()}
    if len(owners) < len(vocabulary):
        raise InputError(f"{place}: two pieces of this tokenizer.json share an id")
    for token in parsed.setdefault("added_tokens", []):
        name, number = token["content"], token["id"]
        if vocabulary.get(name, number) != number or owners.get(number, name) != name:
            raise InputError(
                f"{place}: the added token `{name}` of this tokenizer.json has the id {number}, and its vocabulary"
                f" says `{owners.get(number, name)}` = {vocabulary.get(name, number)}: the file contradicts itself"
            )
    return parsed
