"""The same statistics and score blocks where the data are: `duoplda.engines.dask` on a cluster."""
