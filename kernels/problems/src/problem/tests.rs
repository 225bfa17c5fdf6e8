//! Tests of problems by name.

use std::collections::HashSet;

use gridguard::ComputeCapability;

use super::*;

fn refusal(text: &str) -> String {
    text.parse::<Problem>().expect_err("no problem").to_string()
}

#[test]
fn a_problem_parses_from_its_own_text() {
    for text in ["rms_norm f16 32768x4096", "temporal_attention f32 15360x5x16x64"] {
        assert_eq!(text.parse::<Problem>().expect("a problem").to_string(), text);
    }
}

#[test]
fn every_kernel_parses_by_its_name() {
    for kernel in Problem::KERNELS {
        let sizes = ["1"; 4];
        let problem = (1..=4).find_map(|n| Problem::new(kernel, "f16", &sizes[..n].join("x")).ok());
        assert_eq!(problem.map(|problem| problem.kernel()), Some(kernel));
    }
}

#[test]
fn errors_name_what_is_supported() {
    assert_eq!(
        refusal("norm f16 1x2"),
        "unknown kernel `norm`: the kernels are argsort, attention_backward, geglu, layer_norm, \
         rms_norm, softmax, temporal_attention"
    );
    assert_eq!(
        refusal("rms_norm f64 1x2"),
        "rms_norm does not support tensors of `f64`: use f16, bf16 or f32"
    );
    assert_eq!(
        refusal("rms_norm f16 i64 1x2"),
        "rms_norm does not support tensors of `f16 i64`: use f16, bf16 or f32"
    );
    assert_eq!(
        refusal("rms_norm f16 1x2x3"),
        "rms_norm has the sizes rows x columns, but 3 were given"
    );
    assert_eq!(
        refusal("rms_norm f16 1x-2"),
        "`-2` is not a size: write whole numbers separated by x, such as 32768x4096"
    );
    assert_eq!(
        refusal("rms_norm f16 0x8"),
        "`0x8` has no items: the first size must be at least 1"
    );
    assert_eq!(
        refusal("rms_norm"),
        "`rms_norm` is not a problem: write kernel, types and sizes, such as rms_norm f16 \
         32768x4096"
    );
}

fn distinct(problems: &[Problem]) -> HashSet<Problem> {
    let set: HashSet<Problem> = problems.iter().copied().collect();
    assert_eq!(set.len(), problems.len());
    set
}

#[test]
fn ten_problems_of_each_kernel_are_shipped() {
    let all = Problem::shipped();
    distinct(&all);
    for kernel in Problem::KERNELS {
        assert_eq!(all.iter().filter(|problem| problem.kernel() == kernel).count(), 10);
    }
}

fn hopper() -> DeviceLimits {
    DeviceLimits {
        compute_capability: ComputeCapability::new(9, 0),
        max_shared_bytes_per_block_opt_in: 227 << 10,
        ..DeviceLimits::any_device()
    }
}

/// Blocks on y or z, items, and elements of the largest tensor.
fn extents(problem: &Problem) -> [u64; 3] {
    let setup = problem.setup(&hopper(), &[]).expect("supported");
    let (grid, items) = (setup.request.grid, setup.batch.items());
    let tensors = (problem.entry().tensors)(&problem.sized, &hopper()).expect("supported");
    let inputs = tensors.inputs.iter().map(|input| input.elements(items));
    let elements = inputs.fold(items * tensors.outputs.iter().max().expect("an output"), u64::max);
    [grid.y.max(grid.z), items, elements]
}

#[test]
fn shipped_problems_fit_and_most_overflow_a_grid_axis() {
    let all = Problem::shipped();
    let mut overflow = 0;
    for problem in &all {
        let [blocks, items, elements] = extents(problem);
        assert!(items > 1, "{problem}");
        let bytes = elements * problem.element().bytes();
        assert!(bytes <= 1_500_000_000, "{problem}: {bytes} bytes");
        overflow += usize::from(blocks > 65_535);
    }
    assert!(2 * overflow > all.len(), "{overflow} of {}", all.len());
}

#[test]
fn the_traffic_is_that_of_the_items_read_and_written_once() {
    let traffic = |text: &str| {
        let problem: Problem = text.parse().expect("a problem");
        let Traffic { read, written } = problem.traffic(&hopper()).expect("supported");
        (read, written)
    };
    assert_eq!(traffic("temporal_attention f16 15360x5x16x64"), (471_859_200, 157_286_400));
    assert_eq!(traffic("attention_backward f16 15360x5x16x64"), (4 * 157_286_400, 3 * 157_286_400));
    assert_eq!(traffic("argsort f16 5x10"), (5 * 10 * 2, 5 * 10 * 4));
    assert_eq!(traffic("rms_norm f32 5x10"), (5 * 10 * 4, 5 * 10 * 4));
}

#[test]
fn every_implementation_has_a_source_of_its_own() {
    let all: Vec<String> = Problem::KERNELS.into_iter().flat_map(current_sources).collect();
    let distinct: HashSet<&String> = all.iter().collect();
    assert_eq!(
        (all.len(), distinct.len()),
        (15, 15),
        "five kernels, six of attention and four of its gradients"
    );
}

#[test]
fn the_source_of_every_key_is_current() {
    for problem in Problem::shipped() {
        let key = problem.key(&hopper(), Policy::default(), Objective::default());
        let source = key.expect("supported").source;
        assert!(current_sources(problem.kernel()).contains(&source), "{problem}");
    }
}
