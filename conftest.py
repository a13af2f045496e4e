"""Without Triton, which the extra `gpu` brings, doctests do not look into its kernels; and never into adapters."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("triton") else ["thinwire/kernels/gpu/*"]
collect_ignore_glob += ["thinwire/integrations/*"]  # to import one is to import its framework: see tests/frameworks
