//! Kernels whose PTX was rewritten: which entry is launched, and what its added parameter says.
#![allow(unsafe_code, reason = "someone must promise that a kernel keeps its contract")]

use cudarc::driver::CudaSlice;
use expect_test::expect;
use gridguard::cuda::{
    Args, CompileOptions, Compiler, CudaErrorKind, Kernel, LaunchError, LaunchErrorKind,
};
use gridguard::ptx::{Fold, PtxError, Reason, shifted_words};
use gridguard::{
    Axis, BatchAxis, Choice, ComputeCapability, Dim3, Guard, LaunchLimits, LaunchRequest,
    Parameter, Plan, Rule, Strategy,
};
use gridguard_test_support::allocator::allocations_of;
use gridguard_test_support::fake_driver::{Driver, launches, with_driver, with_fake};

use crate::kernels::{context, guard, poisoned, with_guard, with_stream};

/// `fill` can be launched in parts; `waits` belongs to one launch.
const PTX: &str = "\
.version 8.0
.target sm_90
.address_size 64
.visible .entry fill(
	.param .u64 out,
	.param .u32 items
)
{
	.reg .b32 %r<4>;
	mov.u32 %r1, %ctaid.x;
	mov.u32 %r2, %ctaid.y;
	mov.u32 %r3, %nctaid.z;
	ret;
}
.visible .entry waits(.param .u64 out)
{
	.reg .b32 %r<2>;
	mov.u32 %r9, %clusterid.x;
	mov.u32 %r1, %ctaid.y;
	ret;
}
.visible .entry alone()
{
	ret;
}
";

pub(crate) const FILL: [Parameter; 2] = [Parameter::Memory, Parameter::of::<u32>()];

pub(crate) fn load(guard: &Guard, name: &str, parameters: &[Parameter]) -> Kernel {
    let module = guard.load_ptx(PTX).expect("the fake driver takes it");
    // SAFETY: the fake driver's kernels do nothing.
    unsafe { module.kernel(name, parameters) }.expect("it is in the PTX")
}

fn request(grid: [u64; 3]) -> LaunchRequest {
    LaunchRequest::new(Dim3::new(grid[0], grid[1], grid[2]), Dim3::new(128, 1, 1))
}

/// Launches `fill` over `grid` as `choice` says, and returns the number of launches.
fn fill(
    guard: &Guard,
    kernel: &Kernel,
    grid: [u64; 3],
    choice: Choice,
) -> Result<u64, LaunchError> {
    let stream = context(guard).default_stream();
    let out = poisoned(&stream, 8);
    let mut args = Args::new(&stream);
    args.read(&out).value(7_u32);
    let plan = guard.plan(&request(grid), None, kernel.limits(), choice)?;
    guard.launch(kernel, &plan, args)
}

/// A launch in the log: its entry, its grid, its own arguments, and the added words.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Logged {
    pub(crate) entry: String,
    pub(crate) grid: [u32; 3],
    pub(crate) items: u64,
    pub(crate) words: Vec<u32>,
}

/// The launches of the log after the first `skipped`.
pub(crate) fn logged(skipped: usize) -> Vec<Logged> {
    launches()[skipped..].iter().map(|line| read(line)).collect()
}

fn read(line: &str) -> Logged {
    let entry = line.split(' ').next().expect("a name").to_owned();
    let value = |key: &str| {
        let (_, rest) = line.split_once(key).unwrap_or_else(|| panic!("no {key} in {line}"));
        rest.split(' ').next().expect("a value").to_owned()
    };
    let grid: Vec<u32> =
        value(" grid=").split(',').map(|size| size.parse().expect("a number")).collect();
    let args = value(" args=");
    let args: Vec<&str> = args.split(',').collect();
    let items = u64::from_str_radix(args[1], 16).expect("hexadecimal");
    let bytes = match entry.rsplit_once("__gridguard_") {
        Some((_, "shifted")) => 24,
        Some((_, "folded")) => 40,
        _ => 0,
    };
    // The log writes an argument as one number in hexadecimal digits, without zeros before it.
    let number = args.get(2).map_or(String::new(), |number| format!("{number:0>0$}", 2 * bytes));
    let digits = number.as_bytes().rchunks(8);
    let word = |digits| u32::from_str_radix(core::str::from_utf8(digits).expect("digits"), 16);
    let words = digits.map(|digits| word(digits).expect("hexadecimal")).collect();
    assert_eq!(number.len(), 2 * bytes, "{line}");
    Logged { entry, grid: grid.try_into().expect("three axes"), items, words }
}

