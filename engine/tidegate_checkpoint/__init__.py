"""Reads what a checkpoint says about itself: config.json, safetensors headers, GGUF metadata -> ModelShape.

Standard library only, so that the inspection Job, the CLI and the engine read a model by the same code without torch.
"""
