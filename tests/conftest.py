"""Property tests draw the same examples every time and have no deadline: a shared machine is slow when it pleases."""

from hypothesis import settings

settings.register_profile("tidegate", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("tidegate")
