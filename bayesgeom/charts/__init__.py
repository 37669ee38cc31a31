"""Charts: generic figures of stored numbers with axes and units, independent of probes."""
