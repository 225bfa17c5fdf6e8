# Describes PyTorch as one line of JSON after a mark, since imports may print as well. Any Python from
# 2.7 on can parse this, so that an old one reports its version.
import json, sys, warnings

result = {"python": "%d.%d.%d" % sys.version_info[:3]}
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    try:
        import torch

        result["version"] = str(torch.__version__)
        result["cuda"] = torch.version.cuda
        result["hip"] = getattr(torch.version, "hip", None)
        result["available"] = torch.cuda.is_available()
        result["devices"] = torch.cuda.device_count()
        result["architectures"] = torch.cuda.get_arch_list()
        if result["cuda"] and not result["architectures"]:
            # The public function returns nothing if no device is available.
            result["architectures"] = (torch._C._cuda_getArchFlags() or "").split()
        result["cudnn"] = torch.backends.cudnn.version()
    except BaseException as error:
        if str(error).replace("'", "") == "No module named torch":
            result["missing"] = True
        else:
            result["error"] = "%s: %s" % (type(error).__name__, error)
result["warnings"] = [str(one.message) for one in caught]
sys.stdout.write("\ngridguard-doctor " + json.dumps(result) + "\n")
sys.stdout.flush()
