"""The tables kdiff keeps, the SQL that reads them, and the store that runs it. Knows nothing of BPF."""
