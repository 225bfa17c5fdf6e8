# Tells of PyTorch in one line of JSON behind a mark: what it imports may print as well. Any Python
# from 2.7 on can read this, so that an old one says which it is.
import json, sys, warnings

told = {"python": "%d.%d.%d" % sys.version_info[:3]}
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    try:
        import torch

        told["version"] = str(torch.__version__)
        told["cuda"] = torch.version.cuda
        told["hip"] = getattr(torch.version, "hip", None)
        told["available"] = torch.cuda.is_available()
        told["devices"] = torch.cuda.device_count()
        told["architectures"] = torch.cuda.get_arch_list()
        if told["cuda"] and not told["architectures"]:
            # The public function tells nothing where no device is available.
            told["architectures"] = (torch._C._cuda_getArchFlags() or "").split()
        told["cudnn"] = torch.backends.cudnn.version()
    except BaseException as error:
        torch = sys.modules.get("torch")
        other = torch is not None and not hasattr(torch, "__version__")
        if str(error).replace("'", "") == "No module named torch":
            told["missing"] = True
        elif other and isinstance(error, AttributeError):
            # A file of that name hides PyTorch; a mere folder is found where there is none.
            told["hidden_by"] = getattr(torch, "__file__", None)
            told["missing"] = told["hidden_by"] is None
        else:
            told["error"] = "%s: %s" % (type(error).__name__, error)
told["warnings"] = [str(one.message) for one in caught]
sys.stdout.write("\ngridguard-doctor " + json.dumps(told) + "\n")
sys.stdout.flush()
