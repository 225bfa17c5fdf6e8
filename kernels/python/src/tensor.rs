//! The memory, sizes and strides of PyTorch's tensors.
//!
//! PyTorch 2.10 and later have C functions for this, those of the DLPack exchange interface, which cost
//! nanoseconds and report errors as Python's exceptions. Earlier ones are asked for the attributes of the
//! tensors.

use core::ffi::{CStr, c_int, c_void};
use core::ptr;
use core::slice;
use std::borrow::Cow;

use gridguard_kernels::ElementType;
use gridguard_kernels::temporal_attention::StridedView;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

/// How tensors are read.
pub(crate) enum Reader {
    /// By PyTorch's C functions.
    Dlpack(Exchange),
    /// By their attributes.
    Attributes {
        /// `torch._C`.
        torch: Py<PyAny>,
        /// The objects of the types that the kernels know.
        dtypes: [(Py<PyAny>, ElementType); 3],
    },
}

/// The functions of DLPack's table that are used here.
pub(crate) struct Exchange {
    view: unsafe extern "C" fn(*mut c_void, *mut DlTensor) -> c_int,
    stream: unsafe extern "C" fn(i32, i32, *mut *mut c_void) -> c_int,
}

/// A tensor as it is while nothing else runs.
pub(crate) struct View<'a> {
    pub(crate) address: u64,
    pub(crate) device: Device,
    /// The type of its elements, if the kernels know it.
    pub(crate) element: Option<ElementType>,
    dims: Cow<'a, [u64]>,
    strides: Cow<'a, [u64]>,
}

/// A device by DLPack's number of its kind, and its ordinal: DLPack's `DLDevice`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Device {
    pub(crate) kind: i32,
    pub(crate) ordinal: i32,
}

impl Device {
    pub(crate) const CPU: i32 = 1;
    pub(crate) const CUDA: i32 = 2;
}

impl Reader {
    /// Of the module `torch`; by attributes if it lacks the functions, or `dlpack` is false.
    pub(crate) fn new(torch: &Bound<'_, PyAny>, dlpack: bool) -> PyResult<Self> {
        if dlpack && let Some(exchange) = Exchange::of(&torch.getattr("Tensor")?)? {
            return Ok(Self::Dlpack(exchange));
        }
        let dtype = |name, element| Ok::<_, PyErr>((torch.getattr(name)?.unbind(), element));
        Ok(Self::Attributes {
            torch: torch.getattr("_C")?.unbind(),
            dtypes: [
                dtype("float16", ElementType::F16)?,
                dtype("bfloat16", ElementType::Bf16)?,
                dtype("float32", ElementType::F32)?,
            ],
        })
    }

    /// `dlpack` or `attributes`.
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Dlpack(_) => "dlpack",
            Self::Attributes { .. } => "attributes",
        }
    }

    /// The tensor as it is now. Nothing of Python may run while the view is used, since it may resize the
    /// tensor. An error if it has no memory of its own, as sparse and nested tensors.
    pub(crate) fn view<'a>(&self, tensor: &'a Bound<'_, PyAny>) -> PyResult<View<'a>> {
        match self {
            Self::Dlpack(exchange) => exchange.view(tensor),
            Self::Attributes { dtypes, .. } => by_attributes(tensor, dtypes),
        }
    }

    /// The address that is the handle of PyTorch's current stream of a CUDA device.
    pub(crate) fn stream(&self, py: Python<'_>, ordinal: i32) -> PyResult<usize> {
        match self {
            Self::Dlpack(exchange) => exchange.stream(py, ordinal),
            Self::Attributes { torch, .. } => {
                let name = intern!(py, "_cuda_getCurrentRawStream");
                torch.call_method1(py, name, (ordinal,))?.extract(py)
            }
        }
    }
}

impl Exchange {
    /// The functions of a tensor type, if it has them.
    fn of(tensor_type: &Bound<'_, PyAny>) -> PyResult<Option<Self>> {
        let Some(capsule) = tensor_type.getattr_opt("__dlpack_c_exchange_api__")? else {
            return Ok(None);
        };
        let Ok(capsule) = capsule.cast_into::<PyCapsule>() else { return Ok(None) };
        if !capsule.is_valid_checked(Some(TABLE_NAME)) {
            return Ok(None);
        }
        let mut header =
            capsule.pointer_checked(Some(TABLE_NAME))?.as_ptr().cast_const().cast::<Header>();
        // SAFETY: a capsule of this name has the address of DLPack's table, which is alive as long as the
        // process. The header of each version leads to the table of an older one, or is the last. The
        // fields that follow are those of `Table` where the major version is this one.
        #[allow(unsafe_code, reason = "DLPack's table is C")]
        unsafe {
            while !header.is_null() && (*header).major != MAJOR_VERSION {
                header = (*header).older;
            }
            let table = header.cast::<Table>().as_ref();
            Ok(table.and_then(|table| Some(Self { view: table.view?, stream: table.stream? })))
        }
    }

