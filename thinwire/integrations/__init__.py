"""Adapters to other packages, each imported when it is used: `from thinwire.integrations import torchft`."""
