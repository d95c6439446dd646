"""Model families, one file each, read top to bottom; they know no tensor parallelism, quantisation or batching."""
