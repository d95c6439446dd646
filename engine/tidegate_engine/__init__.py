"""The engine a pool's pods run: scheduler and KV blocks (no torch), runner and models (torch), OpenAI API (fastapi)."""
