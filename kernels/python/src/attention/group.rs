//! Heads of queries that share the heads of keys and values.

use gridguard::Choice;
use gridguard_kernels::Operation;
use gridguard_kernels::temporal_attention::GroupSum;
use pyo3::intern;
use pyo3::prelude::*;

use super::call::submit_prepared;
use super::torch::Torch;
use crate::error::{UnavailableError, unavailable};
use crate::launches::{self, SUMS};

impl Torch {
    /// New tensors like key and value, with the sums of the gradients that the kernels wrote for each of `heads` heads of
    /// the query, contiguous `[.., heads, rows, width]`. `None` if the kernel cannot run, or a capture keeps it from being
    /// loaded.
    pub(super) fn group_sums<'py>(
        &self,
        parts: [&Bound<'py, PyAny>; 2],
        likes: [&Bound<'py, PyAny>; 2],
        heads: u64,
    ) -> PyResult<Option<[Bound<'py, PyAny>; 2]>> {
        let py = likes[0].py();
        let contiguous = |like: &Bound<'py, PyAny>| {
            let sizes = self.reader.view(like)?.dims.into_owned();
            like.call_method1(intern!(py, "new_empty"), (sizes,))
        };
        let sums = [contiguous(likes[0])?, contiguous(likes[1])?];
        let views = [parts[0], parts[1], &sums[0], &sums[1]].map(|one| self.reader.view(one));
        let [Ok(first), Ok(second), Ok(key), Ok(value)] = views else { return Ok(None) };
        let (batch, row) = key.dims.split_at(key.dims.len().saturating_sub(2));
        let [groups, columns] = [batch, row].map(|axes| axes.iter().product());
        let operation = key.element.map(|it| GroupSum::new(groups, heads, columns, it));
        let (true, Some(Ok(sum))) = (key.dims == value.dims, operation) else { return Ok(None) };
        let addresses = [&first, &second, &key, &value].map(|view| view.address);
        let ordinal = key.device.ordinal;
        if let Some(stand_in) = self.stand_in() {
            let [first, second, key, value] = addresses;
            for (from, to) in [(first, key), (second, value)] {
                let from = (from, [groups, heads, columns], [heads * columns, columns, 1]);
                let tensors = (from, (to, [groups, columns], [columns, 1]));
                stand_in.call1(py, (tensors, 1.0, false, sum.dtypes()))?;
            }
            return Ok(Some(sums));
        }
        let target = self.target(py, ordinal, true)?;
        let submitted = py.detach(|| {
            let device = usize::try_from(ordinal).unwrap_or_default();
            let kernels = launches::kernels(device).map_err(unavailable)?;
            let prepare = || kernels.prepare(sum, Choice::AUTOMATIC);
            submit_prepared(&SUMS, (device, sum), &target, prepare, |prepared, stream| {
                // SAFETY: as in `submit`. The tensors are new and contiguous, with these sizes.
                unsafe { prepared.launch_raw(stream, addresses) }
            })
        });
        match submitted {
            Ok(refused) => Ok(refused.is_none().then_some(sums)),
            Err(error) if error.is_instance_of::<UnavailableError>(py) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
