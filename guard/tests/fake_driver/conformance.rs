//! Compares the guard with the fake driver, launch by launch: the comparison works, and the fake
//! driver accepts and rejects the launches that the guard does.
#![allow(unsafe_code, reason = "raw handles of functions")]

use cudarc::driver::CudaFunction;
use cudarc::nvrtc::Ptx;
use gridguard_test_support::conformance::kernel::{
    KernelUnderTest, MAX_DYNAMIC_SHARED_SIZE_BYTES, NON_PORTABLE_CLUSTER_SIZE_ALLOWED,
};
use gridguard_test_support::conformance::raw::RawDriver;
use gridguard_test_support::conformance::session::{self, Outcome};
use gridguard_test_support::fake_driver::with_fake;

use crate::kernels::{context, guard, raw};

const LAUNCHES: u64 = 20_000;

/// A kernel's name, its description for the fake driver, and the attributes that are set on it.
type Described = (&'static str, &'static str, &'static [(i32, i32)]);

const KERNELS: [Described; 13] = [
    ("plain", "params=8", &[]),
    ("bounded", "max_threads=128", &[]),
    ("wide", "regs=210", &[]),
    ("wider", "regs=168", &[]),
    ("still", "static_shared=48000", &[]),
    ("full", "static_shared=49152", &[]),
    ("opted_in", "regs=64", &[(MAX_DYNAMIC_SHARED_SIZE_BYTES, 232_448)]),
    ("local", "local=524280", &[]),
    ("too_local", "local=524288", &[]),
    ("clustered", "cluster=2,1,1", &[]),
    ("explicit_cluster", "params=8 explicit_cluster=1", &[]),
    ("bounded_wide", "max_threads=128 regs=254", &[]),
    ("wide_clusters", "regs=40", &[(NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1)]),
];

fn compare(launches: u64) -> Outcome {
    let guard = guard();
    let context = context(&guard);
    let mut ptx = ".version 8.0\n.target sm_90\n.address_size 64\n".to_owned();
    for (name, description, _) in KERNELS {
        ptx.push_str(&format!("// fake {name} {description}\n.visible .entry {name}(\n)\n"));
    }
    let module = context.load_module(Ptx::from_src(ptx)).expect("PTX");
    context.bind_to_thread().expect("a context");
    let driver = RawDriver::open();
    let functions: Vec<CudaFunction> =
        KERNELS.iter().map(|(name, ..)| module.load_function(name).expect("a function")).collect();
    let kernels: Vec<KernelUnderTest> = functions
        .iter()
        .zip(KERNELS)
        .map(|(function, (name, _, settings))| {
            let handle = function.cu_function().cast();
            for (attribute, value) in settings {
                assert_eq!(driver.set_attribute(handle, *attribute, *value), 0, "{name}");
            }
            let raw = raw(&guard, function, Some(name));
            let limits = raw.limits().clone();
            let occupancy = move |request: &_| raw.occupancy(request).map_err(|e| e.to_string());
            KernelUnderTest::new(&driver, name, handle, &limits, 8, occupancy)
        })
        .collect();
    let outcome = session::run(&driver, &kernels, launches, 1);
    assert!(kernels.iter().all(|kernel| kernel.failed_queries.borrow().is_empty()));
    outcome
}

#[test]
fn guard_and_fake_driver_agree_on_every_launch() {
    with_fake(&[], || {
        let outcome = compare(LAUNCHES);
        let tally = &outcome.tally;
        assert_eq!(outcome.sticky, None);
        assert_eq!(tally.disagreements, 0, "{tally:#?}");
        assert!(tally.single.all_correct() && tally.several.all_correct(), "{tally:#?}");
        assert_eq!(tally.launches, LAUNCHES);
        assert!(tally.accepted > LAUNCHES / 5 && tally.single.made > LAUNCHES / 5, "{tally:#?}");
        assert!(tally.beyond_the_driver > 0);
    });
}

#[test]
fn a_driver_that_disagrees_with_the_guard_is_reported() {
    let settings = [("GRIDGUARD_FAKE_FAIL_LAUNCH", "100"), ("GRIDGUARD_FAKE_FAIL_CODE", "701")];
    with_fake(&settings, || {
        let tally = compare(1000).tally;
        assert_eq!((tally.disagreements, tally.details.len()), (1, 1), "{tally:#?}");
        let kind = tally.kinds.keys().next().expect("one kind");
        assert!(kind.ends_with("guard [], driver 701"), "{kind}");
    });
}
