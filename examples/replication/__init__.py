"""The replication study of the papers on Bayesian geometry: claims, comparisons of trainings, and stored results.

It uses public names of `bayesgeom` only, and runs from a clone: `python -m examples.replication --help`.
"""
