"""What is done with artifacts beside reading their tables: found, brought from a store, held against their digests."""
