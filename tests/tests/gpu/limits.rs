//! The limits that a device reports equal the catalogue's.

use gridguard::{Guard, catalog, cuda};

use super::support::guard;

#[test]
#[ignore = "needs a CUDA GPU"]
fn the_catalogue_says_what_the_device_answers() {
    let device = cuda::device_limits(0).expect("a device");
    let row = catalog::gpu(&device.name).expect("the catalogue knows this device");
    println!("{device:#?}");
    assert_eq!(*device, *row.limits);
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn the_best_guard_is_a_device_and_gives_no_reason_against_it() {
    let best = Guard::best_or_host();
    assert!(best.is_cuda());
    assert!(best.fallback().is_none());
    assert_eq!(best.limits().name, guard().limits().name);
    let (free, total) = cuda::free_memory(0).expect("memory");
    assert!(0 < free && free <= total);
}
