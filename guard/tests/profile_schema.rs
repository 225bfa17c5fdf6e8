//! Profiles of earlier versions are parsed, and written byte for byte.

use gridguard::profile::{Backend, Document, Processor};

/// Never changed: a change of the schema adds a file.
const SCHEMA_1: &str = include_str!("../../bench-data/golden/profiles/schema-1.ron");
/// A profile of a host.
const SCHEMA_1_HOST: &str = include_str!("../../bench-data/golden/profiles/schema-1-host.ron");

#[test]
fn schema_1_is_parsed_completely_and_written_byte_for_byte() {
    let read = Document::parse(SCHEMA_1).expect("golden");
    assert_eq!((read.faults.len(), read.document.entries().len()), (0, 3));
    assert_eq!(read.document.to_string(), SCHEMA_1);
}

#[test]
fn a_host_profile_names_its_processor_and_one_without_it_still_parses() {
    let read = Document::parse(SCHEMA_1_HOST).expect("golden");
    let processor = Processor { name: "AMD EPYC 9654 96-Core Processor".into(), threads: 192 };
    let device = read.document.device();
    assert_eq!((device.backend, &device.processor), (Backend::Host, &Some(processor.clone())));
    assert_eq!(read.document.to_string(), SCHEMA_1_HOST);

    let written = ", processor: Some((name: \"AMD EPYC 9654 96-Core Processor\", threads: 192))";
    assert!(SCHEMA_1_HOST.contains(written));
    let before = SCHEMA_1_HOST.replace(written, "");
    let nameless = Document::parse(&before).expect("the earlier form");
    assert_eq!(nameless.faults, []);
    assert_eq!(nameless.document.to_string(), before);
    assert_eq!(nameless.document.entries(), read.document.entries());
    let serves = nameless.document.device().serves(&[], read.document.device());
    let mismatch = serves.expect_err("the processor is unknown");
    assert_eq!(mismatch.profile, "unnamed");
    assert_eq!(mismatch.device, processor.to_string());
}
