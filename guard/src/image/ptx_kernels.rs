//! Reads the kernels of PTX with their declared attributes.

use super::error::ImageError;
use super::kernels::KernelAttributes;
use super::ptx::skip_blanks;
use crate::dim::{Dim3, saturated};

/// The kernels that `text` defines. Linear in its size.
pub(super) fn kernels(text: &str) -> Result<Vec<KernelAttributes>, ImageError> {
    let mut tokens = Tokens { rest: text };
    let mut kernels = Vec::new();
    while let Some(token) = tokens.next() {
        match token {
            ".entry" => {
                let available = saturated(text.len());
                let needed = available.saturating_add(1);
                let truncated = ImageError::Truncated { part: "PTX entry", needed, available };
                kernels.extend(tokens.entry().ok_or(truncated)?);
            }
            // Function bodies declare no kernels.
            "{" => tokens.skip_block().unwrap_or_default(),
            _ => {}
        }
    }
    Ok(kernels)
}

/// The tokens of PTX, without comments.
struct Tokens<'a> {
    rest: &'a str,
}

impl<'a> Iterator for Tokens<'a> {
    type Item = &'a str;

    /// A word, a number, a string or another character.
    fn next(&mut self) -> Option<&'a str> {
        let mut text = skip_blanks(self.rest);
        // A line for the preprocessor.
        while text.starts_with('#') {
            text = text.split_once('\n').map_or("", |(_, rest)| skip_blanks(rest));
        }
        let first = text.chars().next()?;
        let size = if is_of_word(first) {
            text.find(|c| !is_of_word(c)).unwrap_or(text.len())
        } else if first == '"' {
            text.get(1..)?.find('"').map_or(text.len(), |end| end + "\"\"".len())
        } else {
            first.len_utf8()
        };
        let (token, rest) = text.split_at_checked(size)?;
        self.rest = rest;
        Some(token)
    }
}

impl Tokens<'_> {
    /// Skips a block whose brace was read; `None` if it does not end.
    fn skip_block(&mut self) -> Option<()> {
        let mut depth = 1_usize;
        while depth > 0 {
            match self.next()? {
                "{" => depth += 1,
                "}" => depth -= 1,
                _ => {}
            }
        }
        Some(())
    }

    /// The kernel after `.entry`. `Some(None)` if it is only declared, `None` if the text ends.
    fn entry(&mut self) -> Option<Option<KernelAttributes>> {
        let name = self.next()?.to_owned();
        let parameter_bytes = Some(0);
        let mut kernel = KernelAttributes { name, parameter_bytes, ..KernelAttributes::default() };
        let mut token = self.next()?;
        if token == "(" {
            kernel.parameter_bytes = self.parameters()?;
            token = self.next()?;
        }
        let mut is_pragma = false;
        loop {
            match token {
                "{" => break,
                ";" if !is_pragma => return Some(None),
                ".maxntid" => kernel.max_threads_per_block = self.size().map(threads),
                ".reqntid" => {
                    kernel.required_block = self.size();
                    kernel.max_threads_per_block = kernel.required_block.map(threads);
                }
                ".reqnctapercluster" => kernel.required_cluster = self.size(),
                ".explicitcluster" => kernel.cluster_must_be_set = true,
                _ => {}
            }
            is_pragma = token == ".pragma" || is_pragma && token != ";";
            token = self.next()?;
        }
        self.skip_block()?;
        Some(Some(kernel))
    }

    /// One to three numbers: `16, 8`.
    fn size(&mut self) -> Option<Dim3> {
        let mut size = [1; 3];
        for place in &mut size {
            *place = number(self.next()?)?;
            let mut ahead = Tokens { rest: self.rest };
            if ahead.next() != Some(",") {
                break;
            }
            self.rest = ahead.rest;
        }
        let [x, y, z] = size;
        Some(Dim3::new(x, y, z))
    }

    /// The bytes of the parameters up to the closing parenthesis. `Some(None)` if a type is unknown, `None` if the
    /// text ends.
    fn parameters(&mut self) -> Option<Option<u64>> {
        let mut total = Some(0_u64);
        loop {
            let (parameter, end) = self.parameter()?;
            if let Some(Parameter { bytes, alignment }) = parameter {
                total = total.zip(bytes).and_then(|(total, bytes)| {
                    total.checked_next_multiple_of(alignment)?.checked_add(bytes)
                });
            }
            if end == ")" {
                return Some(total);
            }
        }
    }

    /// A parameter, if there is one, and the token that ends it.
    fn parameter(&mut self) -> Option<(Option<Parameter>, &str)> {
        let (mut scalar, mut elements, mut alignment) = (None, Some(1_u64), None);
        let mut vector = 1;
        let (mut is_there, mut of_pointer) = (false, false);
        loop {
            let token = self.next()?;
            match token {
                "," | ")" => {
                    let element = scalar.map(|scalar: u64| scalar * vector);
                    let bytes = product(element, elements);
                    let alignment = alignment.or(element).unwrap_or(1).max(1);
                    return Some((is_there.then_some(Parameter { bytes, alignment }), token));
                }
                ".v2" => vector = 2,
                ".v4" => vector = 4,
                // `.align` after `.ptr` is the alignment of the target.
                ".ptr" => of_pointer = true,
                ".align" if !of_pointer => alignment = number(self.next()?),
                "[" => elements = product(elements, number(self.next()?)),
                _ => scalar = scalar.or_else(|| scalar_bytes(token)),
            }
            is_there = true;
        }
    }
}

/// A parameter of a kernel.
struct Parameter {
    /// Its size, if its type is known.
    bytes: Option<u64>,
    alignment: u64,
}

const fn is_of_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '$' | '%' | '@')
}

fn product(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    one?.checked_mul(other?)
}

/// The number that a token is: `128`, `0x80`, `0200` or `128U`.
fn number(token: &str) -> Option<u64> {
    let digits = token.strip_suffix('U').unwrap_or(token);
    match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None if digits.len() > 1 && digits.starts_with('0') => u64::from_str_radix(digits, 8).ok(),
        None => digits.parse().ok(),
    }
}

/// The bytes of a type, such as `.u64`.
fn scalar_bytes(token: &str) -> Option<u64> {
    let bits = token.strip_prefix(['.'])?.strip_prefix(['b', 'u', 's', 'f'])?;
    bits.parse().ok().filter(|bits| [8, 16, 32, 64, 128].contains(bits)).map(|bits: u64| bits / 8)
}

fn threads(block: Dim3) -> u64 {
    u64::try_from(block.volume()).unwrap_or(u64::MAX)
}
