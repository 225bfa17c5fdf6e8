//! Demangles names of C++, and cuts long ones.

use core::fmt;

use cpp_demangle::{BorrowedSymbol, DemangleOptions, DemangleWrite};

/// Demangles a C++ name, and returns any other name. Cuts long names.
pub(crate) fn demangled(name: &str) -> String {
    let is_cpp = name.starts_with("_Z") && name.len() <= MAX_MANGLED;
    let symbol = is_cpp.then(|| BorrowedSymbol::new(name.as_bytes()).ok()).flatten();
    let Some(symbol) = symbol else { return cut(name, MAX_TEXT) };
    let mut text = Bounded(String::new());
    match symbol.structured_demangle(&mut text, &DemangleOptions::new()) {
        Ok(()) => text.0,
        Err(_) if text.0.is_empty() => cut(name, MAX_TEXT),
        Err(_) => text.0 + "...",
    }
}

/// `text`, cut to `most` bytes.
fn cut(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    let end = (0..=most).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    format!("{}... ({} bytes)", &text[..end], text.len())
}

/// A text of at most [`MAX_TEXT`] bytes: repeated parts of a mangled name can unfold without bound.
struct Bounded(String);

impl DemangleWrite for Bounded {
    fn write_string(&mut self, part: &str) -> fmt::Result {
        let fits = self.0.len() + part.len() <= MAX_TEXT;
        fits.then(|| self.0.push_str(part)).ok_or(fmt::Error)
    }
}

/// The longest name that is demangled, in bytes.
const MAX_MANGLED: usize = 8192;
/// The longest name that is printed, in bytes.
const MAX_TEXT: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_cpp_are_shown_as_they_were_written() {
        assert_eq!(demangled("_Z5touchPfi"), "touch(float*, int)");
        assert_eq!(demangled("touch"), "touch");
        assert_eq!(demangled("_Znonsense"), "_Znonsense");
    }

    #[test]
    fn a_long_or_unfolding_name_is_cut() {
        let long = "_Z".to_owned() + &"x".repeat(64 << 10);
        assert!(demangled(&long).len() < 2 * MAX_TEXT);
        // Each template argument repeats all before it.
        let mut name = String::from("_Z1fI1AIiiES0_IS1_S1_E");
        for level in 2..30 {
            let before = char::from_digit(level, 36).expect("a digit").to_ascii_uppercase();
            name += &format!("S0_IS{before}_S{before}_E");
        }
        assert!(demangled(&(name + "Evv")).len() < 2 * MAX_TEXT);
    }
}
