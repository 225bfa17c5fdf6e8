//! Masks of common calls.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::torch::Torch;

impl Torch {
    /// A mask of a common call as the kernels read it; as numbers to add to the scores if the call is `differentiated`.
    /// `None` for a mask that is not common.
    ///
    /// Nothing is kept for a later call: kernels that PyTorch does not know, and replays of graphs, change masks without a
    /// trace. The backward pass reads a copy, because a program may change its mask before, as with PyTorch.
    pub(super) fn bias<'py>(
        &self,
        mask: &Bound<'py, PyAny>,
        query: &Bound<'py, PyAny>,
        key: &Bound<'py, PyAny>,
        differentiated: bool,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let py = mask.py();
        let views = [mask, query, key].map(|tensor| self.reader.view(tensor));
        let [Ok(view), Ok(of_query), Ok(of_key)] = views else { return Ok(None) };
        let (dims, strides) = (&view.dims, view.strided().strides);
        let scores = of_key.dims.iter().rev().skip(1).take(1);
        let scores = scores.chain(of_query.dims.iter().rev().skip(1));
        let is_broadcast =
            dims.iter().rev().zip(scores).all(|(own, full)| [1, *full].contains(own));
        if view.device != of_query.device
            || !(2..=of_query.dims.len()).contains(&dims.len())
            || !is_broadcast
            || dims.last() != of_key.dims.iter().rev().nth(1)
        {
            return Ok(None);
        }
        if !view.is_boolean || (!differentiated && strides.last() == Some(&1)) {
            return Ok(Some(mask.clone()));
        }
        // The bias of a repeated mask is as small as the mask.
        let axes = dims.iter().zip(strides);
        let mut small: Vec<_> =
            axes.map(|(size, stride)| if *stride == 0 { 1 } else { *size }).collect();
        if let (Some(last), Some(keys)) = (small.last_mut(), dims.last()) {
            *last = *keys;
        }
        let (is_repeated, strides) = (small != **dims, strides.to_vec());
        let mask = if is_repeated {
            &mask.call_method1(intern!(py, "as_strided"), (&small, strides))?
        } else {
            mask
        };
        let bias = query.call_method1(intern!(py, "new_empty"), (small,))?;
        let options = PyDict::new(py);
        options.set_item(intern!(py, "out"), bias)?;
        // One kernel: log 1 is 0, and log 0 is minus infinity.
        self.log.bind(py).call((mask,), Some(&options)).map(Some)
    }
}