    fn view<'a>(&self, tensor: &'a Bound<'_, PyAny>) -> PyResult<View<'a>> {
        let mut found = DlTensor::EMPTY;
        // SAFETY: the object is alive, Python's lock is held, and `found` is DLPack's struct. An object
        // that is no tensor is an error.
        #[allow(unsafe_code, reason = "a function of DLPack's table")]
        let status = unsafe { (self.view)(tensor.as_ptr().cast(), &raw mut found) };
        if status != 0 {
            return Err(PyErr::fetch(tensor.py()));
        }
        let rank = usize::try_from(found.rank).unwrap_or_default();
        #[allow(unsafe_code, reason = "arrays of C")]
        let [dims, strides] = [found.dims, found.strides].map(|first| {
            if first.is_null() {
                return &[][..];
            }
            // SAFETY: these are the sizes or strides of the tensor, as many as it has axes, and every i64 is
            // a u64. The tensor is alive as long as the view, whose user runs nothing of Python meanwhile;
            // that no other thread resizes a tensor in use is PyTorch's own demand.
            unsafe { slice::from_raw_parts(first.cast::<u64>(), rank) }
        });
        let address = u64::try_from(found.data.expose_provenance()).unwrap_or_default();
        Ok(View {
            address: address.saturating_add(found.byte_offset),
            device: found.device,
            element: found.dtype.element(),
            dims: Cow::Borrowed(dims),
            strides: Cow::Borrowed(strides),
        })
    }

    fn stream(&self, py: Python<'_>, ordinal: i32) -> PyResult<usize> {
        let mut stream = ptr::null_mut();
        // SAFETY: Python's lock is held, and the result is written to `stream`.
        #[allow(unsafe_code, reason = "a function of DLPack's table")]
        let status = unsafe { (self.stream)(Device::CUDA, ordinal, &raw mut stream) };
        if status == 0 { Ok(stream.expose_provenance()) } else { Err(PyErr::fetch(py)) }
    }
}

impl View<'_> {
    /// Its sizes and strides.
    pub(crate) fn strided(&self) -> StridedView<'_> {
        StridedView { dims: &self.dims, strides: &self.strides }
    }

    /// The sizes of its last two axes.
    pub(crate) fn matrix(&self) -> Option<[u64; 2]> {
        self.dims.last_chunk().copied()
    }
}

fn by_attributes<'a>(
    tensor: &Bound<'_, PyAny>,
    dtypes: &[(Py<PyAny>, ElementType); 3],
) -> PyResult<View<'a>> {
    let py = tensor.py();
    let is = |name| tensor.getattr(name)?.is_truthy();
    let kind = match (is(intern!(py, "is_cuda"))?, is(intern!(py, "is_cpu"))?) {
        (true, _) => Device::CUDA,
        (_, true) => Device::CPU,
        _ => 0,
    };
    let dtype = tensor.getattr(intern!(py, "dtype"))?;
    let element = dtypes.iter().find(|(object, _)| dtype.is(object)).map(|(_, element)| *element);
    Ok(View {
        address: tensor.call_method0(intern!(py, "data_ptr"))?.extract()?,
        device: Device {
            kind,
            ordinal: tensor.call_method0(intern!(py, "get_device"))?.extract()?,
        },
        element,
        dims: Cow::Owned(tensor.getattr(intern!(py, "shape"))?.extract()?),
        strides: Cow::Owned(tensor.call_method0(intern!(py, "stride"))?.extract()?),
    })
}

const TABLE_NAME: &CStr = c"dlpack_exchange_api";

/// DLPack's major version whose structs these are.
const MAJOR_VERSION: u32 = 1;

/// DLPack's `DLTensor`.
#[repr(C)]
struct DlTensor {
    data: *mut c_void,
    device: Device,
    rank: i32,
    dtype: DlDataType,
    dims: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

impl DlTensor {
    const EMPTY: Self = Self {
        data: ptr::null_mut(),
        device: Device { kind: 0, ordinal: 0 },
        rank: 0,
        dtype: DlDataType { code: 0, bits: 0, lanes: 0 },
        dims: ptr::null_mut(),
        strides: ptr::null_mut(),
        byte_offset: 0,
    };
}

/// DLPack's `DLDataType`.
#[repr(C)]
struct DlDataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

impl DlDataType {
    const FLOAT: u8 = 2;
    const BFLOAT: u8 = 4;

    fn element(&self) -> Option<ElementType> {
        match (self.code, self.bits, self.lanes) {
            (Self::FLOAT, 16, 1) => Some(ElementType::F16),
            (Self::FLOAT, 32, 1) => Some(ElementType::F32),
            (Self::BFLOAT, 16, 1) => Some(ElementType::Bf16),
            _ => None,
        }
    }
}

/// DLPack's `DLPackExchangeAPIHeader`.
#[repr(C)]
struct Header {
    major: u32,
    minor: u32,
    older: *const Self,
}

/// DLPack's `DLPackExchangeAPI`.
#[repr(C)]
struct Table {
    header: Header,
    /// Allocates, exports and imports tensors that own their memory.
    owning: [*const c_void; 3],
    view: Option<unsafe extern "C" fn(*mut c_void, *mut DlTensor) -> c_int>,
    stream: Option<unsafe extern "C" fn(i32, i32, *mut *mut c_void) -> c_int>,
}
