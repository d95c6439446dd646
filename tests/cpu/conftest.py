"""What is read when torch and Triton are imported: idle threads sleep, and without a GPU kernels are interpreted."""

import os

from tidegate_engine.process.container import share_cores

share_cores(os.environ)

import torch  # noqa: E402

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
torch.set_num_threads(2)
