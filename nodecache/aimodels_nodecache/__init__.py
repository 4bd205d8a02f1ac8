"""Node plane: the cache of models on a node, its agent and its mounts.

Nothing here imports Ray or knows the sources.
"""
