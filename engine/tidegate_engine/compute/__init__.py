"""What a step computes, in torch: weights, layers, KV cache, sampling, and the runner that joins them."""
