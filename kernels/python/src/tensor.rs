//! Reads the addresses, sizes and strides of PyTorch's tensors.
//!
//! PyTorch 2.10 and later have C functions for this, the DLPack exchange API. They take nanoseconds and raise Python
//! exceptions. With earlier versions the attributes of the tensors are read.

use core::ffi::{CStr, c_int, c_void};
use core::ptr;
use core::slice;
use std::borrow::Cow;

use gridguard_kernels::ElementType;
use gridguard_kernels::temporal_attention::StridedView;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

/// The DLPack exchange API, or the attributes of tensors.
pub(crate) enum Reader {
    Dlpack(Exchange),
    Attributes {
        torch: Py<PyAny>,
        /// The supported `torch.dtype` objects.
        dtypes: [(Py<PyAny>, ElementType); 3],
        boolean: Py<PyAny>,
    },
}

pub(crate) struct Exchange {
    view: unsafe extern "C" fn(*mut c_void, *mut DlTensor) -> c_int,
    stream: unsafe extern "C" fn(i32, i32, *mut *mut c_void) -> c_int,
}

/// The layout of a tensor, valid until Python runs again.
#[derive(Default)]
pub(crate) struct View<'a> {
    pub(crate) address: u64,
    pub(crate) device: Device,
    /// The type of the elements; `None` if the kernels do not support it.
    pub(crate) element: Option<ElementType>,
    /// Whether the elements are booleans, of a byte each.
    pub(crate) is_boolean: bool,
    pub(crate) dims: Cow<'a, [u64]>,
    strides: Cow<'a, [u64]>,
}

/// DLPack's `DLDevice`: a device type and an ordinal.
#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Device {
    pub(crate) kind: i32,
    pub(crate) ordinal: i32,
}

impl Device {
    pub(crate) const CPU: i32 = 1;
    pub(crate) const CUDA: i32 = 2;
}

impl Reader {
    /// The reader for the module `torch`: by attributes if PyTorch has no exchange API, or if `dlpack` is false.
    pub(crate) fn new(torch: &Bound<'_, PyAny>, dlpack: bool) -> PyResult<Self> {
        if dlpack && let Some(exchange) = Exchange::of(&torch.getattr("Tensor")?) {
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
            boolean: torch.getattr("bool")?.unbind(),
        })
    }

    /// The layout of a tensor. No Python code may run while the view is in use, because it may resize the tensor.
    ///
    /// # Errors
    ///
    /// Sparse and nested tensors have no single address.
    pub(crate) fn view<'a>(&self, tensor: &'a Bound<'_, PyAny>) -> PyResult<View<'a>> {
        match self {
            Self::Dlpack(exchange) => exchange.view(tensor),
            Self::Attributes { dtypes, boolean, .. } => by_attributes(tensor, dtypes, boolean),
        }
    }

    /// The handle of PyTorch's current stream on a CUDA device.
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
    fn of(tensor_type: &Bound<'_, PyAny>) -> Option<Self> {
        let capsule = tensor_type.getattr("__dlpack_c_exchange_api__").ok()?;
        let table = capsule.cast::<PyCapsule>().ok()?.pointer_checked(Some(TABLE_NAME)).ok()?;
        let mut header = table.as_ptr().cast_const().cast::<Header>();
        // SAFETY: DLPack gives a capsule of this name the address of a static `DLPackExchangeAPI`. Each header links
        // to the table of an older version, or is the last. A header of `MAJOR_VERSION` is the start of a `Table`.
        unsafe {
            while !header.is_null() && (*header).major != MAJOR_VERSION {
                header = (*header).older;
            }
            let table = header.cast::<Table>().as_ref()?;
            Some(Self { view: table.view?, stream: table.stream? })
        }
    }

    fn view<'a>(&self, tensor: &'a Bound<'_, PyAny>) -> PyResult<View<'a>> {
        let mut found = DlTensor::default();
        // SAFETY: the object is alive, this thread is attached to the interpreter, and `found` is DLPack's struct.
        // For an object of another type the function raises.
        let status = unsafe { (self.view)(tensor.as_ptr().cast(), &raw mut found) };
        if status != 0 {
            return Err(PyErr::fetch(tensor.py()));
        }
        let rank = usize::try_from(found.rank).unwrap_or_default();
        let [dims, strides] = [found.dims, found.strides].map(|first| {
            if first.is_null() {
                return &[][..];
            }
            // SAFETY: the array has `rank` sizes or strides, and every i64 is a valid u64. The view borrows the tensor,
            // and its user runs no Python code. PyTorch requires that no other thread resizes a tensor in use.
            unsafe { slice::from_raw_parts(first.cast::<u64>(), rank) }
        });
        let address = u64::try_from(found.data.expose_provenance()).unwrap_or_default();
        Ok(View {
            address: address.saturating_add(found.byte_offset),
            device: found.device,
            element: found.dtype.element(),
            is_boolean: found.dtype.is_boolean(),
            dims: Cow::Borrowed(dims),
            strides: Cow::Borrowed(strides),
        })
    }

    fn stream(&self, py: Python<'_>, ordinal: i32) -> PyResult<usize> {
        let mut stream = ptr::null_mut();
        // SAFETY: this thread is attached to the interpreter, and the function writes `stream` only.
        let status = unsafe { (self.stream)(Device::CUDA, ordinal, &raw mut stream) };
        if status == 0 { Ok(stream.expose_provenance()) } else { Err(PyErr::fetch(py)) }
    }
}

