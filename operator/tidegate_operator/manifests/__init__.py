"""Pure builders: a pool's spec, sizing and settings in, manifests out. No I/O, no clock."""
