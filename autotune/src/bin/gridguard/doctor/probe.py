# Tells of PyTorch in one line of JSON behind a mark: what it imports may print as well.
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
        missing = isinstance(error, ModuleNotFoundError) and error.name == "torch"
        if missing:
            told["missing"] = True
        else:
            told["error"] = "%s: %s" % (type(error).__name__, error)
told["warnings"] = [str(one.message) for one in caught]
print("\ngridguard-doctor " + json.dumps(told), flush=True)