/// The launch of a shifted part.
fn shifted(grid: [u32; 3], first: [u32; 3], size: [u32; 3]) -> Logged {
    let words = shifted_words(grid, first).to_vec();
    Logged { entry: "fill__gridguard_shifted".into(), grid: size, items: 7, words }
}

#[test]
fn plans_for_limits_that_the_caller_made_are_refused() {
    with_stream(&[], |guard, stream| {
        let kernel = load(&guard, "fill", &FILL);
        let out = poisoned(&stream, 8);
        let known = kernel.limits();
        let forms = known.form_limits().expect("a rewritten kernel");
        let same = LaunchLimits::rewritten(known.device().clone(), known.kernel().clone(), forms);
        for strategy in [Strategy::Whole, Strategy::Shifted, Strategy::Folded] {
            let choice = Choice::AUTOMATIC.strategy(strategy);
            for limits in [&same, &known.clone().with_automatic_opt_in()] {
                let plan = guard.plan(&request([1, 60_000, 1]), None, limits, choice);
                let plan = plan.expect("legal");
                let mut args = Args::new(&stream);
                args.read(&out).value(7_u32);
                let refused = LaunchErrorKind::OtherKernel { kernel: "fill".into() };
                assert_eq!(guard.launch(&kernel, &plan, args), Err(refused.into()), "{strategy}");
            }
        }
        assert!(launches().is_empty());
    });
}

#[test]
fn a_legal_launch_is_that_of_the_original_entry() {
    with_guard(&[], |guard| {
        let kernel = load(&guard, "fill", &FILL);
        assert_eq!(kernel.name(), "fill");
        assert_eq!(fill(&guard, &kernel, [3, 65_535, 2], Choice::AUTOMATIC), Ok(1));
        let expected =
            Logged { entry: "fill".into(), grid: [3, 65_535, 2], items: 7, words: Vec::new() };
        assert_eq!(logged(0), [expected]);
        let stream = context(&guard).default_stream();
        let out = poisoned(&stream, 8);
        let launch = || {
            let mut args = Args::new(&stream);
            args.read(&out).value(7_u32);
            guard.launch(&kernel, &request([1, 9, 1]), args)
        };
        launch().expect("legal");
        let (launched, allocations) = allocations_of(launch);
        assert_eq!((launched, allocations), (Ok(1), 0));
    });
}

#[test]
fn a_launch_of_76_800_blocks_on_y_is_folded_into_one() {
    with_stream(&[], |guard, stream| {
        let kernel = load(&guard, "fill", &FILL);
        let out = poisoned(&stream, 8);
        let mut args = Args::new(&stream);
        args.read(&out).value(7_u32);
        let launched = guard.launch(&kernel, &request([2, 76_800, 1]), args);
        assert_eq!(launched, Ok(1));
        let words = Fold::new([2, 76_800, 1]).expect("few blocks").words(0).to_vec();
        let entry = "fill__gridguard_folded".into();
        assert_eq!(logged(0), [Logged { entry, grid: [153_600, 1, 1], items: 7, words }]);
        let counts = guard.counts();
        assert_eq!((counts.plans, counts.launches), (1, 1));
        assert!(counts.rejections.is_empty());
    });
}

#[test]
fn parts_of_a_grid_begin_where_the_one_before_ended_on_every_axis() {
    with_guard(&[], |guard| {
        let kernel = load(&guard, "fill", &FILL);
        let choice = Choice::AUTOMATIC.strategy(Strategy::Shifted);
        let most = u64::from(u32::MAX);
        let third = 1_431_655_765;
        assert_eq!(fill(&guard, &kernel, [most, 1, 1], choice), Ok(3));
        let grid = [u32::MAX, 1, 1];
        let first = [0, third, 2 * third];
        assert_eq!(logged(0), first.map(|x| shifted(grid, [x, 0, 0], [third, 1, 1])));

        assert_eq!(fill(&guard, &kernel, [4, 70_000, 1], choice), Ok(2));
        let part = |y| shifted([4, 70_000, 1], [0, y, 0], [4, 35_000, 1]);
        assert_eq!(logged(3), [part(0), part(35_000)]);

        assert_eq!(fill(&guard, &kernel, [1, 2, 131_071], choice), Ok(3));
        let part = |z, size| shifted([1, 2, 131_071], [0, 0, z], [1, 2, size]);
        assert_eq!(logged(5), [part(0, 43_690), part(43_690, 43_690), part(87_380, 43_691)]);

        assert_eq!(fill(&guard, &kernel, [3, 70_000, 65_537], choice), Ok(4));
        let part = |y, z, size| shifted([3, 70_000, 65_537], [0, y, z], [3, 35_000, size]);
        let parts =
            [(0, 0, 32_768), (35_000, 0, 32_768), (0, 32_768, 32_769), (35_000, 32_768, 32_769)];
        assert_eq!(logged(8), parts.map(|(y, z, size)| part(y, z, size)));
    });
}

