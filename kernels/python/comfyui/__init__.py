"""ComfyUI: attention over batches of any size in one call, by the package `gridguard`.

Copy this folder to `ComfyUI/custom_nodes/gridguard`, and install the package in ComfyUI's Python. There is no node to
place: all models are served, by `gridguard.torch.install`. ComfyUI cuts large batches for PyTorch's kernels. This
removes the limit, since calls that the kernels do not serve are cut by the package where it is needed.
"""

import logging
import sys

NODE_CLASS_MAPPINGS = {}
_LIMIT = "SDP_BATCH_LIMIT"


def _install():
    try:
        import comfy.ldm.modules.attention as attention

        import gridguard.torch
    except ImportError as error:
        logging.warning("gridguard serves no attention: %s", error)
        return
    gridguard.torch.install()
    if isinstance(getattr(attention, _LIMIT, None), int):
        setattr(attention, _LIMIT, sys.maxsize)
    else:
        logging.warning("gridguard: this version of ComfyUI has no %s, so it may still cut large batches", _LIMIT)
    logging.info("gridguard %s serves attention", gridguard.__version__)


_install()
