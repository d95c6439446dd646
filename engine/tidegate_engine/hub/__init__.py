"""Models of a hub: what a repository holds, its shape from headers alone, and the download into a cache."""
