//! All kernels, as an exercise launches them on a device.

use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream, CudaView, CudaViewMut, DriverError};

use super::subject::{KernelSpec, Tensorial, place};
use super::subjects::EPSILON;
use super::synthetic::scattered;
use crate::argsort::Argsort;
use crate::batched_gemm::BatchedGemm;
use crate::error::KernelError;
use crate::get_rows::{GetRows, IndexReport};
use crate::index::IndexType;
use crate::kernels::Prepared;
use crate::reflection_pad1d::ReflectionPad1d;
use crate::rms_norm::RmsNorm;
use crate::softmax::Softmax;
use crate::temporal_attention::TemporalAttention;
use crate::tensor::{Tensor, TensorMut};
use crate::upsample_nearest2d::UpsampleNearest2d;

/// A kernel that an exercise launches.
pub(super) trait Launched<T: Tensorial, const N: usize>: KernelSpec<T, N> {
    /// What its launches need beside tensors of `T`.
    type Companion: Send;

    fn companion(&self, stream: &Arc<CudaStream>) -> Result<Self::Companion, KernelError>;

    /// Submits what was prepared; the views are of as many items.
    fn launch(
        prepared: &Prepared<Self>,
        stream: &CudaStream,
        inputs: [CudaView<'_, T>; N],
        companion: &mut Self::Companion,
        out: CudaViewMut<'_, Self::Output>,
    ) -> Result<u64, KernelError>;
}

/// Implements the launch of a kernel that needs nothing beside its tensors.
macro_rules! launched {
    ($operation:ty, $n:literal, |$prepared:ident, $stream:ident, $inputs:pat_param, $out:ident| $launch:expr) => {
        impl<T: Tensorial> Launched<T, $n> for $operation {
            type Companion = ();

            fn companion(&self, _: &Arc<CudaStream>) -> Result<(), KernelError> {
                Ok(())
            }

            fn launch(
                $prepared: &Prepared<Self>,
                $stream: &CudaStream,
                $inputs: [CudaView<'_, T>; $n],
                (): &mut (),
                mut $out: CudaViewMut<'_, <Self as KernelSpec<T, $n>>::Output>,
            ) -> Result<u64, KernelError> {
                $launch
            }
        }
    };
}

launched!(Argsort, 1, |prepared, stream, [x], out| {
    let dims = prepared.operation().dims();
    prepared.launch(stream, Tensor::new(&x, dims), TensorMut::new(&mut out, dims))
});

launched!(BatchedGemm, 2, |prepared, stream, [a, b], out| {
    let gemm = prepared.operation();
    let (a, b) = (Tensor::new(&a, gemm.a_dims()), Tensor::new(&b, gemm.b_dims()));
    prepared.launch(stream, a, b, TensorMut::new(&mut out, gemm.c_dims()))
});

launched!(ReflectionPad1d, 1, |prepared, stream, [input], out| {
    let (from, to) = (prepared.operation().input_dims(), prepared.operation().output_dims());
    prepared.launch(stream, Tensor::new(&input, from), TensorMut::new(&mut out, to))
});

launched!(RmsNorm, 2, |prepared, stream, [x, weight], out| {
    let dims = prepared.operation().dims();
    let [_, columns] = dims;
    let (x, weight) = (Tensor::new(&x, dims), Tensor::new(&weight, [columns]));
    prepared.launch(stream, x, weight, EPSILON, TensorMut::new(&mut out, dims))
});

launched!(Softmax, 1, |prepared, stream, [x], out| {
    let dims = prepared.operation().dims();
    prepared.launch(stream, Tensor::new(&x, dims), TensorMut::new(&mut out, dims))
});

launched!(TemporalAttention, 3, |prepared, stream, [q, k, v], out| {
    let shape = prepared.operation().shape();
    let qkv = [&q, &k, &v].map(|memory| Tensor::new(memory, shape.dims()));
    prepared.launch(stream, qkv, None, shape.scale(), TensorMut::new(&mut out, shape.dims()))
});

launched!(UpsampleNearest2d, 1, |prepared, stream, [input], out| {
    let (from, to) = (prepared.operation().input_dims(), prepared.operation().output_dims());
    prepared.launch(stream, Tensor::new(&input, from), TensorMut::new(&mut out, to))
});

/// Indices on the device, and who tells of bad ones.
pub(super) struct Lookup {
    index: Indices,
    report: IndexReport,
}

enum Indices {
    I32(CudaSlice<i32>),
    I64(CudaSlice<i64>),
}

impl<T: Tensorial> Launched<T, 1> for GetRows {
    type Companion = Lookup;

    fn companion(&self, stream: &Arc<CudaStream>) -> Result<Lookup, KernelError> {
        let ([rows, _], [table_rows, _]) = (self.dims(), self.table_dims());
        let index = match self.index() {
            IndexType::I32 => Indices::I32(indices(stream, rows, table_rows, i32::MAX)?),
            IndexType::I64 => Indices::I64(indices(stream, rows, table_rows, i64::MAX)?),
        };
        Ok(Lookup { index, report: IndexReport::new(stream)? })
    }

    fn launch(
        prepared: &Prepared<Self>,
        stream: &CudaStream,
        [table]: [CudaView<'_, T>; 1],
        Lookup { index, report }: &mut Lookup,
        mut out: CudaViewMut<'_, T>,
    ) -> Result<u64, KernelError> {
        let (dims, table_dims) = (prepared.operation().dims(), prepared.operation().table_dims());
        let [rows, _] = dims;
        let (table, out) = (Tensor::new(&table, table_dims), TensorMut::new(&mut out, dims));
        match index {
            Indices::I32(index) => {
                let index = first(index, rows);
                prepared.launch(stream, table, Tensor::new(&index, [rows]), out, report)
            }
            Indices::I64(index) => {
                let index = first(index, rows);
                prepared.launch(stream, table, Tensor::new(&index, [rows]), out, report)
            }
        }
    }
}

/// The first elements of memory; all of it where there are fewer, which the launch then refuses.
pub(super) fn first<T>(memory: &CudaSlice<T>, elements: u64) -> CudaView<'_, T> {
    memory.slice(..place(elements).min(memory.len()))
}

/// Scattered rows of a table; `bad` where the index type does not hold them.
fn indices<I>(
    stream: &Arc<CudaStream>,
    rows: u64,
    table_rows: u64,
    bad: I,
) -> Result<CudaSlice<I>, DriverError>
where
    I: Copy + TryFrom<u64> + cudarc::driver::DeviceRepr,
{
    let index = |row| I::try_from(scattered(row, table_rows)).unwrap_or(bad);
    stream.clone_htod(&(0..rows).map(index).collect::<Vec<I>>())
}
