//! Errors of the caller and of the data. Errors of the driver are tested with the fake driver.

use gridguard::catalog::{self, CatalogError};
use gridguard::check::CheckRequest;
use gridguard::cuda::{CudaError, LaunchError};
use gridguard::{ArgsError, Dim3, HostError, LaunchRequest, PartialRun, validate};

use crate::{on_h200, read_as};

#[test]
fn arguments_that_do_not_fit_are_told_by_their_place() {
    read_as(&[
        (
            &ArgsError::TooMany { given: 33 },
            "33 kernel arguments, at most 32 fit: pass the rest in a struct",
        ),
        (
            &ArgsError::BufferTooSmall { index: 2, needed: 808, available: 800 },
            "kernel argument 2 has 800 bytes, the items of the batch need 808",
        ),
        (
            &ArgsError::TotalInChunks { index: 3, items: 100_000 },
            "kernel argument 3 is 100000, the items of the whole batch, but a chunk has fewer and \
             its last block would run past them: pass the chunk's items with length, or a value that is \
             not compared with the item's index with constant",
        ),
        (
            &ArgsError::NoBatch { index: 0 },
            "kernel argument 0 depends on the items of a batch, but the launch has none: declare a \
             BatchAxis, or pass whole memory and plain values",
        ),
        (
            &ArgsError::AddressOverflow { index: 0 },
            "kernel argument 0 would advance past the end of the address space",
        ),
        (
            &ArgsError::ItemsPast32Bits { index: 1, signed: false, items: 4_294_967_296 },
            "kernel argument 1 is 32 bits wide, the batch has 4294967296 items: use 64 bits",
        ),
        (
            &ArgsError::ItemsPast32Bits { index: 1, signed: true, items: 2_147_483_648 },
            "kernel argument 1 is 32 bits wide and signed, the batch has 2147483648 items: use 64 \
             bits",
        ),
        (
            &ArgsError::PartsPast64Bits { index: 4, per_item: 1 << 40, items: 1 << 30 },
            "kernel argument 4 is 1099511627776 for each of 1073741824 items, which 64 bits cannot \
             count",
        ),
        (
            &ArgsError::WorkspaceNotAllocated { index: 1 },
            "kernel argument 1 is the launch's workspace, but this launch allocates none: use \
             Guard::plan_and_launch with a batch",
        ),
        (
            &ArgsError::WrongCount { kernel: "attention".into(), expected: 3, given: 2 },
            "kernel attention has 3 parameters, but 2 arguments were given",
        ),
        (
            &ArgsError::WrongSize { kernel: "attention".into(), index: 1, expected: 8, given: 4 },
            "parameter 1 of kernel attention is 8 bytes, the argument is 4",
        ),
        (
            &ArgsError::WrongKind {
                kernel: "attention".into(),
                index: 0,
                expected: "memory",
                given: "a value",
            },
            "parameter 0 of kernel attention is memory, the argument is a value",
        ),
        (
            &ArgsError::Misaligned { kernel: "attention".into(), index: 3, alignment: 16 },
            "parameter 3 of kernel attention must be aligned to 16 bytes, the argument or its \
             items are not",
        ),
    ]);
}

#[test]
fn a_stopped_plan_says_how_far_it_came_and_why() {
    let source = HostError::KernelPanicked { message: "item 7 is bad".into() };
    let stopped = PartialRun { chunk: 2, launches: 4, items_done: 98_302, items: 196_606, source };
    let text = "launch 2 of 4 was refused after 98302 of 196606 items: the host kernel panicked: \
                item 7 is bad";
    let short = HostError::OutputTooShort { end: 10, needed: 20, available: 19 };
    read_as(&[
        (&stopped, text),
        (&gridguard::Error::from(stopped.clone()), text),
        (&short, "the output has 19 elements, the items up to 10 need 20"),
    ]);
}

