"""Timings of what grows: `make bench` prints a table. Never part of the tests."""
