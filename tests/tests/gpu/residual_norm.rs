//! Compares the norm of sums with its f64 reference, whole, split and folded, in place and apart.

use cudarc::driver::{DevicePtr, DevicePtrMut};
use gridguard::Choice;
use gridguard_examples::uniform;
use gridguard_kernels::residual_norm::{ResidualNorm, reference};
use gridguard_kernels::{Deviation, ElementType};
use half::{bf16, f16};
use proptest::prelude::{ProptestConfig, proptest};

use super::support::{Tensorial, is_the_same_split_and_folded, kernels, poisoned, stream};

const EPSILON: f32 = 1e-6;

#[derive(Clone, Copy)]
struct Problem {
    rows: u64,
    columns: u64,
    centered: bool,
    in_place: bool,
}

impl Problem {
    fn operation<T: Tensorial>(self) -> ResidualNorm {
        ResidualNorm::new(self.rows, self.columns, T::TYPE, self.centered).expect("a legal shape")
    }

    /// x, added and weight.
    fn synthetic<T: Tensorial>(self) -> (Vec<f32>, Vec<T>, Vec<f32>) {
        let len = usize::try_from(self.rows * self.columns).expect("elements");
        let columns = usize::try_from(self.columns).expect("columns");
        (uniform(len, 1), uniform(len, 2), uniform(columns, 3))
    }

    /// The norm of random rows, launched as chosen, and its cast.
    #[allow(unsafe_code, reason = "a launch by addresses")]
    fn norm<T: Tensorial>(self, choice: Choice) -> (Vec<f32>, Vec<T>) {
        let stream = stream();
        let (x, added, weight) = self.synthetic::<T>();
        let (mut x, added) =
            (stream.clone_htod(&x).expect("x"), stream.clone_htod(&added).expect("added"));
        let weight = stream.clone_htod(&weight).expect("weight");
        let mut out = poisoned::<f32>(&stream, x.len());
        let mut cast = poisoned::<T>(&stream, x.len());
        let prepared = kernels().prepare(self.operation::<T>(), choice).expect("a plan");
        {
            let (at, _x) = x.device_ptr_mut(&stream);
            let (to, _out) = out.device_ptr_mut(&stream);
            let (to_cast, _cast) = cast.device_ptr_mut(&stream);
            let (added, _added) = added.device_ptr(&stream);
            let (weight, _weight) = weight.device_ptr(&stream);
            let addresses = [at, added, if self.in_place { at } else { to }, to_cast, weight];
            // SAFETY: the tensors have the prepared sizes and types, and live until the copies below.
            let launched =
                unsafe { prepared.launch_raw(stream.cu_stream().cast(), addresses, EPSILON) };
            assert_eq!(launched.expect("launches"), prepared.plan().len());
        }
        let out = if self.in_place { &x } else { &out };
        (stream.clone_dtoh(out).expect("out"), stream.clone_dtoh(&cast).expect("cast"))
    }

    fn matches_the_reference<T: Tensorial>(self, chunk: u64) {
        let whole = self.norm::<T>(Choice::AUTOMATIC);
        let (x, added, weight) = self.synthetic::<T>();
        let (mut exact, mut rounded) = (Deviation::new(), Deviation::new());
        let columns = weight.len();
        let rows = x.chunks(columns).zip(added.chunks(columns));
        for ((x, added), (out, cast)) in
            rows.zip(whole.0.chunks(columns).zip(whole.1.chunks(columns)))
        {
            let expected = reference((x, added), &weight, EPSILON, self.centered);
            exact.add(out, &expected);
            rounded.add(cast, &expected);
        }
        let name = format!("{} {}x{columns}", T::TYPE, self.rows);
        assert!(exact.within(ElementType::F32.rounding_error()), "{name}: {:e}", exact.relative());
        assert!(rounded.within(T::TYPE.rounding_error()), "{name}: {:e}", rounded.relative());
        is_the_same_split_and_folded(&self.operation::<T>(), chunk, &whole, &name, |choice| {
            self.norm::<T>(choice)
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    #[ignore = "needs a CUDA GPU"]
    fn residual_norm_matches_the_reference_whole_and_split(
        rows in 1_u64..300,
        vectors in 1_u64..=256,
        centered: bool,
        in_place: bool,
        chunk in 1_u64..300,
    ) {
        let problem = Problem { rows, columns: 8 * vectors, centered, in_place };
        problem.matches_the_reference::<f16>(chunk);
        problem.matches_the_reference::<bf16>(chunk);
    }
}
