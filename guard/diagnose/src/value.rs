//! The typed holes of patterns: how much text each takes, and what that text is worth in a relation.

/// The type of a hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `-12`, `1,000`, `1_000`, `0x1f`, `2**28`, `1 << 20`, `4*1024`.
    Int,
    /// A number with an optional unit: `7.85 GiB`, `82240`.
    Bytes,
    /// `0.25`, `1e-3`.
    Float,
    /// `0x1f`, `1f`.
    Hex,
    /// `12.8`, `9.10.1`.
    Version,
    /// A compute capability: `sm_90`, `compute_90a`, `9.0`, `90`.
    Cc,
    /// `(1, 90000)`, `[2, 3]`, `1x2x3`, `{1,2,3}`, `dim3(1, 2)`.
    Dims,
    /// Dimensions or one number that is no share and no fraction.
    Size,
    /// What is between a name and its value: `=`, `: `, quotes, or nothing at the border of a word.
    Sign,
    /// Text without white space.
    Word,
    /// A file's name, which has no white space.
    Path,
    /// An identifier, also with `::`, `<>` and `.`.
    Name,
    /// Text up to the next literal or the end of the line.
    Text,
}

/// What a captured text is worth.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Number(f64),
    Version(Vec<u64>),
    Dims(Vec<f64>),
    Text(String),
}

/// An operator, and what it makes of two numbers.
type Operator = (&'static str, fn(f64, f64) -> f64);

/// Operators between numbers, the weakest first. A single `*` is no half of `**`.
const OPERATORS: [Operator; 3] = [
    ("<<", |left, right| left * right.exp2()),
    ("**", f64::powf),
    ("*", |left, right| left * right),
];

/// Bytes of a word, a path or a name.
const LONGEST: usize = 400;

const UNITS: [(&str, f64); 24] = [
    ("bytes", 1.0),
    ("byte", 1.0),
    ("b", 1.0),
    ("kib", 1024.0),
    ("kb", 1024.0),
    ("k", 1024.0),
    ("kilobytes", 1024.0),
    ("kbytes", 1024.0),
    ("mib", 1_048_576.0),
    ("mb", 1_048_576.0),
    ("m", 1_048_576.0),
    ("megabytes", 1_048_576.0),
    ("mbytes", 1_048_576.0),
    ("mebibytes", 1_048_576.0),
    ("gib", 1_073_741_824.0),
    ("gb", 1_073_741_824.0),
    ("g", 1_073_741_824.0),
    ("gigabytes", 1_073_741_824.0),
    ("gbytes", 1_073_741_824.0),
    ("gibibytes", 1_073_741_824.0),
    ("tib", 1_099_511_627_776.0),
    ("tb", 1_099_511_627_776.0),
    ("t", 1_099_511_627_776.0),
    ("terabytes", 1_099_511_627_776.0),
];

impl Kind {
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "int" => Self::Int,
            "bytes" => Self::Bytes,
            "float" => Self::Float,
            "hex" => Self::Hex,
            "version" => Self::Version,
            "cc" => Self::Cc,
            "dims" => Self::Dims,
            "size" => Self::Size,
            "word" => Self::Word,
            "path" => Self::Path,
            "name" => Self::Name,
            "text" => Self::Text,
            _ => return None,
        })
    }

    /// The places where a hole that begins at `at` may end, the best first. `is_last` is whether nothing follows it
    /// in the pattern.
    pub(crate) fn ends(self, text: &str, at: usize, is_last: bool) -> Vec<usize> {
        let bytes = text.as_bytes();
        let mut ends = match self {
            Self::Int => integers(bytes, at),
            Self::Bytes => sizes(bytes, at),
            Self::Float => float(bytes, at).into_iter().collect(),
            Self::Hex => {
                let start = if prefixed(bytes, at, b"0x") { at + 2 } else { at };
                filled(start, run(bytes, start, u8::is_ascii_hexdigit))
            }
            Self::Version => parts(bytes, at).into_iter().collect(),
            Self::Cc => capability(bytes, at),
            Self::Dims => dims(bytes, at).into_iter().collect(),
            Self::Size => {
                let mut ends = integers(bytes, at);
                // Neither a part of a whole nor the whole part of a fraction.
                ends.retain(|end| {
                    let next = run(bytes, *end, |it| *it == b' ');
                    let is_share = matches!(bytes.get(next), Some(b'%' | b'/'));
                    let is_cut = bytes.get(*end) == Some(&b'.') && is_digit(bytes, end + 1);
                    !(is_share || is_cut)
                });
                ends.splice(0..0, dims(bytes, at));
                ends
            }
            Self::Sign => {
                let end = run(bytes, at, |it| b" =:'\"`".contains(it));
                let is_inside = |at: usize| bytes.get(at).is_some_and(|it| is_word(*it));
                let is_apart = end > at || !(is_inside(at.wrapping_sub(1)) && is_inside(at));
                is_apart.then_some(end).into_iter().collect()
            }
            Self::Name => names(bytes, at),
            Self::Word | Self::Path => words(bytes, at, is_last),
            Self::Text => vec![bytes.len()],
        };
        ends.retain(|end| text.is_char_boundary(*end));
        ends
    }

    /// The worth of a captured text.
    pub(crate) fn value(self, text: &str) -> Value {
        let number =
            |it: Option<f64>| it.map_or_else(|| Value::Text(text.to_owned()), Value::Number);
        match self {
            Self::Int | Self::Float => number(number_of(text)),
            Self::Bytes => number(size_of(text)),
            Self::Hex => {
                let digits = text.trim_start_matches("0x").trim_start_matches("0X");
                number(u64::from_str_radix(digits, 16).ok().and_then(exact))
            }
            Self::Version => Value::Version(numbers(text)),
            Self::Cc => {
                let found = numbers(text);
                match found[..] {
                    [both] if both >= 10 => Value::Version(vec![both / 10, both % 10]),
                    _ => Value::Version(found),
                }
            }
            Self::Size if dims(text.as_bytes(), 0).is_none() => number(number_of(text)),
            Self::Dims | Self::Size => {
                let skipped = if prefixed(text.as_bytes(), 0, b"dim3") { 4 } else { 0 };
                let text = text.get(skipped..).unwrap_or_default();
                Value::Dims(numbers(text).into_iter().filter_map(exact).collect())
            }
            _ => Value::Text(text.to_owned()),
        }
    }
}

