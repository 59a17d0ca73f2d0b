"""Text to token ids in compiled kernels, the same ids that SentencePiece gives, straight from Arrow's buffers.

A token that crosses the border between two characters needs a piece that holds these two side by side. So a text may
be cut, exactly, wherever its two neighbouring characters stand together in no piece: in spaced scripts that gives
words, in Chinese short runs. A cut stretch is looked up in a cache of stretches and their ids; what is not found there
is merged (BPE: Sennrich et al., 2016) or segmented (Unigram: Kudo, 2018) by the kernel itself. No Python object is
made for any token, and no result depends on what the cache holds.

`pieces.py` says which models the kernels read; for all others the library encodes.
"""
