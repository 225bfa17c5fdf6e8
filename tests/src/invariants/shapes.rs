//! Files of shapes, as written by the miss log and by hand.

use gridguard::profile::{ParsedShapes, ProfileErrorKind};

/// Any text is parsed or rejected with a position. Parsed shapes are within the limits and unique, and are parsed again
/// as written.
pub(super) fn check(bytes: &[u8]) {
    let Ok(text) = core::str::from_utf8(bytes) else { return };
    let read = match ParsedShapes::parse(text) {
        Ok(read) => read,
        Err(error) => {
            return match error.kind() {
                ProfileErrorKind::Header(fault) => super::profile::is_in(fault, text),
                _ => assert!(!error.to_string().is_empty()),
            };
        }
    };
    read.faults.iter().for_each(|fault| super::profile::is_in(fault, text));
    for (place, missed) in read.shapes.iter().enumerate() {
        assert_eq!(missed.check(), Ok(()));
        let again = read.shapes.iter().skip(place + 1);
        let twice =
            again.filter(|other| (&other.key, &other.shape) == (&missed.key, &missed.shape));
        assert_eq!(twice.count(), 0, "{missed:?} is there twice");
    }
    let written = read.to_ron();
    let again = ParsedShapes::parse(&written).expect("its own text");
    assert_eq!(again.faults, []);
    assert_eq!(again.shapes, read.shapes);
    assert_eq!(again.to_ron(), written);
}
