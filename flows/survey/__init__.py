"""What files of text hold, learned from a little of each: formats, records, fields, languages, encodings."""
