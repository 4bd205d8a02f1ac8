"""Control plane: observe, decide, act, report.

Nothing here imports Ray; the coordinator is reached over HTTP.
"""