#[test]
fn a_launch_that_is_refused_beforehand_says_what_does_not_belong_together() {
    let request = LaunchRequest::new(Dim3::new(1, 65_536, 1), Dim3::ONE);
    let violations = validate(&request, &on_h200(|_| {})).expect_err("y takes 65,535 blocks");
    let text = violations.to_string();
    let kernel = || "attention".to_owned();
    read_as(&[
        (&LaunchError::from(violations.clone()), &text),
        (&gridguard::Error::from(violations), &text),
        (
            &LaunchError::OtherKernel { kernel: kernel() },
            "the plan was made for the limits of another kernel: plan with the limits of attention",
        ),
        (
            &LaunchError::OtherContext { what: "the stream", kernel: kernel() },
            "the stream and kernel attention belong to different contexts",
        ),
        (
            &LaunchError::Unsupported { symbol: "cuLaunchKernelEx", what: "clusters" },
            "the driver lacks cuLaunchKernelEx, which clusters need: update the driver",
        ),
        (
            &LaunchError::Undeclared { kernel: kernel() },
            "kernel attention has no declared parameters: launch it with a builder or launch_raw, or \
             declare them with Kernel::from_cudarc",
        ),
        (
            &LaunchError::NotDependent { kernel: kernel() },
            "kernel attention is not declared to wait for the launch before it: declare it with \
             Kernel::with_dependent_launches, or do not request a dependent launch",
        ),
        (
            &LaunchError::Captured { kernel: kernel() },
            "the stream is being captured, and a graph keeps neither kernel attention nor its memory \
             alive: launch within capture_launches, or after the capture",
        ),
        (
            &LaunchError::Unsupported { symbol: "cuLaunchKernelEx", what: "launch priorities" },
            "the driver lacks cuLaunchKernelEx, which launch priorities need: update the driver",
        ),
        (
            &LaunchError::Unknown(Box::new(CudaError::NoSuchDevice { ordinal: 1, count: 1 })),
            "the limits of the kernel could not be queried: there is no device 1: one is visible, \
             device 0",
        ),
        (
            &gridguard::Error::from(LaunchError::from(ArgsError::AddressOverflow { index: 0 })),
            "kernel argument 0 would advance past the end of the address space",
        ),
    ]);
}

/// What a file of the catalogue may hold.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Named {
    #[serde(rename = "field")]
    _field: String,
    #[serde(rename = "value")]
    _value: u64,
}

#[test]
fn data_that_does_not_parse_says_where() {
    let typo = "(field: \"batch\",\n valeu: 3)";
    let error = ron::from_str::<Named>(typo).expect_err("a typo");
    let syntax = CatalogError::Syntax { file: "gpus.ron", error };
    let inconsistent = CatalogError::Inconsistent {
        file: "gpus.ron",
        what: "schema 2, this version reads 1".into(),
    };
    // The middle is the parser's own.
    let text = syntax.to_string();
    assert!(text.starts_with("gpus.ron:2:"), "{text}");
    assert!(text.contains("`valeu`") && text.contains("`value`"), "{text}");
    read_as(&[(&inconsistent, "gpus.ron: schema 2, this version reads 1")]);
    let unknown = catalog::gpu("gtx 9000").expect_err("no such GPU").to_string();
    assert!(unknown.starts_with("no GPU \"gtx 9000\" in the catalogue, it has: "), "{unknown}");
}

#[test]
fn a_request_that_does_not_parse_says_where_and_what_is_expected() {
    let error = |fields: &str| {
        let text = format!(r#"{{"grid": [1, 8, 1], "block": [1, 1, 1]{fields}}}"#);
        serde_json::from_str::<CheckRequest>(&text).expect_err("not a request").to_string()
    };
    let batch = |fields: &str| error(&format!(r#", "batch": {{"axis": "y", "items": 8{fields}}}"#));
    for (error, text) in [
        (
            error(r#", "gird": 1"#),
            "unknown field `gird`, expected one of `name`, `grid`, `block`, \
             `dynamic_shared_bytes`, `cluster`, `cooperative`, `parameter_bytes`, `priority`, \
             `dependent`, `kernel`, `batch`",
        ),
        (
            error(r#", "kernel": {"registers": 1}"#),
            "unknown field `registers`, expected one of `name`, `max_threads_per_block`, \
             `required_block`, `registers_per_thread`, `static_shared_bytes`, `max_dynamic_shared_bytes`, \
             `local_bytes_per_thread`, `required_cluster`, `cluster_must_be_set`, \
             `non_portable_cluster_allowed`, `index`",
        ),
        (error(r#", "grid": [1, 1, 1]"#), "duplicate field `grid`"),
        (error(r#", "name": "", "name": """#), "duplicate field `name`"),
        (batch(r#", "align": 0"#), "invalid value: integer `0`, expected a nonzero u64"),
        (batch(r#", "index_bits": 16"#), "invalid value: integer `16`, expected 32 or 64"),
        (
            batch(r#", "index_bits": 32"#),
            "32-bit indices need batch.elements_per_item of at least 1",
        ),
    ] {
        let (message, column) = error.rsplit_once(" at line 1 column ").expect("a position");
        assert_eq!(message, text);
        assert!(column.parse().is_ok_and(|column: usize| column > 40), "{error}");
    }
    let empty = serde_json::from_str::<CheckRequest>("{}").expect_err("no grid").to_string();
    assert_eq!(empty, "missing field `grid` at line 1 column 2");
}
