"""The version, which checkpoints and handshakes carry."""

VERSION = "0.1.0"
