"""Vocabulary: DOCUMENTS (+ a base) -> TOKENIZER.

A SentencePiece vocabulary (Kudo and Richardson, 2018; BPE after Sennrich et al., 2016, or Unigram after Kudo, 2018)
trained on the run's own documents, sampled by the sources' weights. The normaliser is the identity and bytes stand in
for characters outside the vocabulary, so every text can be written back exactly.

Or a released vocabulary, extended by rows for new scripts that are found in the run's documents (`extending.py`): the
base's ids and the ids of text without those scripts stay, and every added row can be emitted.

Both kinds may be byte-level instead (Radford et al., 2019), in the format of the library `tokenizers`.

Or WordPiece, as BERT's: cut into words, without blanks.

Out: `tokenizer.model` (SentencePiece's own file), `byte_level.json` or `word_piece.json`; `tokenizer.json` (kind, size,
special ids, digest of the model, and of the base if there is one); `fast_tokenizer.json` (SentencePiece's vocabulary as
other programs read it); `added_pieces` (what new rows stand for in ids of the base).
"""
