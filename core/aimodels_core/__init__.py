"""Vocabulary and wire: values, errors and protocols that every process shares.

Nothing here knows kopf, Kubernetes or Ray.
"""
