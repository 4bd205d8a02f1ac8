"""What benchmarks stand on: accounting, reports, sources, sinks, baselines. No question is asked here."""
