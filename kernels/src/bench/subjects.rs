//! All kernels, as an exercise must know them.

use super::subject::{Input, KernelSpec, Specification, Tensorial, place};
use crate::argsort::{self, Argsort};
use crate::batched_gemm::{self, BatchedGemm};
use crate::get_rows::{self, GetRows};
use crate::reflection_pad1d::{self, ReflectionPad1d};
use crate::rms_norm::{self, RmsNorm};
use crate::softmax::{self, Softmax};
use crate::temporal_attention::{self, TemporalAttention};
use crate::upsample_nearest2d::{self, UpsampleNearest2d};

/// What keeps the roots of rows of zeros finite.
pub(super) const EPSILON: f32 = 1e-6;

impl<T: Tensorial> KernelSpec<T, 1> for Argsort {
    type Output = u32;

    fn specification(&self) -> Specification<1> {
        let [_, columns] = self.dims();
        Specification {
            inputs: [Input::Items(columns)],
            output_per_item: columns,
            least_bytes: self.least_bytes(),
            // Orders are the same or wrong.
            tolerance: 0.0,
        }
    }

    fn expected(&self, [row]: [&[T]; 1]) -> Vec<f64> {
        argsort::reference(row, self.order()).into_iter().map(f64::from).collect()
    }
}

impl<T: Tensorial> KernelSpec<T, 2> for BatchedGemm {
    type Output = T;

    fn specification(&self) -> Specification<2> {
        let ([_, m, k], [_, _, n]) = (self.a_dims(), self.b_dims());
        Specification {
            inputs: [Input::Items(m * k), Input::Items(k * n)],
            output_per_item: m * n,
            least_bytes: self.least_bytes(),
            tolerance: batched_gemm::tolerance(T::TYPE),
        }
    }

    fn expected(&self, [a, b]: [&[T]; 2]) -> Vec<f64> {
        let [_, k, n] = self.b_dims();
        batched_gemm::reference(a, b, place(n), place(k))
    }
}

impl<T: Tensorial> KernelSpec<T, 1> for GetRows {
    type Output = T;

    fn specification(&self) -> Specification<1> {
        let [rows, columns] = self.table_dims();
        Specification {
            inputs: [Input::Table { rows, columns }],
            output_per_item: columns,
            least_bytes: self.least_bytes(),
            tolerance: get_rows::tolerance(T::TYPE),
        }
    }

    fn expected(&self, [row]: [&[T]; 1]) -> Vec<f64> {
        row.iter().map(|x| f64::from(x.widen())).collect()
    }
}

impl<T: Tensorial> KernelSpec<T, 1> for ReflectionPad1d {
    type Output = T;

    fn specification(&self) -> Specification<1> {
        let ([_, channels, width], [_, _, padded]) = (self.input_dims(), self.output_dims());
        Specification {
            inputs: [Input::Items(channels * width)],
            output_per_item: channels * padded,
            least_bytes: self.least_bytes(),
            tolerance: reflection_pad1d::tolerance(T::TYPE),
        }
    }

    fn expected(&self, [rows]: [&[T]; 1]) -> Vec<f64> {
        let ([_, _, width], [left, right]) = (self.input_dims(), self.pads());
        let padded = |row| reflection_pad1d::reference(row, place(left), place(right));
        rows.chunks(place(width)).flat_map(padded).collect()
    }
}

impl<T: Tensorial> KernelSpec<T, 2> for RmsNorm {
    type Output = T;

    fn specification(&self) -> Specification<2> {
        let [_, columns] = self.dims();
        Specification {
            inputs: [Input::Items(columns), Input::Whole(columns)],
            output_per_item: columns,
            least_bytes: self.least_bytes(),
            tolerance: rms_norm::tolerance(T::TYPE),
        }
    }

    fn expected(&self, [row, weight]: [&[T]; 2]) -> Vec<f64> {
        rms_norm::reference(row, weight, EPSILON)
    }
}

impl<T: Tensorial> KernelSpec<T, 1> for Softmax {
    type Output = T;

    fn specification(&self) -> Specification<1> {
        let [_, columns] = self.dims();
        Specification {
            inputs: [Input::Items(columns)],
            output_per_item: columns,
            least_bytes: self.least_bytes(),
            tolerance: softmax::tolerance(T::TYPE, columns),
        }
    }

    fn expected(&self, [row]: [&[T]; 1]) -> Vec<f64> {
        softmax::reference(row)
    }
}

impl<T: Tensorial> KernelSpec<T, 3> for TemporalAttention {
    type Output = T;

    fn specification(&self) -> Specification<3> {
        let elements = self.shape().elements_per_item();
        Specification {
            inputs: [Input::Items(elements); 3],
            output_per_item: elements,
            least_bytes: self.shape().least_bytes(T::TYPE),
            tolerance: temporal_attention::tolerance(T::TYPE),
        }
    }

    fn expected(&self, [q, k, v]: [&[T]; 3]) -> Vec<f64> {
        let (scale, head) = (self.shape().scale(), place(self.shape().elements_per_problem()));
        let heads = q.chunks(head).zip(k.chunks(head)).zip(v.chunks(head));
        heads
            .flat_map(|((q, k), v)| temporal_attention::reference(self, scale, [q, k, v], None))
            .collect()
    }

    /// In f32, as the kernel.
    #[cfg(feature = "host")]
    fn run_on_host(
        &self,
        guard: &gridguard::Guard,
        plan: &gridguard::Plan,
        inputs: [&[T]; 3],
        out: &mut [T],
    ) -> Result<u64, crate::error::KernelError> {
        let scale = self.shape().scale();
        temporal_attention::run_on_host(guard, plan, self, scale, inputs, None, out, || {})
    }
}

impl<T: Tensorial> KernelSpec<T, 1> for UpsampleNearest2d {
    type Output = T;

    fn specification(&self) -> Specification<1> {
        let ([_, height, width], [_, out_height, out_width]) =
            (self.input_dims(), self.output_dims());
        Specification {
            inputs: [Input::Items(height * width)],
            output_per_item: out_height * out_width,
            least_bytes: self.least_bytes(),
            tolerance: upsample_nearest2d::tolerance(T::TYPE),
        }
    }

    fn expected(&self, [plane]: [&[T]; 1]) -> Vec<f64> {
        let ([_, height, width], [_, out_height, out_width]) =
            (self.input_dims(), self.output_dims());
        upsample_nearest2d::reference(plane, [height, width], [out_height, out_width])
    }
}
