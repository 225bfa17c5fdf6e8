//! Every kernel, type and launch parameter on tensors so small that a sanitizer finishes.

use gridguard::{Choice, Dim3, Rule, Strategy, validate};
use gridguard_kernels::ElementType;
use gridguard_problems::{LaunchSetup, Problem};

use super::support::{kernels, stream};

/// Sizes of each kernel: whole vectors and odd rows, rows longer than registers hold, one block and several, every variant
/// of attention.
const SIZES: [(&str, &[&str]); 7] = [
    ("argsort", &["6x256", "5x1000", "2x5000"]),
    ("attention_backward", &["7x3x16x64", "3x2x32x40", "5x2x11x32", "2x2x16x160", "2x1x150x32"]),
    ("geglu", &["40x320", "37x513", "37x1280", "2x9000", "2x100001"]),
    ("layer_norm", &["40x320", "37x63", "37x513", "5x1280", "2x9000", "2x100001"]),
    ("rms_norm", &["40x1024", "37x513", "2x9000"]),
    ("softmax", &["40x1024", "37x513", "2x9000"]),
    (
        "temporal_attention",
        &["7x3x16x64", "3x2x33x40", "3x2x128x128", "3x2x16x160", "2x2x9x7", "2x1x150x64"],
    ),
];

pub(super) fn problems() -> Vec<Problem> {
    let mut problems = Vec::new();
    for (kernel, sizes) in SIZES {
        for (element, sizes) in
            ElementType::ALL.into_iter().flat_map(|one| sizes.iter().map(move |s| (one, s)))
        {
            let name = format!("{kernel} {element} {sizes}");
            problems.push(name.parse().unwrap_or_else(|error| panic!("{name}: {error}")));
        }
    }
    problems
}

#[test]
fn small_problems_are_of_every_kernel_and_legal() {
    let h200 = gridguard::catalog::gpu("h200").expect("catalogued");
    for problem in problems() {
        problem.setup(&h200.limits, &[]).unwrap_or_else(|error| panic!("{problem}: {error}"));
    }
    let mut kernels: Vec<&str> = problems().iter().map(Problem::kernel).collect();
    kernels.dedup();
    let mut expected = Problem::KERNELS.to_vec();
    expected.sort_unstable();
    assert_eq!(kernels, expected);
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn every_kernel_is_right_on_small_problems_whole_and_split() {
    problems().into_iter().for_each(|problem| is_right_in_every_setup(problem, 2));
}

/// Asserts that every set of launch parameters writes the right output, whole and in about this many chunks.
pub(super) fn is_right_in_every_setup(problem: Problem, chunks: u64) {
    let mut case = problem.on_device(kernels(), &stream()).expect("memory");
    let error = case.verify().unwrap_or_else(|error| panic!("{problem}: {error}"));
    assert!(error < 1e-2, "{problem}: {error:e}");
    for LaunchSetup { parameters, batch, request, limits } in case.setups().expect("the default") {
        // Some launch parameters need more shared memory than the device has.
        if let Err(violations) = validate(&request.grid(Dim3::ONE), &limits) {
            assert!(violations.contains(Rule::SharedMemoryTotal), "{problem}: {violations}");
            continue;
        }
        let unit = batch.unit().expect("small");
        let chunk = batch.items().div_ceil(chunks).next_multiple_of(unit);
        let split = Choice::at_most(chunk).strategy(Strategy::Chunked);
        for choice in [Choice::AUTOMATIC, split] {
            let handle = case.prepare(&parameters, choice, None).expect("a plan");
            let checked = case.check(handle);
            checked.unwrap_or_else(|error| panic!("{problem} {parameters:?}: {error}"));
        }
    }
}
