//! Errors of the caller and of the data. Errors of the driver are tested with the fake driver.

use gridguard::catalog;
use gridguard::check::CheckRequest;
use gridguard::cuda::{CudaErrorKind, LaunchError, LaunchErrorKind};
use gridguard::{ArgsError, Dim3, HostError, LaunchRequest, PartialRun, validate};
use gridguard_test_support::{Section, texts};

use super::on_h200;

pub(crate) fn sections() -> Vec<Section> {
    vec![
        ("arguments", arguments()),
        ("partial runs", partial_runs()),
        ("launches", launches()),
        ("requests", requests()),
        ("catalogue", catalogue()),
    ]
}

fn arguments() -> Vec<String> {
    texts(&[
        &ArgsError::TooMany { given: 33 },
        &ArgsError::BufferTooSmall { index: 2, needed: 808, available: 800 },
        &ArgsError::TotalInChunks { index: 3, items: 100_000 },
        &ArgsError::NoBatch { index: 0 },
        &ArgsError::AddressOverflow { index: 0 },
        &ArgsError::ItemsPast32Bits { index: 1, signed: false, items: 4_294_967_296 },
        &ArgsError::ItemsPast32Bits { index: 1, signed: true, items: 2_147_483_648 },
        &ArgsError::PartsPast64Bits { index: 4, per_item: 1 << 40, items: 1 << 30 },
        &ArgsError::WorkspaceNotAllocated { index: 1 },
        &ArgsError::WrongCount { kernel: "attention".into(), expected: 3, given: 2 },
        &ArgsError::WrongSize { kernel: "attention".into(), index: 1, expected: 8, given: 4 },
        &ArgsError::WrongKind {
            kernel: "attention".into(),
            index: 0,
            expected: "memory",
            given: "a value",
        },
        &ArgsError::Misaligned { kernel: "attention".into(), index: 3, alignment: 16 },
    ])
}

fn partial_runs() -> Vec<String> {
    let source = HostError::KernelPanicked { message: "item 7 is bad".into() };
    let stopped = PartialRun { chunk: 2, launches: 4, items_done: 98_302, items: 196_606, source };
    let short = HostError::OutputTooShort { end: 10, needed: 20, available: 19 };
    texts(&[&stopped, &gridguard::Error::from(stopped.clone()), &short])
}

fn launches() -> Vec<String> {
    let request = LaunchRequest::new(Dim3::new(1, 65_536, 1), Dim3::ONE);
    let violations = validate(&request, &on_h200(|_| {})).expect_err("y takes 65,535 blocks");
    let kernel = || "attention".to_owned();
    texts(&[
        &LaunchError::from(violations.clone()),
        &gridguard::Error::from(violations),
        &LaunchErrorKind::OtherKernel { kernel: kernel() },
        &LaunchErrorKind::OtherContext { what: "the stream", kernel: kernel() },
        &LaunchErrorKind::Unsupported { symbol: "cuLaunchKernelEx", what: "clusters" },
        &LaunchErrorKind::Undeclared { kernel: kernel() },
        &LaunchErrorKind::NotDependent { kernel: kernel() },
        &LaunchErrorKind::Captured { kernel: kernel() },
        &LaunchErrorKind::Unsupported { symbol: "cuLaunchKernelEx", what: "launch priorities" },
        &LaunchErrorKind::Unknown(CudaErrorKind::NoSuchDevice { ordinal: 1, count: 1 }.into()),
        &gridguard::Error::from(LaunchError::from(ArgsError::AddressOverflow { index: 0 })),
    ])
}

fn requests() -> Vec<String> {
    let error = |fields: &str| {
        let text = format!(r#"{{"grid": [1, 8, 1], "block": [1, 1, 1]{fields}}}"#);
        serde_json::from_str::<CheckRequest>(&text).expect_err("not a request").to_string()
    };
    let batch = |fields: &str| error(&format!(r#", "batch": {{"axis": "y", "items": 8{fields}}}"#));
    vec![
        error(r#", "gird": 1"#),
        error(r#", "kernel": {"registers": 1}"#),
        error(r#", "grid": [1, 1, 1]"#),
        error(r#", "name": "", "name": """#),
        batch(r#", "align": 0"#),
        batch(r#", "index_bits": 16"#),
        batch(r#", "index_bits": 32"#),
        serde_json::from_str::<CheckRequest>("{}").expect_err("no grid").to_string(),
    ]
}

fn catalogue() -> Vec<String> {
    let newer = "(schema: 2, sources: {}, capabilities: [], gpus: [])";
    texts(&[&catalog::parse_gpus(newer).expect_err("another schema")])
}
