//! Bytes of kernel parameters at and past their limits, at the compiler, the loader and the launch.

use cudarc::nvrtc::Ptx;
use gridguard_test_support::conformance::raw::{LaunchCall, RawDriver, RawLaunch};

use super::super::kernels::{compile, load};
use super::{Facts, blocks_of};
use crate::support::guard;

pub(super) fn measure(driver: &RawDriver, facts: &mut Facts) {
    for bytes in ["4096", "4097", "32764", "32765"] {
        let compiled = compile(&[("PARAMETER_BYTES", bytes)]).map(|_| "compiles");
        facts.note(format!("NVRTC, {bytes} bytes of parameters"), outcome(compiled));
    }
    let sm = guard().limits().compute_capability.sm();
    // PTX takes more than 4,096 bytes from version 8.1 on.
    for (version, bytes) in [
        ("8.0", 4096),
        ("8.0", 4097),
        ("8.1", 4097),
        ("8.1", 32_764),
        ("8.1", 32_765),
        ("8.1", 65_536),
    ] {
        let what = format!("PTX {version}, {bytes} bytes of parameters");
        let source = format!(
            ".version {version}\n.target {sm}\n.address_size 64\n.visible .entry k(.param .align 8 \
             .b8 p[{bytes}]) {{ ret; }}\n"
        );
        facts.note(format!("{what}: the guard's loader"), {
            let image = gridguard::cuda::Image::new(source.as_str()).expect("PTX");
            outcome(guard().load(&image).map(|_| "loads").map_err(|error| error.to_string()))
        });
        if let Ok(function) = load(Ptx::from_src(source)) {
            let one = RawLaunch::new(&blocks_of(1, 1)).expect("32 bits");
            let answer = driver.launch(function.cu_function().cast(), &one, LaunchCall::Oldest);
            facts.note(format!("{what}: launch"), answer);
        }
    }
}

/// In one line.
fn outcome(result: Result<&str, String>) -> String {
    match result {
        Ok(good) => good.to_owned(),
        Err(error) => error.split_whitespace().collect::<Vec<_>>().join(" "),
    }
}
