"""Fixtures that tests of several packages share, one subject a module. conftest.py loads them."""
