"""In the job: the training engine. The package itself imports nothing heavy, so that `tuneplane.training.warning` can be imported first."""
