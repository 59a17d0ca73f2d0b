"""What a stage did, seen on a few documents of a run: before and after, chosen by a seed, from artifacts alone."""
