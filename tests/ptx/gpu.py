"""The calls of the CUDA driver that the comparison needs; the driver is the only library."""
import ctypes

import numpy as np

NOT_FOUND = "CUDA_ERROR_NOT_FOUND"


class CudaError(Exception):
    """`sticky` if the context can do nothing more."""

    def __init__(self, call, name, sticky):
        super().__init__(f"{call}: {name}")
        self.name, self.sticky = name, sticky


class Gpu:
    """One context on the first device."""

    def __init__(self):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        device, context, version = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_int()
        name = ctypes.create_string_buffer(256)
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDeviceGetName", name, 256, device)
        self.call("cuDriverGetVersion", ctypes.byref(version))
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)
        self.name, self.cuda_version = name.value.decode(), f"{version.value // 1000}.{version.value % 1000 // 10}"

    def call(self, function, *arguments):
        result = getattr(self.cuda, function)(*arguments)
        if result:
            name = ctypes.c_char_p()
            self.cuda.cuGetErrorName(result, ctypes.byref(name))
            sticky = function == "cuInit" or self.cuda.cuCtxSynchronize() != 0
            raise CudaError(function, (name.value or b"error %d" % result).decode(), sticky)

    def synchronize(self):
        self.call("cuCtxSynchronize")

    def module(self, path):
        module = ctypes.c_void_p()
        self.call("cuModuleLoad", ctypes.byref(module), str(path).encode())
        return module

    def function(self, module, name):
        function = ctypes.c_void_p()
        self.call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
        return function

    def allocate(self, size):
        pointer = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(max(1, size)))
        return pointer

    def free(self, pointer):
        self.call("cuMemFree_v2", pointer)

    def upload(self, pointer, array):
        array = np.ascontiguousarray(array)
        self.call("cuMemcpyHtoD_v2", pointer, ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes))

    def download(self, pointer, size):
        array = np.empty(size, np.uint8)
        self.call("cuMemcpyDtoH_v2", ctypes.c_void_p(array.ctypes.data), pointer, ctypes.c_size_t(size))
        return array

    def set_bytes(self, pointer, value, size):
        self.call("cuMemsetD8_v2", pointer, ctypes.c_ubyte(value), ctypes.c_size_t(size))

    def prepare(self, function, grid, block, shared, parameters):
        """A launch, ready to be made many times. `parameters` is the text of all, each at its offset."""
        text, size = ctypes.create_string_buffer(bytes(parameters), len(parameters)), ctypes.c_size_t(len(parameters))
        # CU_LAUNCH_PARAM_BUFFER_POINTER, CU_LAUNCH_PARAM_BUFFER_SIZE, CU_LAUNCH_PARAM_END
        extra = (ctypes.c_void_p * 5)(1, ctypes.addressof(text), 2, ctypes.addressof(size), None)
        numbers = [ctypes.c_uint(number) for number in (*grid, *block, shared)]
        # The closure keeps the memory that the driver reads.
        return lambda kept=(text, size): self.call("cuLaunchKernel", function, *numbers, None, None, extra)

    def event(self):
        event = ctypes.c_void_p()
        self.call("cuEventCreate", ctypes.byref(event), 0)
        return event

    def record(self, event):
        self.call("cuEventRecord", event, None)

    def milliseconds(self, start, end):
        time = ctypes.c_float()
        self.call("cuEventSynchronize", end)
        self.call("cuEventElapsedTime", ctypes.byref(time), start, end)
        return time.value

