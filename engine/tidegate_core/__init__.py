"""Facts that the control plane and the data plane share, so that what the operator promises is what the engine does.

Everything here is pure: standard library and pydantic only, no files, no sockets, no clocks (the time is an argument).
"""
