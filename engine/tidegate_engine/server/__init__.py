"""The HTTP side of an engine: OpenAI's wire on one port, probes, metrics and drain on another."""