#[test]
fn arguments_that_follow_items_have_the_whole_batch_in_every_part() {
    with_stream(&[], |guard, stream| {
        let kernel = load(&guard, "fill", &FILL);
        let launch = |out: &mut CudaSlice<u64>, grid, choice| {
            let batch = BatchAxis::new(Axis::Y, 70_000);
            let mut args = Args::new(&stream);
            args.write_items(out, 1).length_as::<u32>();
            let plan = Plan::new(&request(grid), Some(&batch), kernel.limits(), choice)?;
            guard.launch(&kernel, &plan, args)
        };
        let mut out = poisoned(&stream, 70_000);
        // A declared batch is chunked, until another axis is too large as well.
        assert_eq!(launch(&mut out, [1, 70_000, 1], Choice::AUTOMATIC), Ok(2));
        let chunks: Vec<_> = logged(0).into_iter().map(|one| (one.entry, one.items)).collect();
        assert_eq!(chunks, [("fill".to_owned(), 35_000), ("fill".to_owned(), 35_000)]);
        let shifted = Choice::AUTOMATIC.strategy(Strategy::Shifted);
        for (grid, choice) in [([1, 70_000, 65_536], Choice::AUTOMATIC), ([1, 70_000, 1], shifted)]
        {
            let before = launches().len();
            launch(&mut out, grid, choice).expect("parts");
            assert!(logged(before).iter().all(|one| one.items == 70_000));
            assert!(logged(before).iter().all(|one| one.entry == "fill__gridguard_shifted"));
        }
        let mut short = poisoned(&stream, 69_999);
        let refused = launch(&mut short, [1, 70_000, 1], shifted).expect_err("too short");
        assert!(matches!(refused.kind(), LaunchErrorKind::Args(_)), "{refused}");
    });
}

#[test]
fn what_belongs_to_one_launch_is_refused_with_the_reason_and_its_legal_launches_run() {
    with_stream(&[], |guard, stream| {
        let kernel = load(&guard, "waits", &[Parameter::Memory]);
        let out = poisoned(&stream, 8);
        let launch = |request: LaunchRequest, batch: Option<BatchAxis>| {
            let mut args = Args::new(&stream);
            args.read(&out);
            guard.launch(&kernel, (&request, batch.as_ref()), args)
        };
        assert_eq!(launch(request([1, 65_535, 1]), None), Ok(1));
        assert!(launches()[0].starts_with("waits grid=1,65535,1 "));
        let error = launch(request([1, 65_536, 1]), None).expect_err("too many blocks");
        let text = error.to_string();
        expect![
            "the kernel could not be rewritten: line 18, column 15, in waits: %clusterid is about \
             the clusters of one launch, and each chunk is a launch of its own"
        ]
        .assert_eq(text.split_once('\n').expect("two lines").1);
        let LaunchErrorKind::NotRewritten { violations, refusal } = error.kind() else {
            panic!("{error:?}")
        };
        assert_eq!(refusal.reason, Reason::Cluster);
        assert!(violations.contains(Rule::GridDimY));
        assert_eq!(error.violations(), Some(violations));
        assert_eq!(guard.counts().rejections, [(Rule::GridDimY, 1)]);
        // A declared batch is still chunked.
        assert_eq!(launch(request([1, 65_536, 1]), Some(BatchAxis::new(Axis::Y, 65_536))), Ok(2));
        // Another rule is broken whatever the kernel is.
        let mut wide = request([1, 65_536, 1]);
        wide.block.x = 2048;
        let error = launch(wide, None).expect_err("too many threads");
        assert!(matches!(error.kind(), LaunchErrorKind::Invalid(_)), "{error:?}");
        assert_eq!(launches().len(), 3);
    });
}

#[test]
fn a_kernel_without_parameters_is_folded() {
    with_stream(&[], |guard, stream| {
        let kernel = load(&guard, "alone", &[]);
        let request = request([1, 1, 65_536]);
        assert_eq!(guard.launch(&kernel, &request, Args::new(&stream)), Ok(1));
        assert!(launches()[0].starts_with("alone__gridguard_folded grid=65536,1,1 "));
    });
}

