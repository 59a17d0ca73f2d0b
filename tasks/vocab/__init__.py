"""Vocabulary: DOCUMENTS (+ a base vocabulary) -> TOKENIZER.

Four kinds: SentencePiece BPE (Kudo and Richardson 2018; Sennrich et al. 2016) or Unigram (Kudo 2018), byte-level BPE
(Radford et al. 2019), and WordPiece as BERT's (Devlin et al. 2019). Each is trained on the run's own documents, sampled
by the sources' weights. The first three normalise nothing and spell unknown characters in bytes, so that every text can
be decoded exactly; WordPiece splits text into words and loses whitespace.

Or a released vocabulary, extended by tokens for new scripts that occur in the run's documents (`extend.py`): ids of the
base stay, text without those scripts keeps its ids, and every added token can be emitted.

Out: `tokenizer.model` (SentencePiece's own file), `byte_level.json` or `word_piece.json`; `tokenizer.json` (kind, size,
special ids, digests of the model and of its base); `fast_tokenizer.json` (a SentencePiece vocabulary for other
programs); `added_pieces` (each new token as ids of the base).
"""
