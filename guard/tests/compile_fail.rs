//! Programs that go around validation do not compile.

#[test]
fn there_is_no_way_around_validation() {
    trybuild::TestCases::new().compile_fail("tests/compile-fail/*.rs");
}
