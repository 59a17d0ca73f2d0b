"""Tokenizers: SentencePiece, byte-level BPE and WordPiece vocabularies, and a compiled encoder for the first kind.

`open.py` opens a vocabulary of any kind. The compiled encoder (`encoder.py`) gives the same ids as SentencePiece,
directly from Arrow's buffers. A token that spans two neighbouring characters needs a piece that contains these two next
to each other. So a text can be cut, without changing any id, between two characters that are adjacent in no piece: into
words where words are separated by spaces, into short runs in Chinese. Each span is looked up in a cache of spans and
their ids; a missing one is merged (BPE: Sennrich et al., 2016) or segmented (Unigram: Kudo, 2018) by a kernel. No
Python object is made for a token, and no result depends on the content of the cache. `pieces.py` decides which models
the kernels support; the library encodes with the others."""
