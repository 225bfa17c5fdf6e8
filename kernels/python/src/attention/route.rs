//! Whether our kernels or PyTorch's serve a call.

use core::sync::atomic::{AtomicBool, Ordering};

use gridguard_kernels::ElementType;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::torch::Torch;
use crate::border::{Borders, Problem};
use crate::launches;
use crate::tensor::Device;

/// Leaves calls to PyTorch where it is faster.
pub(super) struct Router {
    /// Whether any call is left to it.
    pub(super) compares: bool,
    /// Whether problems that no entry decides are timed.
    pub(super) measures: AtomicBool,
}

/// The sizes of a call.
pub(super) struct Sizes {
    /// With four axes.
    of_problem: Option<[u64; 7]>,
    /// The most of queries and keys.
    pub(super) rows: u64,
    /// The head dimension of queries.
    pub(super) width: u64,
    element: ElementType,
    pub(super) device: Device,
}

/// The most items and heads that PyTorch's kernels take: they are on the y and z axes of a grid.
const MAX_SLICE: u64 = 65_535;

impl Router {
    /// Whether PyTorch serves a call, of which `kind` says whether it is causal, masked and differentiated. A problem that
    /// no entry decides is timed by the call's arguments, if there are some.
    pub(super) fn is_slower<'py>(
        &self,
        torch: &Torch,
        sizes: &Sizes,
        kind: (bool, bool, bool),
        arguments: impl FnOnce() -> PyResult<Option<Bound<'py, PyTuple>>>,
    ) -> PyResult<bool> {
        // PyTorch has fused kernels for four axes only.
        let (true, Some(of_problem)) = (self.compares, sizes.of_problem) else { return Ok(false) };
        let problem = Problem::new(sizes.element, of_problem, kind);
        let decide = |borders: &Borders| {
            let (slower, is_decided) = borders.route(&problem);
            if is_decided || !self.measures.load(Ordering::Relaxed) {
                return Ok(slower);
            }
            let Some(arguments) = arguments()? else { return Ok(slower) };
            let py = arguments.py();
            let measured = borders.measure(py, problem, || {
                let measure = py.import("gridguard._measure")?.getattr("measure")?;
                measure.call1(arguments)?.extract()
            });
            Ok(measured?.unwrap_or(slower))
        };
        torch.with_borders(sizes.device.ordinal, decide).unwrap_or(Ok(false))
    }
}

impl Torch {
    /// The sizes of a call on a device that is served, as far as they follow from the ends of the tensors' axes.
    pub(super) fn sizes(&self, tensors: [&Bound<'_, PyAny>; 3]) -> Option<Sizes> {
        let [Ok(q), Ok(k), Ok(v)] = tensors.map(|tensor| self.reader.view(tensor)) else {
            return None;
        };
        let (&[.., queries, width], &[.., keys, _], &[.., values]) = (&*q.dims, &*k.dims, &*v.dims)
        else {
            return None;
        };
        let of_problem = match (&*q.dims, &*k.dims) {
            (&[items, heads, ..], &[_, key_heads, _, _]) if q.dims.len() == 4 => {
                Some([items, heads, key_heads, queries, keys, width, values])
            }
            _ => None,
        };
        let device = q.device;
        let rows = queries.max(keys);
        (device.kind == self.kind()).then_some(())?;
        Some(Sizes { of_problem, rows, width, element: q.element?, device })
    }

    pub(super) fn with_borders<R>(
        &self,
        ordinal: i32,
        read: impl FnOnce(&Borders) -> R,
    ) -> Option<R> {
        #[cfg(feature = "stand-in")]
        if let Some((_, borders)) = self.stand_in.get() {
            return Some(read(borders));
        }
        let device = launches::device(usize::try_from(ordinal).ok()?).ok()?;
        Some(read(&device.borders))
    }

    /// Whether PyTorch's kernels read a tensor of a call in place, and no axis of the batch overflows their grids.
    pub(super) fn is_read_by_pytorch(
        &self,
        tensor: &Bound<'_, PyAny>,
        key: &Bound<'_, PyAny>,
    ) -> bool {
        let (Ok(view), Ok(of_key)) = (self.reader.view(tensor), self.reader.view(key)) else {
            return false;
        };
        // A boolean mask is converted first.
        let bytes = view.element.map_or(16, ElementType::bytes);
        let is_row = |at: u64| view.element.is_none() || at.is_multiple_of(16);
        let mut axes = view.dims.iter().zip(view.strided().strides).rev();
        view.device == of_key.device
            && view.dims.len() >= 2
            && is_row(view.address)
            && axes.next().is_some_and(|(size, stride)| *size > 1 && *stride == 1)
            && axes.all(|(size, stride)| *size == 1 || (*size > 1 && is_row(stride * bytes)))
            && view.dims.iter().rev().skip(2).all(|size| *size <= MAX_SLICE)
    }
}
