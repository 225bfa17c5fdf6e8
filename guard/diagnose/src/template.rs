//! The texts of rows: sentences with holes for captures, facts and expressions.

/// Fills the holes of `text`. A sentence with a hole that is not known is left out.
pub(crate) fn fill(text: &str, known: &dyn Fn(&str) -> Option<String>) -> String {
    let mut filled = String::new();
    for sentence in sentences(text) {
        if let Some(sentence) = fill_all(sentence, known) {
            filled.push_str(&sentence);
        }
    }
    filled.trim().to_owned()
}

/// Fills the holes of `text`, or `None` if one is not known.
pub(crate) fn fill_all(text: &str, known: &dyn Fn(&str) -> Option<String>) -> Option<String> {
    let mut filled = String::new();
    let mut rest = text;
    while let Some((before, found)) = rest.split_once('{') {
        let (name, after) = found.split_once('}')?;
        filled.push_str(before);
        if let Some(plain) = name.strip_prefix('{') {
            // `{{...}}` is text in braces.
            filled.push('{');
            filled.push_str(plain);
            filled.push('}');
            rest = after.strip_prefix('}').unwrap_or(after);
            continue;
        }
        filled.push_str(&known(name)?);
        rest = after;
    }
    filled.push_str(rest);
    Some(filled)
}

/// The holes of `text`.
#[allow(dead_code, reason = "the build script checks them")]
pub(crate) fn holes(text: &str) -> impl Iterator<Item = &str> {
    let pieces = text.split('{').skip(1);
    pieces
        .filter_map(|piece| piece.split_once('}'))
        .map(|(name, _)| name)
        .filter(|it| !it.is_empty())
}

/// The sentences of `text`, each with the blank behind it.
fn sentences(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    core::iter::from_fn(move || {
        let ends = [". ", "; "].into_iter().filter_map(|end| rest.find(end)).min();
        let length = ends.map_or(rest.len(), |end| end + 2);
        let (sentence, after) = rest.split_at(length);
        rest = after;
        (!sentence.is_empty()).then_some(sentence)
    })
}
