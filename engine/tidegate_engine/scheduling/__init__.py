"""Which requests run next and which may wait: pure bookkeeping, no tensors, no clocks, no threads."""
