"""Schedules: when a worker exchanges what."""
