"""Data plane: source, plan, move, verify, commit.

`fleet` is the only module that imports Ray; nothing here knows Kubernetes.
"""
