//! Which libraries the loader finds.

use super::line;
use super::machine::Machine;

#[test]
fn a_stub_that_is_found_first_is_bad() {
    let machine = Machine::healthy();
    let driver = Machine::driver_library();
    let ran = machine.library_first("lib64/stubs", "libcuda.so.1", &driver).doctor("").exits(1);
    let stub = line(&ran.out, "bad      libcuda: ");
    let what = "/lib64/stubs/libcuda.so.1 is found first, a stub for linking only";
    assert!(stub.ends_with(what), "{stub}");
}

#[test]
fn a_stub_under_the_other_name_is_bad_too() {
    // As the toolkit has it: the folder holds no libcuda.so.1, which the guard asks for first.
    let stub = Machine::stub_library();
    let ran = Machine::healthy().library_first("stubs", "libcuda.so", &stub).doctor("").exits(1);
    let what = "/stubs/libcuda.so is found first, a stub for linking only";
    assert!(line(&ran.out, "bad      libcuda: ").ends_with(what), "{}", ran.out);
}

#[test]
fn a_stub_of_nvrtc_is_skipped_and_does_not_print_into_the_report() {
    let stub = Machine::stub_compiler();
    let ran = Machine::healthy().library_first("stubs", "libnvrtc.so", &stub).doctor("").exits(0);
    assert!(ran.out.starts_with("good "), "{}", ran.out);
    // The file that serves is in another folder.
    let machine = Machine::without_compiler().library_first("stubs", "libnvrtc.so", &stub);
    let out = machine.doctor("").exits(0).out;
    let what = "warning  nvrtc: does not load: libnvrtc.so: a toolkit's stub, for linking only";
    assert!(line(&out, "warning  nvrtc").starts_with(what), "{out}");
    // Nor does one that has left its folder end the process.
    let machine = Machine::without_compiler().library_first("moved", "libnvrtc.so", &stub);
    let out = machine.doctor("").exits(0).out;
    assert!(line(&out, "warning  nvrtc").starts_with(what), "{out}");
}

#[test]
fn another_driver_library_is_reported() {
    let other = |folder: &str| {
        let driver = Machine::driver_library();
        Machine::healthy().library_first(folder, "libcuda.so.1", &driver).doctor("").exits(0).out
    };
    let out = other("other");
    let two = line(&out, "warning  libcuda: ");
    assert!(two.contains("/other/libcuda.so.1 is loaded; also found: /"), "{two}");
    let out = other("cuda/compat");
    let compat = line(&out, "good     libcuda: ");
    assert!(
        compat.contains("/compat/libcuda.so.1 is loaded, newer than the kernel module"),
        "{compat}"
    );
}

#[test]
fn a_library_for_32_bits_is_skipped_and_a_damaged_one_is_reported() {
    let first = |name: &str, bytes: &[u8], code| {
        Machine::healthy().library_first("first", name, bytes).doctor("").exits(code).out
    };
    // The loader passes over a header of the other class.
    let mut narrow = Machine::driver_library();
    narrow[4] = 1;
    let out = first("libcuda.so.1", &narrow, 0);
    assert!(line(&out, "good     libcuda: ").ends_with("/doctor-libcuda.c/libcuda.so.1 is loaded"));
    let out = first("libcuda.so.1", b"text", 1);
    assert!(
        line(&out, "bad      libcuda: no CUDA driver library").contains("/first/libcuda.so.1: ")
    );
    let out = first("libnvrtc.so", b"text", 0);
    assert!(line(&out, "warning  nvrtc: does not load: ").contains("/first/libnvrtc.so: "));
}
