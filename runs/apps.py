"""Cadence: event chains, run store, leases, mirror of state roots, pages, admin."""

from django.apps import AppConfig


class RunsConfig(AppConfig):
    name = "runs"
    verbose_name = "Runs"
