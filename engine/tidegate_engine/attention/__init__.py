"""Paged attention: one contract (base), a plain torch reference for every device, faster implementations beside it."""
