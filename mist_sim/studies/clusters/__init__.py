"""Studies on clusters: Dask and Ray, which others run, do the tasks in place of processes here."""

from mist_sim.studies.clusters.addresses import executor_at

__all__ = ["executor_at"]