/// A number of a text, with separators, in hexadecimal or with a fraction, or a product or power of numbers.
pub(crate) fn number_of(text: &str) -> Option<f64> {
    // Of the chain that a hole takes, the last operator is done last.
    for (operator, value) in OPERATORS {
        if let Some((left, right)) = text.rsplit_once(operator) {
            return Some(value(number_of(left.trim())?, number_of(right.trim())?));
        }
    }
    let plain: String = text.chars().filter(|c| !matches!(c, ',' | '_')).collect();
    match plain.strip_prefix("0x").or_else(|| plain.strip_prefix("0X")) {
        Some(digits) => exact(u64::from_str_radix(digits, 16).ok()?),
        None => plain.parse().ok(),
    }
}

/// A size in bytes.
fn size_of(text: &str) -> Option<f64> {
    let end = text.find(|c: char| c.is_alphabetic() || c == '%');
    if text.starts_with("0x") {
        return number_of(text.split_whitespace().next()?);
    }
    let (digits, unit) = text.split_at(end.unwrap_or(text.len()));
    let digits = digits.trim();
    let unit = unit.trim().to_ascii_lowercase();
    let scale = UNITS.iter().find(|(name, _)| *name == unit).map_or(1.0, |(_, scale)| *scale);
    Some(number_of(digits)? * scale)
}

#[allow(
    clippy::as_conversions,
    clippy::cast_precision_loss,
    reason = "sizes of logs are far below 2^53"
)]
fn exact(number: u64) -> Option<f64> {
    Some(number as f64)
}

/// All whole numbers of a text.
pub(crate) fn numbers(text: &str) -> Vec<u64> {
    let digits = text.split(|c: char| !c.is_ascii_digit()).filter(|it| !it.is_empty());
    digits.filter_map(|it| it.parse().ok()).collect()
}

pub(crate) const fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80
}

fn run(bytes: &[u8], at: usize, is: impl Fn(&u8) -> bool) -> usize {
    let rest = bytes.get(at..).unwrap_or_default();
    at + rest.iter().take_while(|byte| is(byte)).count()
}

fn filled(at: usize, end: usize) -> Vec<usize> {
    if end > at { vec![end] } else { Vec::new() }
}

fn prefixed(bytes: &[u8], at: usize, prefix: &[u8]) -> bool {
    let found = bytes.get(at..at + prefix.len());
    found.is_some_and(|it| it.eq_ignore_ascii_case(prefix))
}

