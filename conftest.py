"""Without Triton, which the extra `gpu` brings, doctests do not look into its kernels."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("triton") else ["thinwire/kernels/gpu/*"]
