"""The common parts of the experiments: servers, measured processes, samples."""