fn is_digit(bytes: &[u8], at: usize) -> bool {
    bytes.get(at).is_some_and(u8::is_ascii_digit)
}

/// The ends of an integer, or of a product or power of integers.
fn integers(bytes: &[u8], at: usize) -> Vec<usize> {
    let mut ends = plain_integers(bytes, at);
    let mut end = ends.first().copied();
    // `number_of` takes a frame of the stack for each operator.
    while let Some(last) = end.filter(|end| end - at < LONGEST) {
        let sign = run(bytes, last, |it| *it == b' ');
        let operator = OPERATORS.iter().find(|(it, _)| prefixed(bytes, sign, it.as_bytes()));
        let next = operator.map(|(it, _)| run(bytes, sign + it.len(), |it| *it == b' '));
        end = next.and_then(|next| plain_integers(bytes, next).first().copied());
        ends.splice(0..0, end);
    }
    ends
}

fn plain_integers(bytes: &[u8], at: usize) -> Vec<usize> {
    if prefixed(bytes, at, b"0x") {
        return filled(at + 2, run(bytes, at + 2, u8::is_ascii_hexdigit));
    }
    let start = if bytes.get(at) == Some(&b'-') { at + 1 } else { at };
    let first = run(bytes, start, u8::is_ascii_digit);
    if first == start {
        return Vec::new();
    }
    let mut end = first;
    // Thousands, or the groups of a source's literal.
    loop {
        let next = run(bytes, end + 1, u8::is_ascii_digit);
        let group = next.saturating_sub(end + 1);
        match bytes.get(end) {
            Some(b',') if group == 3 => end = next,
            Some(b'_') if group > 0 => end = next,
            _ => break,
        }
    }
    let mut ends = if end == first { vec![first] } else { vec![end, first] };
    // The whole part of `95.00 GiB` is no integer.
    ends.retain(|end| {
        let fraction = run(bytes, end + 1, u8::is_ascii_digit);
        bytes.get(*end) != Some(&b'.') || fraction == end + 1 || unit(bytes, fraction).is_none()
    });
    ends
}

fn float(bytes: &[u8], at: usize) -> Option<usize> {
    let start = if matches!(bytes.get(at), Some(b'-' | b'+')) { at + 1 } else { at };
    let mut end = run(bytes, start, u8::is_ascii_digit);
    while bytes.get(end) == Some(&b',') && run(bytes, end + 1, u8::is_ascii_digit) == end + 4 {
        end += 4;
    }
    if bytes.get(end) == Some(&b'.') && is_digit(bytes, end + 1) {
        end = run(bytes, end + 1, u8::is_ascii_digit);
    }
    if end == start {
        return None;
    }
    if matches!(bytes.get(end), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(bytes.get(end + 1), Some(b'-' | b'+')));
        if is_digit(bytes, end + 1 + sign) {
            end = run(bytes, end + 1 + sign, u8::is_ascii_digit);
        }
    }
    Some(end)
}

fn sizes(bytes: &[u8], at: usize) -> Vec<usize> {
    let mut ends = Vec::new();
    let mut numbers = integers(bytes, at);
    numbers.splice(0..0, float(bytes, at).filter(|end| !numbers.contains(end)));
    for number in numbers {
        ends.extend(unit(bytes, number));
        // A fraction of a byte is a size that lost its unit.
        let is_cut = bytes.get(number) == Some(&b'.') && is_digit(bytes, number + 1);
        let is_whole = bytes.get(at..number).is_some_and(|it| !it.contains(&b'.') && !is_cut);
        ends.extend(is_whole.then_some(number));
    }
    ends
}

/// The end of the unit behind a number.
fn unit(bytes: &[u8], at: usize) -> Option<usize> {
    let start = at + usize::from(bytes.get(at) == Some(&b' '));
    let end = run(bytes, start, u8::is_ascii_alphabetic);
    let name = bytes.get(start..end)?.to_ascii_lowercase();
    UNITS.iter().any(|(it, _)| it.as_bytes() == name).then_some(end)
}

fn parts(bytes: &[u8], at: usize) -> Option<usize> {
    let mut end = run(bytes, at, u8::is_ascii_digit);
    if end == at {
        return None;
    }
    while bytes.get(end) == Some(&b'.') && is_digit(bytes, end + 1) {
        end = run(bytes, end + 1, u8::is_ascii_digit);
    }
    Some(end)
}

