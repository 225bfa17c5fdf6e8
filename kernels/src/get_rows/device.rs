//! The launch, and the report of bad indices.

use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream, DevicePtr, DevicePtrMut, DeviceRepr};
use gridguard::cuda::Args;

use super::{Element, GetRows, Index, KernelError};
use crate::kernels::Prepared;
use crate::tensor::{Tensor, TensorMut, check_contiguous, check_element};

/// What the device holds while no index was bad.
const NONE: u64 = u64::MAX;

/// Where launches note the first index that names no row of the table.
///
/// Made once and used for any number of launches, one check after each: launches between two
/// checks share it, and the lowest place of any of them stands.
#[derive(Debug)]
pub struct IndexReport {
    /// The lowest bad place.
    first: CudaSlice<u64>,
    /// Rows of the table of the last launch.
    table_rows: u64,
}

impl IndexReport {
    /// A report on the device of `stream`, on which nothing is noted.
    ///
    /// # Errors
    ///
    /// [`KernelError::Memory`] where the driver refuses.
    pub fn new(stream: &Arc<CudaStream>) -> Result<Self, KernelError> {
        Ok(Self { first: stream.clone_htod(&[NONE])?, table_rows: 0 })
    }

    /// Waits for what was submitted to `stream` and says whether all indices were good; `index`
    /// is what the launch was given. A report that told of a bad one is empty again.
    ///
    /// # Errors
    ///
    /// [`KernelError::Index`] with the first bad index, [`KernelError::Memory`] where the driver
    /// refuses, [`KernelError::Length`] where `index` has no such place.
    pub fn check<I, S>(&mut self, stream: &Arc<CudaStream>, index: &S) -> Result<(), KernelError>
    where
        I: Index + DeviceRepr,
        S: DevicePtr<I>,
    {
        let mut first = [NONE];
        stream.memcpy_dtoh(&self.first, &mut first)?;
        stream.synchronize()?;
        let [position] = first;
        if position == NONE {
            return Ok(());
        }
        stream.memcpy_htod(&[NONE], &mut self.first)?;
        // Copied whole: this is not the usual way.
        let indices = stream.clone_dtoh(index)?;
        stream.synchronize()?;
        let value = usize::try_from(position).ok().and_then(|place| indices.get(place));
        let Some(value) = value else {
            let given = u64::try_from(indices.len()).unwrap_or(u64::MAX);
            let expected = u128::from(position) + 1;
            let shape = vec![position.saturating_add(1)];
            return Err(KernelError::Length { tensor: "index", shape, expected, given });
        };
        Err(KernelError::Index { position, value: value.widen(), rows: self.table_rows })
    }
}

impl Prepared<GetRows> {
    /// Submits the launches to `stream` and answers how many there are; returns before they have
    /// run. `table` is `[table_rows, columns]`, `index` is `[rows]`, `out` is `[rows, columns]`,
    /// contiguous. Indices that name no row are noted in `report`; their rows of `out` are zeros.
    ///
    /// # Errors
    ///
    /// [`KernelError`] where a tensor has another type, shape or length, before anything is
    /// launched; [`KernelError::Launch`] where one is not aligned or the driver refuses.
    #[track_caller]
    pub fn launch<T, I, X, S, O>(
        &self,
        stream: &CudaStream,
        table: Tensor<'_, X, 2>,
        index: Tensor<'_, S, 1>,
        out: TensorMut<'_, O, 2>,
        report: &mut IndexReport,
    ) -> Result<u64, KernelError>
    where
        T: Element + DeviceRepr,
        I: Index + DeviceRepr,
        X: DevicePtr<T>,
        S: DevicePtr<I>,
        O: DevicePtrMut<T>,
    {
        let operation = self.operation();
        let GetRows { rows, columns, table_rows, element, .. } = *operation;
        check_element::<T>(element)?;
        if I::TYPE != operation.index {
            return Err(KernelError::IndexType { given: I::TYPE, expected: operation.index });
        }
        check_contiguous("table", table.memory, &table.extent, operation.table_dims())?;
        check_contiguous("index", index.memory, &index.extent, [rows])?;
        check_contiguous("out", out.memory, &out.extent, operation.dims())?;
        report.table_rows = table_rows;
        let mut args = Args::new(stream);
        args.read(table.memory)
            .read_items(index.memory, 1)
            .write_items(out.memory, columns)
            .write(&mut report.first)
            .value(table_rows)
            .offset()
            .length();
        self.submit(args)
    }
}
