"""What fits where: a pool's devices, their memory and number, how many are free. Pure."""
