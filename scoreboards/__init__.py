"""Suites that others wrote, run against Dragoman; ``make scoreboards`` writes the results."""
