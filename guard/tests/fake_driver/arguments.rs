//! Arguments that do not fit the kernel or the batch are refused before anything is launched.

use cudarc::driver::CudaSlice;
use gridguard::cuda::{Args, Kernel, LaunchErrorKind};
use gridguard::{ArgsError, Axis, BatchAxis, Dim3, Guard, LaunchRequest, MAX_ARGS, Plan};
use gridguard_test_support::fake_driver::{launches, with_fake};

use crate::kernels::{loaded, plan_along, poisoned, with_kernel};

/// What is wrong with the arguments that `fill` gives to a launch over `items` items, with memory for
/// `elements`. Nothing was launched with them.
fn refused(
    elements: u64,
    items: u64,
    fill: impl for<'a> FnOnce(&mut Args<'a>, &'a mut CudaSlice<u64>),
) -> ArgsError {
    let (guard, kernel, stream) = loaded("fake_iota_y");
    let mut memory = poisoned(&stream, elements);
    let mut args = Args::new(&stream);
    fill(&mut args, &mut memory);
    refusal_of(&guard, &kernel, &plan_along(&kernel, Axis::Y, items), args)
}

fn refusal_of(guard: &Guard, kernel: &Kernel, plan: &Plan, args: Args<'_>) -> ArgsError {
    let error = guard.launch(kernel, plan, args).expect_err("the arguments do not fit");
    assert_eq!(launches(), Vec::<String>::new());
    assert_eq!(guard.counts().launches, 0);
    match error.kind() {
        LaunchErrorKind::Args(error) => error.clone(),
        other => panic!("another error: {other:?}"),
    }
}

#[test]
fn arguments_that_do_not_fit_are_refused_with_the_first_that_does_not() {
    with_fake(&[], || {
        let kernel = || "fake_iota_y".to_owned();
        let count = |given| ArgsError::WrongCount { kernel: kernel(), expected: 3, given };
        let few = refused(8, 8, |args, out| _ = args.write_items(out, 1).offset());
        assert_eq!(few, count(2));
        let many = |args: &mut Args<'_>| _ = args.offset().length().value(0_u64);
        assert_eq!(refused(8, 8, |args, out| many(args.write_items(out, 1))), count(4));
        let size = ArgsError::WrongSize { kernel: kernel(), index: 2, expected: 8, given: 4 };
        let narrow = |args: &mut Args<'_>| _ = args.offset().length_as::<u32>();
        assert_eq!(refused(8, 8, |args, out| narrow(args.write_items(out, 1))), size);
        let values = |args: &mut Args<'_>| (0..=MAX_ARGS).for_each(|_| _ = args.value(0_u64));
        assert_eq!(refused(8, 8, |args, _| values(args)), ArgsError::TooMany { given: 33 });
        let number = refused(8, 8, |args, _| _ = args.value(0_u64).offset().length());
        let (expected, given) = ("memory", "a value");
        assert_eq!(number, ArgsError::WrongKind { kernel: kernel(), index: 0, expected, given });
        // Memory that is one item short, to write and only to read.
        let short = ArgsError::BufferTooSmall { index: 0, needed: 560_000, available: 559_992 };
        let write = |args: &mut Args<'_>| _ = args.offset().length();
        assert_eq!(refused(69_999, 70_000, |args, out| write(args.write_items(out, 1))), short);
        let short = ArgsError::BufferTooSmall { index: 0, needed: 128, available: 120 };
        assert_eq!(refused(15, 8, |args, input| write(args.read_items(&*input, 2))), short);
    });
}

#[test]
fn a_workspace_that_may_split_the_launch_refuses_the_total_of_the_batch_too() {
    with_kernel(&[], "fake_spill_y", |guard, kernel, stream| {
        let batch = BatchAxis::new(Axis::Y, 10).items_per_block(4).workspace(8, 1 << 20);
        let request = LaunchRequest::new(Dim3::new(1, 3, 1), Dim3::ONE);
        let mut out = poisoned(&stream, 10);
        let mut args = Args::new(&stream);
        args.write_items(&mut out, 1).offset().value(10_u64).workspace();
        let refused = guard.launch(&kernel, (&request, &batch), args);
        let wrong = ArgsError::TotalInChunks { index: 2, items: 10 };
        assert_eq!(refused, Err(wrong.into()));
    });
}

#[test]
fn memory_values_and_structs_reach_the_kernel_unchanged() {
    with_kernel(&[], "fake_iota_y", |guard, kernel, stream| {
        let mut out = poisoned(&stream, 8);
        let plan = plan_along(&kernel, Axis::Y, 8);
        let first = 1000_u64.to_le_bytes();
        let mut args = Args::new(&stream);
        args.write(&mut out).bytes(&first).value(-1_i64);
        assert_eq!(guard.launch(&kernel, &plan, args), Ok(1));
        let line = launches().pop().expect("one launch");
        assert!(line.ends_with(",3e8,ffffffffffffffff"), "{line}");
        let written = crate::kernels::read(&stream, &out);
        assert_eq!(written, (1000..1008).collect::<Vec<u64>>());
    });
}
