//! The key of a compiled image.

use gridguard::ComputeCapability;

use super::*;

#[test]
fn every_field_changes_the_key() {
    let options = |name: &str, defines: &[(&str, &str)], further: &[&str]| {
        let mut options = CompileOptions::new(name, ComputeCapability::new(9, 0));
        for (name, value) in defines {
            options = options.define(*name, value);
        }
        options.options = further.iter().map(ToString::to_string).collect();
        options
    };
    let plain = |options: &CompileOptions| CubinKey::new("source", options, (12, 8));
    let newer = CompileOptions::new("a.cu", ComputeCapability::new(10, 0));
    let base = options("a.cu", &[("N", "12"), ("M", "3")], &["-G", "-w"]);
    let keys = [
        plain(&base),
        CubinKey::new("source ", &base, (12, 8)),
        CubinKey::new("", &base, (12, 8)),
        CubinKey::new("source", &base, (12, 9)),
        CubinKey::new("source", &base, (13, 8)),
        CubinKey::new("source", &base, (8, 12)),
        plain(&newer),
        plain(&options("a.cu", &[], &[])),
        plain(&options("b.cu", &[("N", "12"), ("M", "3")], &["-G", "-w"])),
        // Another value, another order, one fewer.
        plain(&options("a.cu", &[("N", "13"), ("M", "3")], &["-G", "-w"])),
        plain(&options("a.cu", &[("M", "3"), ("N", "12")], &["-G", "-w"])),
        plain(&options("a.cu", &[("N", "12")], &["-G", "-w"])),
        plain(&options("a.cu", &[("N", "12"), ("M", "3")], &["-w", "-G"])),
        plain(&options("a.cu", &[("N", "12"), ("M", "3")], &["-G"])),
        // The same bytes in other fields.
        plain(&options("a.cuN", &[("", "12"), ("M", "3")], &["-G", "-w"])),
        plain(&options("a.cu", &[("N1", "2"), ("M", "3")], &["-G", "-w"])),
        plain(&options("a.cu", &[("N", "12M"), ("", "3")], &["-G", "-w"])),
        plain(&options("a.cu", &[("N", "12"), ("M", "3-G")], &["", "-w"])),
        plain(&options("a.cu", &[("N", "12")], &["M", "3", "-G", "-w"])),
        plain(&options("a.cu", &[("N", "12"), ("M", "3"), ("-G", "-w")], &[])),
        plain(&options("a.cu", &[("N", "12"), ("M", "3")], &["-G-w"])),
        plain(&options("a.cu", &[("N", "12"), ("M", "3")], &["-G", "-w", "source"])),
        CubinKey::new(
            "-wsource",
            &options("a.cu", &[("N", "12"), ("M", "3")], &["-G", ""]),
            (12, 8),
        ),
        // Fields that look like the count of a list.
        plain(&options("a.cu", &[], &["x", "\0\0\0\0\0\0\0\0"])),
        plain(&options("a.cu", &[("\u{2}\0\0\0\0\0\0\0", "x")], &[])),
    ];
    let distinct: std::collections::HashSet<_> = keys.iter().collect();
    assert_eq!(distinct.len(), keys.len());
    let again = options("a.cu", &[("N", "12"), ("M", "3")], &["-G", "-w"]);
    assert_eq!(plain(&base), plain(&again));
}

#[test]
fn a_key_is_shown_in_hexadecimal() {
    let mut digest = [0; 32];
    digest[0] = 0x0f;
    digest[31] = 0xa0;
    assert_eq!(CubinKey { digest }.to_string(), format!("0f{}a0", "0".repeat(60)));
}
