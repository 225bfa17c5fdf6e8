//! Snapshots of messages: a reworded message is one edit and `UPDATE_EXPECT=1 cargo test --workspace`.

use std::error::Error;

use expect_test::ExpectFile;

/// A heading, and the messages below it.
pub type Section = (&'static str, Vec<String>);

/// The texts of `errors`. None may repeat its source's text, because most programs print both.
pub fn texts(errors: &[&dyn Error]) -> Vec<String> {
    let text = |error: &&dyn Error| {
        let text = error.to_string();
        let source = error.source().map(ToString::to_string);
        assert!(source.is_none_or(|source| !text.contains(&source)), "printed twice: {text}");
        text
    };
    errors.iter().map(text).collect()
}

/// Compares the messages with the snapshot, or rewrites it if `UPDATE_EXPECT` is set.
pub fn check_messages(snapshot: &ExpectFile, sections: &[Section]) {
    let section = |(heading, texts): &Section| format!("== {heading}\n{}\n", texts.join("\n"));
    let sections: Vec<String> = sections.iter().map(section).collect();
    snapshot.assert_eq(&sections.join("\n"));
}