fn capability(bytes: &[u8], at: usize) -> Vec<usize> {
    let prefix = ["sm_", "compute_", "sm", "compute"];
    let start =
        prefix.iter().find(|it| prefixed(bytes, at, it.as_bytes())).map_or(at, |it| at + it.len());
    let Some(end) = parts(bytes, start) else { return Vec::new() };
    match bytes.get(end) {
        Some(b'a' | b'f' | b'A' | b'F') if start > at => vec![end + 1],
        _ => vec![end],
    }
}

fn dims(bytes: &[u8], at: usize) -> Option<usize> {
    let at = if prefixed(bytes, at, b"dim3") { run(bytes, at + 4, |it| *it == b' ') } else { at };
    let close = match bytes.get(at)? {
        b'(' => Some(b')'),
        b'[' => Some(b']'),
        b'{' => Some(b'}'),
        b'<' => Some(b'>'),
        _ => None,
    };
    let blanks = |at: usize| run(bytes, at, |it| *it == b' ');
    // `x: 1, y=2 z=3`.
    let is_axis =
        |at| matches!(bytes.get(at..at + 2), Some([b'x'..=b'z' | b'X'..=b'Z', b':' | b'=']));
    let mut at = if close.is_some() { blanks(at + 1) } else { at };
    let mut count = 0;
    loop {
        if is_axis(at) {
            at = blanks(at + 2);
        }
        let end = run(bytes, at, u8::is_ascii_digit);
        if end == at {
            // A comma may precede the closing bracket.
            return (close.is_some() && count > 0 && bytes.get(at) == close.as_ref())
                .then_some(at + 1);
        }
        count += 1;
        let next = blanks(end);
        match bytes.get(next) {
            Some(byte) if close == Some(*byte) => return Some(next + 1),
            _ if is_axis(next) => at = next,
            Some(b',' | b'x' | b'X' | b'*') => {
                let after = blanks(next + 1);
                if close.is_none() && !is_digit(bytes, after) {
                    return (count > 1).then_some(end);
                }
                at = after;
            }
            _ => return (close.is_none() && count > 1).then_some(end),
        }
    }
}

fn names(bytes: &[u8], at: usize) -> Vec<usize> {
    let is_name = |it: &u8| is_word(*it) || matches!(it, b':' | b'<' | b'>' | b'.' | b'$' | b'~');
    if !bytes.get(at).is_some_and(|it| is_word(*it) && !it.is_ascii_digit() || *it == b'$') {
        return Vec::new();
    }
    let end = run(bytes, at, is_name).min(at + LONGEST);
    let mut ends: Vec<usize> = (at + 1..=end)
        .filter(|end| !bytes.get(*end).is_some_and(|it| is_word(*it)))
        .filter(|end| bytes.get(end - 1).is_some_and(|it| is_word(*it) || *it == b'>'))
        .collect();
    ends.reverse();
    ends
}

fn words(bytes: &[u8], at: usize, is_last: bool) -> Vec<usize> {
    let end = run(bytes, at, |it| !it.is_ascii_whitespace()).min(at + LONGEST);
    if is_last {
        let word = bytes.get(at..end).unwrap_or_default();
        let kept = word
            .iter()
            .rposition(|it| !matches!(it, b'.' | b',' | b';' | b':' | b')' | b'\'' | b'"' | b'`'));
        return kept.map(|kept| at + kept + 1).into_iter().collect();
    }
    (at + 1..=end).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_groups_units_and_arithmetic() {
        let size = |text: &str| {
            let ends = Kind::Bytes.ends(text, 0, true);
            ends.first().and_then(|end| size_of(&text[..*end]))
        };
        assert_eq!(size("2**28 floats"), Some(268_435_456.0));
        assert_eq!(size("1 << 20"), Some(1_048_576.0));
        assert_eq!(size("4*1024 KiB"), Some(4_194_304.0));
        assert_eq!(size("1,234.5 MiB of"), Some(1234.5 * 1_048_576.0));
        assert_eq!(size("95.00 GiB"), Some(95.0 * 1_073_741_824.0));
        assert!(Kind::Int.ends("95.00 GiB", 0, true).is_empty());
        assert!(Kind::Bytes.ends("1.25", 0, true).is_empty());
        let chain = "1*".repeat(1 << 16);
        assert!(Kind::Int.ends(&chain, 0, true).iter().all(|end| *end <= LONGEST + 1));
    }
}
