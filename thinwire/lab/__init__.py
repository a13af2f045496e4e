"""Tasks, benchmarks and reports: what the commands run."""
