//! Reads the version, the target and the kernel names of PTX.

/// The version and the target of PTX, such as `8.0` and `sm_90`. Only blanks and comments may precede them.
/// `None` if `text` is not PTX.
pub(super) fn header(text: &str) -> Option<(&str, Option<&str>)> {
    let after = skip(text, true).strip_prefix(".version")?;
    let version = after.trim_start_matches([' ', '\t']);
    let end = version.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(version.len());
    let (version, rest) = version.split_at_checked(end)?;
    if version.is_empty() || after.starts_with(version) {
        return None;
    }
    let target = skip_blanks(rest).strip_prefix(".target").map(skip_blanks).unwrap_or_default();
    let end = target.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(target.len());
    Some((version, target.get(..end).filter(|target| !target.is_empty())))
}

/// The names of the kernels that `text` declares.
pub(super) fn kernel_names(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| {
        let (_, after) = line.split_once(".entry")?;
        let name = after.trim().split(|c: char| !(c.is_alphanumeric() || c == '_' || c == '$'));
        name.into_iter().next().filter(|name| !name.is_empty())
    })
}

/// `text` without leading blanks and comments; empty if a comment does not end.
pub(super) fn skip_blanks(text: &str) -> &str {
    skip(text, false)
}

/// As [`skip_blanks`]. With `as_driver`, `/*/` does not begin a comment: the driver rejects PTX after it, ptxas does
/// not (H200, 580.159.04).
fn skip(mut text: &str, as_driver: bool) -> &str {
    loop {
        text = text.trim_start_matches([' ', '\t', '\r', '\n', '\x0c']);
        let end = if text.starts_with("//") {
            text.find('\n')
        } else if let Some(comment) = text.strip_prefix("/*") {
            let end = comment.find("*/").filter(|_| !as_driver || !comment.starts_with('/'));
            end.map(|end| end + "/**/".len())
        } else {
            return text;
        };
        text = end.and_then(|end| text.get(end..)).unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blanks_and_comments_before_the_version_are_skipped_as_the_driver_does() {
        let header = |before: &str, between: &str| {
            let text = format!("{before}.version{between}8.0\n.target sm_90, debug // x\n");
            header(&text).map(|(version, target)| (version.to_owned(), target.map(str::to_owned)))
        };
        let found = Some(("8.0".to_owned(), Some("sm_90".to_owned())));
        for before in [
            "",
            "\n\n \t\x0c\r\n",
            "// .version 1.0\n",
            "/* .version 1.0 */ ",
            "/* a\n * b */",
            "/* /* */",
            "/**/// \\\n",
        ] {
            assert_eq!(header(before, " "), found, "{before:?}");
            assert_eq!(header(before, "\t "), found, "{before:?}");
        }
        for before in [
            "/* ",
            "/*/ */",
            "// \n/*/ */",
            "# 1\n",
            "// ",
            "\x0b",
            "\u{a0}",
            ";",
            "x ",
            ".target sm_90\n",
            "/ ",
        ] {
            assert_eq!(header(before, " "), None, "{before:?}");
        }
        for between in ["", "\n", "/**/", " x", " /**/"] {
            assert_eq!(header("", between), None, "{between:?}");
        }
    }

    #[test]
    fn the_target_may_be_missing_and_comments_may_surround_it() {
        assert_eq!(header(".version 8.0"), Some(("8.0", None)));
        assert_eq!(
            header(".version 8.0 .target /* sm_10 */ sm_90a"),
            Some(("8.0", Some("sm_90a")))
        );
        assert_eq!(header(".version 8.0//\n//\n.target sm_75//"), Some(("8.0", Some("sm_75"))));
    }
}
