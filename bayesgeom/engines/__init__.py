"""Engines that run jobs, by name: processes of this machine, SLURM, Ray, Dask."""
