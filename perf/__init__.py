"""Benchmarks: one question a file, each with its baseline in the same run. Laws of behaviour are tests."""
