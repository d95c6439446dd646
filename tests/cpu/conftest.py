"""Triton decides between compiling and interpreting when it is imported: without a GPU, interpret."""

import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
torch.set_num_threads(2)