#[test]
fn what_cannot_be_loaded_or_found_is_a_typed_error() {
    with_guard(&[], |guard| {
        let load_error = |text: &str| guard.load_ptx(text).expect_err("not legal");
        let cut = &PTX[..PTX.len() - 3];
        let error = load_error(cut);
        let CudaErrorKind::Rewrite(PtxError::Unterminated { .. }) = error.kind() else {
            panic!("{error:?}");
        };
        let error = load_error(&PTX.replace(".version 8.0", ".version 10.0"));
        expect![
            "the PTX cannot be rewritten: PTX version 10.0 is unknown: versions up to 9.x can be \
             rewritten"
        ]
        .assert_eq(&error.to_string());
        assert!(matches!(load_error("no PTX").kind(), CudaErrorKind::Image(_)));
        let module = guard.load_ptx(PTX).expect("PTX");
        assert!(module.report().is_some_and(|report| report.entries.len() == 3));
        // SAFETY: there is no such kernel to launch.
        let error = unsafe { module.kernel("file", &[]) }.expect_err("no such kernel");
        expect!["the module has no kernel \"file\": it has fill, waits, alone"]
            .assert_eq(&error.to_string());
        // SAFETY: it is not had.
        let error = unsafe { module.kernel("fill", &[Parameter::Memory]) }.expect_err("two");
        expect!["kernel fill takes parameters of [8, 4] bytes, but [8] are declared"]
            .assert_eq(&error.to_string());
    });
}

#[test]
fn a_part_that_the_driver_refuses_ends_the_launch_with_the_blocks_done() {
    with_guard(&[("GRIDGUARD_FAKE_FAIL_LAUNCH", "1")], |guard| {
        let kernel = load(&guard, "fill", &FILL);
        let choice = Choice::AUTOMATIC.strategy(Strategy::Shifted);
        let error = fill(&guard, &kernel, [4, 70_000, 1], choice).expect_err("refused");
        let LaunchErrorKind::Stopped(stopped) = error.kind() else { panic!("{error:?}") };
        let done = (stopped.chunk, stopped.launches, stopped.items_done, stopped.items);
        assert_eq!(done, (1, 2, 140_000, 280_000));
        assert_eq!(logged(0), [shifted([4, 70_000, 1], [0, 0, 0], [4, 35_000, 1])]);
    });
}

#[test]
fn ptx_of_the_compiler_is_rewritten() {
    with_driver(Driver::WithCompiler, &[], || {
        let options = CompileOptions::new("invert.cu", ComputeCapability::new(9, 0));
        let compiler = Compiler::find().expect("the fake NVRTC");
        let compiled = compiler.compile_to_ptx("{}", &options).expect("it compiles");
        let guard = guard();
        let module = guard.load_ptx(compiled.image.ptx().expect("PTX")).expect("it loads");
        let parameters = [Parameter::Memory, Parameter::of::<u64>()];
        // SAFETY: the fake driver inverts as many values as the memory has.
        let kernel = unsafe { module.kernel("gridguard_invert", &parameters) }.expect("a kernel");
        let plan = guard.plan(&request([1, 70_000, 1]), None, kernel.limits(), Choice::AUTOMATIC);
        assert_eq!(plan.expect("folded").strategy(), Strategy::Folded);
    });
}

/// Tuned choices between the forms.
#[cfg(feature = "profile")]
mod tuned {
    use gridguard::profile::{Entry, Key, StoredChoice};

    use super::*;
    use crate::kernels::config;
    use crate::tuned::{entry, guard_with};

    #[test]
    fn the_profile_chooses_the_form_by_the_blocks_of_the_grid() {
        with_fake(&[], || {
            for (choice, expected) in [(StoredChoice::Shifted, 2), (StoredChoice::Folded, 1)] {
                let key = Key { kernel: "fill".into(), ..Key::default() };
                let shape = vec![("blocks".into(), 140_000)];
                let entry = Entry { key: key.clone(), shape, ..entry(1, 1, choice) };
                let guard = guard_with([entry]);
                let kernel = load(&guard, "fill", &FILL).with_tuning(key, "blocks", &[]);
                let stream = context(&guard).default_stream();
                let out = poisoned(&stream, 8);
                let launch = |grid| {
                    let mut args = Args::new(&stream);
                    args.read(&out).value(7_u32);
                    guard.launch(&kernel, &request(grid), args)
                };
                assert_eq!(launch([2, 70_000, 1]), Ok(expected));
                assert_eq!(launch([2, 60_000, 1]), Ok(1));
                let mut builder = guard.builder(&stream, &kernel);
                builder.arg(&out).arg(&7_u32);
                let launched = builder.launch(config((2, 70_000, 1), 128));
                assert_eq!(launched, Ok(expected));
                let misses = guard.misses().expect("it has a log").snapshot();
                assert_eq!(misses, [], "a legal launch has no choice");
            }
        });
    }
}
