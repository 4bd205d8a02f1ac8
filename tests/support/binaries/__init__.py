"""Pinned real programs for tests: Go servers built from locked modules, and Debian packages.

A test asks for a program by name and gets a path; the first use on a machine builds it, later uses
take it from a cache outside the checkout. Starting the programs does not belong here.
"""

from tests.support.binaries.cache import data, path, paths
from tests.support.binaries.catalogue import BinaryError
from tests.support.binaries.debian import install

__all__ = ["BinaryError", "data", "install", "path", "paths"]