impl View<'_> {
    pub(crate) fn strided(&self) -> StridedView<'_> {
        StridedView { dims: &self.dims, strides: &self.strides }
    }

    /// Makes the axis of heads, the third last, two axes: groups, and the heads of each. If `repeats`, the tensor has one
    /// head for each group. `None` if there is no such axis.
    fn group(&mut self, heads: u64, repeats: bool) -> Option<()> {
        let at = self.dims.len().checked_sub(3)?;
        let (size, stride) = (*self.dims.get(at)?, *self.strides.get(at)?);
        let (groups, of_group, of_head) = if repeats {
            (size, stride, 0)
        } else {
            (size.checked_div(heads)?, stride.checked_mul(heads)?, stride)
        };
        let (dims, strides) = (self.dims.to_mut(), self.strides.to_mut());
        dims.splice(at..=at, [groups, heads]);
        strides.splice(at..=at, [of_group, of_head]);
        Some(())
    }

    /// Whether it has this number of elements, contiguous in row-major order.
    pub(crate) fn is_whole(&self, elements: u128) -> bool {
        let axes = self.dims.iter().zip(&*self.strides).rev();
        let reach = axes.into_iter().try_fold(1_u128, |reach, (size, stride)| {
            let follows = *size == 1 || u128::from(*stride) == reach;
            follows.then(|| reach.saturating_mul((*size).into()))
        });
        reach == Some(elements)
    }
}

/// How many heads of the query have one head of the key, if that is more than one.
pub(crate) fn heads_of_group(tensors: &[View<'_>]) -> Option<u64> {
    let [of_query, of_key] = [0, 1].map(|at| tensors.get(at)?.dims.iter().rev().nth(2).copied());
    let heads = of_query?.checked_div(of_key?)?;
    (heads > 1 && Some(of_key? * heads) == of_query).then_some(heads)
}

/// Makes the heads of a group an axis of their own in the tensors of the gradients, and in their bias. dk and dv, the last
/// two, have it. `None` if the bias has other heads.
pub(crate) fn group_heads(tensors: &mut [View<'_>], bias: Option<&mut View<'_>>) -> Option<()> {
    let Some(heads) = heads_of_group(tensors) else { return Some(()) };
    for (at, view) in tensors.iter_mut().enumerate().take(5) {
        view.group(heads, matches!(at, 1 | 2))?;
    }
    if let Some(bias) = bias.filter(|bias| bias.dims.len() > 2) {
        let is_shared = bias.dims.iter().rev().nth(2) == Some(&1);
        bias.group(if is_shared { 1 } else { heads }, is_shared)?;
    }
    Some(())
}

fn by_attributes<'a>(
    tensor: &Bound<'_, PyAny>,
    dtypes: &[(Py<PyAny>, ElementType); 3],
    boolean: &Py<PyAny>,
) -> PyResult<View<'a>> {
    let py = tensor.py();
    let kind = if tensor.getattr(intern!(py, "is_cuda"))?.is_truthy()? {
        Device::CUDA
    } else if tensor.getattr(intern!(py, "is_cpu"))?.is_truthy()? {
        Device::CPU
    } else {
        0
    };
    let ordinal = tensor.call_method0(intern!(py, "get_device"))?.extract()?;
    let dtype = tensor.getattr(intern!(py, "dtype"))?;
    let element = dtypes.iter().find(|(object, _)| dtype.is(object)).map(|(_, element)| *element);
    Ok(View {
        address: tensor.call_method0(intern!(py, "data_ptr"))?.extract()?,
        device: Device { kind, ordinal },
        element,
        is_boolean: dtype.is(boolean),
        dims: Cow::Owned(tensor.getattr(intern!(py, "shape"))?.extract()?),
        strides: Cow::Owned(tensor.call_method0(intern!(py, "stride"))?.extract()?),
    })
}

const TABLE_NAME: &CStr = c"dlpack_exchange_api";

/// The major version of DLPack that defines the structs below.
const MAJOR_VERSION: u32 = 1;

/// DLPack's `DLTensor`.
#[repr(C)]
#[derive(Default)]
struct DlTensor {
    data: *mut c_void,
    device: Device,
    rank: i32,
    dtype: DlDataType,
    dims: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

/// DLPack's `DLDataType`.
#[repr(C)]
#[derive(Default)]
struct DlDataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

impl DlDataType {
    fn is_boolean(&self) -> bool {
        const BOOL: u8 = 6;
        (self.code, self.bits, self.lanes) == (BOOL, 8, 1)
    }

    fn element(&self) -> Option<ElementType> {
        const FLOAT: u8 = 2;
        const BFLOAT: u8 = 4;
        match (self.code, self.bits, self.lanes) {
            (FLOAT, 16, 1) => Some(ElementType::F16),
            (FLOAT, 32, 1) => Some(ElementType::F32),
            (BFLOAT, 16, 1) => Some(ElementType::Bf16),
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
    owning: [*const c_void; 3],
    view: Option<unsafe extern "C" fn(*mut c_void, *mut DlTensor) -> c_int>,
    stream: Option<unsafe extern "C" fn(i32, i32, *mut *mut c_void) -> c_int>,
}
