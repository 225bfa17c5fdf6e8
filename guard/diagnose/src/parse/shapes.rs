//! Reads shapes of tensors from pasted code and from messages.

use crate::shape::Shape;

/// Functions that make a tensor of a shape.
pub(super) const MAKERS: &str = "randn(|rand(|zeros(|ones(|empty(|full(";
/// Digits of a size that is read.
const DIGITS: usize = 26;

/// The shape after `word`, which follows `before`: as in `shape=(8192, 16384)`, `torch.Size([0, 4])` and
/// `randn(100000, 8, 8)`. `None` if it is ordinary.
pub(super) fn notable(before: &str, word: &str, after: &str) -> Option<Shape> {
    let in_word = before.ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
    let is_list = |text: &str| text.starts_with(['(', '[']);
    let (list, at_least) = match word {
        "shape" => {
            let rest = after.trim_start_matches([' ', '=', ':']);
            let rest = rest.strip_prefix("torch.size(").unwrap_or(rest);
            // `x.shape[0]` is the size of an axis.
            (rest, if rest.len() == after.len() { 2 } else { 1 })
        }
        "size(" => (after, 1),
        "size=" if !in_word => (after, 1),
        _ if in_word => return None,
        "full(" => (after, 1),
        _ if is_list(after) => (after, 1),
        // A number on its own is a first argument.
        _ => return Shape::new(&sizes(after)),
    };
    let sizes = is_list(list).then(|| sizes(list.trim_start_matches(['(', '['])))?;
    (sizes.len() >= at_least).then(|| Shape::new(&sizes)).flatten()
}

/// The sizes that `rest` begins with, up to the first that is no whole number.
fn sizes(mut rest: &str) -> Vec<u64> {
    let mut sizes = Vec::new();
    while sizes.len() < Shape::AXES
        && let Some(size) = product(&mut rest)
    {
        rest = rest.trim_start_matches(' ');
        if !rest.starts_with([',', ')', ']']) {
            break;
        }
        sizes.push(size);
        let Some(next) = rest.strip_prefix(',') else { break };
        rest = next.trim_start_matches(' ');
    }
    sizes
}

/// A size such as `4096`, `2 * 4096`, `2**17` or `1 << 20`.
pub(super) fn product(rest: &mut &str) -> Option<u64> {
    let mut value = power(rest)?;
    while let Some(after) = operator(rest, "*") {
        *rest = after;
        value = value.checked_mul(power(rest)?)?;
    }
    if let Some(after) = operator(rest, "<<") {
        *rest = after;
        value = value.checked_mul(1_u64.checked_shl(u32::try_from(power(rest)?).ok()?)?)?;
    }
    Some(value)
}

fn power(rest: &mut &str) -> Option<u64> {
    let base = digits(rest)?;
    let Some(after) = operator(rest, "**") else { return Some(base) };
    *rest = after;
    base.checked_pow(u32::try_from(digits(rest)?).ok()?)
}

fn digits(rest: &mut &str) -> Option<u64> {
    let is_digit = |byte: &u8| byte.is_ascii_digit() || *byte == b'_';
    let end = rest.bytes().take(DIGITS).take_while(is_digit).count();
    let (digits, after) = rest.split_at(end);
    *rest = after;
    digits.replace('_', "").parse().ok()
}

/// What follows `operator`, with one space or none on each side.
fn operator<'a>(rest: &'a str, operator: &str) -> Option<&'a str> {
    let after = rest.strip_prefix(' ').unwrap_or(rest).strip_prefix(operator)?;
    Some(after.strip_prefix(' ').unwrap_or(after))
}

#[cfg(test)]
mod tests {
    use super::super::sizes::read_launch;
    use crate::evidence::LaunchSizes;

    #[test]
    fn notable_shapes_are_read_from_code_and_messages() {
        let read = |line: &str| {
            let mut sizes = LaunchSizes::default();
            read_launch(&line.to_ascii_lowercase(), &mut sizes);
            sizes.work.shape.map(|shape| shape.to_string())
        };
        for (line, shape) in [
            ("a = torch.randn(100000, 8, 8).cuda()", "(100000, 8, 8)"),
            ("mx.random.uniform(shape=(2 * 4096, 4 * 4096))", "(8192, 16384)"),
            ("data = paddle.ones([0, 1])", "(0, 1)"),
            ("input.shape: torch.Size([0, 4, 4])", "(0, 4, 4)"),
            ("x = torch.zeros(0, device='cuda')", "(0)"),
            ("jnp.zeros((1 << 17, 3), dtype)", "(131072, 3)"),
            ("np.full((2**17, 3), 0.5)", "(131072, 3)"),
            ("rng.normal(size=(70_000, 2))", "(70000, 2)"),
            ("a tensor with shape[70000,3,9,9] and type float", "(70000, 3, 9, 9)"),
            ("Model(batch_size=70000)", "70000"),
        ] {
            assert!(read(line).is_some_and(|it| it.ends_with(shape)), "{line}: {:?}", read(line));
        }
        for line in [
            "n = x.shape[0]",
            "x.size(0)",
            "torch.randn(2, 8, 4096, 64)",
            "zeros(n, 0)",
            "torch.zeros(0.5)",
            "torch.empty_like(0)",
            "zeros(1e9, 5)",
            "batch 70000 of 80000",
            "x.reshape(0, -1)",
            "ones(99999999999999999999999999999, 2)",
        ] {
            assert_eq!(read(line), None, "{line}");
        }
    }
}
