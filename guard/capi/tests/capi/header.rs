//! The header is what cbindgen makes of the sources.

use std::path::Path;

use crate::build::PACKAGE;

/// Set to write the header instead of comparing it.
const UPDATE: &str = "GRIDGUARD_UPDATE_HEADER";

#[test]
fn the_header_is_what_the_sources_declare() {
    let package = Path::new(PACKAGE);
    let config = cbindgen::Config::from_file(package.join("cbindgen.toml")).expect("TOML");
    // It reads the modules that the root names.
    let root = package.join("src/lib.rs");
    let sources = cbindgen::Builder::new().with_config(config).with_src(root);
    let mut generated = Vec::new();
    sources.generate().expect("declarations").write(&mut generated);
    let generated = String::from_utf8(generated).expect("text");
    let path = package.join("include/gridguard.h");
    if std::env::var_os(UPDATE).is_some() {
        std::fs::write(&path, &generated).expect("it is replaced");
    }
    let header = std::fs::read_to_string(&path).expect("the header");
    let difference = header.lines().zip(generated.lines()).find(|(old, new)| old != new);
    assert!(
        header == generated,
        "{} differs, first at {difference:?}: run this test with {UPDATE}=1",
        path.display()
    );
}
