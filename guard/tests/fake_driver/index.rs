//! Kernels of PTX whose 32-bit indices wrap from some launch on.
#![allow(unsafe_code, reason = "someone must promise that a kernel keeps its contract")]

use gridguard::cuda::{Args, Kernel, LaunchError, Module};
use gridguard::image::Image;
use gridguard::{Axis, BatchAxis, Choice, Dim3, Guard, LaunchRequest, Parameter, Rule, Strategy};
use gridguard_test_support::fake_driver::launches;

use crate::kernels::{context, poisoned, with_guard};

/// A row of blocks adds 65,536 to the index of one entry, and `pitch` to the index of another.
const PTX: &str = "\
.version 8.0
.target sm_90
.address_size 64
.visible .entry rows(.param .u64 out)
{
	.reg .b32 %r<4>;
	.reg .b64 %rd<4>;
	ld.param.u64 %rd1, [out];
	mov.u32 %r1, %ctaid.y;
	shl.b32 %r2, %r1, 16;
	mul.wide.s32 %rd2, %r2, 8;
	add.s64 %rd3, %rd1, %rd2;
	st.global.u32 [%rd3], %r1;
	ret;
}
.visible .entry pitched(.param .u64 out, .param .u32 pitch)
{
	.reg .b32 %r<4>;
	.reg .b64 %rd<4>;
	ld.param.u64 %rd1, [out];
	ld.param.u32 %r3, [pitch];
	mov.u32 %r1, %ctaid.y;
	mul.lo.s32 %r2, %r1, %r3;
	mul.wide.s32 %rd2, %r2, 8;
	add.s64 %rd3, %rd1, %rd2;
	st.global.u32 [%rd3], %r1;
	ret;
}
";

fn request(rows: u64) -> LaunchRequest {
    LaunchRequest::new(Dim3::new(3, rows, 1), Dim3::new(32, 1, 1))
}

fn kernel(module: &Module) -> Kernel {
    // SAFETY: the fake driver's kernels do nothing.
    unsafe { module.kernel("rows", &[Parameter::Memory]) }.expect("it is in the PTX")
}

fn launch(guard: &Guard, kernel: &Kernel, rows: u64, batch: bool) -> Result<u64, LaunchError> {
    let stream = context(guard).default_stream();
    let mut out = poisoned(&stream, rows);
    let batch = batch.then(|| BatchAxis::new(Axis::Y, rows));
    let mut args = Args::new(&stream);
    match batch {
        Some(_) => args.write_items(&mut out, 1),
        None => args.write(&mut out),
    };
    guard.launch(kernel, (&request(rows), batch.as_ref()), args)
}

#[test]
fn a_launch_whose_indices_wrap_is_refused_and_a_batch_is_launched_in_chunks() {
    with_guard(&[], |guard| {
        let image = Image::new(PTX).expect("PTX");
        for module in [guard.load(&image), guard.load_ptx(PTX)] {
            let kernel = kernel(&module.expect("the fake driver takes it"));
            let before = launches().len();
            assert_eq!(launch(&guard, &kernel, 32_768, false), Ok(1));
            for rows in [32_769, 65_535, 70_000] {
                let error = launch(&guard, &kernel, rows, false).expect_err("too many rows");
                let violations = error.violations().expect("a rule");
                assert!(violations.contains(Rule::IndexWrap), "{violations}");
            }
            assert_eq!(launches().len(), before + 1);
            assert_eq!(launch(&guard, &kernel, 70_000, true), Ok(3));
            for line in &launches()[before + 1..] {
                assert!(line.starts_with("rows ") && line.contains(" grid=3,2333"), "{line}");
            }
        }
    });
}

#[test]
fn no_form_of_a_rewritten_kernel_is_launched_where_an_index_of_the_whole_grid_wraps() {
    with_guard(&[], |guard| {
        let module = guard.load_ptx(PTX).expect("PTX");
        let kernel = kernel(&module);
        for strategy in [Strategy::Shifted, Strategy::Folded] {
            let choice = Choice::AUTOMATIC.strategy(strategy);
            let plan = guard.plan(&request(70_000), None, kernel.limits(), choice);
            let violations = plan.expect_err("it wraps").to_string();
            assert!(violations.ends_with("grid wrap too [index-wrap]"), "{violations}");
            let plan = guard.plan(&request(32_768), None, kernel.limits(), choice);
            assert_eq!(plan.expect("no index wraps").strategy(), strategy);
        }
    });
}

#[test]
fn what_depends_on_parameters_is_no_limit() {
    with_guard(&[], |guard| {
        let module = guard.load_ptx(PTX).expect("PTX");
        let parameters = [Parameter::Memory, Parameter::of::<u32>()];
        // SAFETY: the fake driver's kernels do nothing.
        let pitched = unsafe { module.kernel("pitched", &parameters) }.expect("it is in the PTX");
        assert_eq!(pitched.limits().kernel().index, []);
        assert_eq!(kernel(&module).limits().kernel().index.len(), 1);
    });
}
