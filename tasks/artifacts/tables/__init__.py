"""The tables of artifacts: their schemas and rows, their files and columns, the ledger, and a map over their parts."""
