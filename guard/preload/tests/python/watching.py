"""Watches refused launches by the Python package, whose native module this replaces: `watching.py PACKAGE`."""

import importlib.util
import json
import os
import sys
import threading
import types

native = types.ModuleType("gridguard._native")
native.UnavailableError = RuntimeError
package = types.ModuleType("gridguard")
package._native = native
sys.modules.update({"gridguard": package, "gridguard._native": native})
file = os.path.join(sys.argv[1], "_watching.py")
spec = importlib.util.spec_from_file_location("gridguard._watching", file)
module = importlib.util.module_from_spec(spec)
sys.modules["gridguard._watching"] = module
spec.loader.exec_module(module)
import launches  # noqa: E402

context = launches.set_up()
launches.Model().forward()
try:
    with module.watching() as refused:
        for _ in range(3):
            launches.Model().forward()
        thread = threading.Thread(target=launches.in_thread, args=(context,))
        thread.start()
        thread.join()
        assert refused == []
        raise KeyError("of the block")
except KeyError:
    pass
with module.watching() as none:
    pass
own = threading.get_native_id()
print(json.dumps([[one.kernel, one.times, one.grid, one.thread == own, one.frames[0].function, str(one)] for one in refused]))
print(none)
