"""One shelf engine: publish, resolve, switch, seal, audit. What a kind of record is comes in as a `Kind`."""
