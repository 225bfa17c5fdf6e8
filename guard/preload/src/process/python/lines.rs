//! The line of an instruction, by the tables of code objects.

/// The line of the instruction `at` bytes into the code of Python 3.`minor`, whose first line is `first`.
pub(super) fn line(minor: u8, table: &[u8], first: i64, at: usize) -> i64 {
    let found = match minor {
        10 => by_ranges(table, first, at),
        _ => by_locations(table, first, at),
    };
    // Code without a line in the source.
    found.unwrap_or(first)
}

/// `co_linetable` of Python 3.10: pairs of a range's length and what it adds to the line; -128 if it has no line.
fn by_ranges(table: &[u8], first: i64, at: usize) -> Option<i64> {
    let (mut line, mut end) = (first, 0);
    for &[bytes, lines] in table.as_chunks().0 {
        let has_line = lines.cast_signed() != i8::MIN;
        if has_line {
            line += i64::from(lines.cast_signed());
        }
        end += usize::from(bytes);
        if at < end {
            return has_line.then_some(line);
        }
    }
    None
}

/// `co_linetable` since Python 3.11: entries of several bytes, the first of which has its highest bit set.
fn by_locations(table: &[u8], first: i64, at: usize) -> Option<i64> {
    let (mut line, mut end) = (first, 0);
    let mut rest = table;
    while let [head, others @ ..] = rest {
        let size = others.iter().position(|byte| byte & 0x80 != 0).unwrap_or(others.len());
        let (body, next) = others.split_at(size);
        rest = next;
        let kind = head >> 3 & 0xf;
        line += match kind {
            10..=12 => i64::from(kind) - 10,
            13 | 14 => signed(body),
            _ => 0,
        };
        // Units of two bytes.
        end += (usize::from(head & 7) + 1) * 2;
        if at < end {
            return (kind != 15).then_some(line);
        }
    }
    None
}

/// A number in groups of six bits, the lowest first; its own lowest bit is the sign.
fn signed(body: &[u8]) -> i64 {
    let mut number = 0_i64;
    for (place, byte) in (0_u32..).zip(body.iter().take(MOST_GROUPS)) {
        number |= i64::from(byte & 0x3f) << (6 * place);
        if byte & 0x40 == 0 {
            break;
        }
    }
    if number & 1 == 0 { number >> 1 } else { -(number >> 1) }
}

/// Groups of a line that fits into 32 bits.
const MOST_GROUPS: usize = 6;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_follow_from_the_table_of_each_version() {
        // def f(): \n a \n\n b, each of 4 bytes; then back to the second line.
        for (minor, table) in
            [(10, &[4, 1, 4, 2, 4, 0xfe, 2, 0x80][..]), (12, &[0xd9, 0, 0, 0xe9, 4, 0xe9, 5][..])]
        {
            let lines = [0, 3, 4, 7, 8, 11].map(|at| line(minor, table, 10, at));
            assert_eq!(lines, [11, 11, 13, 13, 11, 11], "3.{minor}");
        }
        assert_eq!(line(10, &[2, 1, 2, 0x80], 10, 2), 10, "no line of its own");
        assert_eq!(line(11, &[0xf8], 10, 0), 10);
    }

    #[test]
    fn no_table_is_a_fault() {
        let mut state = 1_u32;
        let mut random = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state.to_be_bytes()[0]
        };
        for size in 0..500 {
            let table: Vec<u8> = (0..size).map(|_| random()).collect();
            for minor in 10..=14 {
                for at in [0, size, usize::MAX] {
                    let _ = line(minor, &table, 1, at);
                }
            }
        }
    }
}
