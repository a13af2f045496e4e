"""The documentation site: `make docs` builds it from docs/, README.md, CHANGELOG.md and the docstrings, offline."""
