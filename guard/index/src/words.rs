//! Values and bounds in words of the source.

use core::fmt::{self, Write};

use super::poly::Poly;
use super::sizes::{Reason, Size};
use super::values::index;
use super::values::{Kind, Op, Values};

/// Writes values of one entry.
pub(super) struct Words<'w> {
    pub(super) values: &'w Values,
    pub(super) parameters: &'w [String],
    pub(super) registers: &'w [String],
}

impl Words<'_> {
    pub(super) fn value(&self, poly: &Poly) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = self.sum(&mut text, poly, 0);
        text
    }

    /// `poly > most` with the constant on the right.
    pub(super) fn exceeds(&self, poly: &Poly, most: i128) -> String {
        let constant =
            poly.terms().find(|(product, _)| product.is_empty()).map_or(0, |term| term.1);
        match poly.plus(&Poly::constant(constant), -1) {
            Some(rest) if rest.len() > 0 => {
                format!("{} > {}", self.value(&rest), most.saturating_sub(constant))
            }
            _ => format!("{constant} > {most}"),
        }
    }

    fn sum(&self, out: &mut String, poly: &Poly, depth: usize) -> fmt::Result {
        if poly.len() == 0 {
            return out.write_str("0");
        }
        let mut terms: Vec<_> = poly.terms().collect();
        // Products first, the constant last; a negative term is not the first, if possible.
        terms.sort_by_key(|(product, factor)| (*factor < 0, core::cmp::Reverse(product.len())));
        for (place, (product, factor)) in terms.iter().enumerate() {
            let sign = match (place, *factor < 0) {
                (0, true) => "-",
                (0, false) => "",
                (_, true) => " - ",
                (_, false) => " + ",
            };
            out.write_str(sign)?;
            let factor = factor.unsigned_abs();
            let mut separator = "";
            for atom in *product {
                out.write_str(separator)?;
                self.atom(out, *atom, depth + 1)?;
                separator = " * ";
            }
            if factor != 1 || product.is_empty() {
                write!(out, "{separator}{factor}")?;
            }
            if out.len() > MOST_BYTES {
                return out.write_str("...");
            }
        }
        Ok(())
    }

    fn atom(&self, out: &mut String, atom: u32, depth: usize) -> fmt::Result {
        if depth > MOST_DEPTH || out.len() > MOST_BYTES {
            return out.write_str("...");
        }
        let axis = |axis: &usize| ["x", "y", "z"].get(*axis).copied().unwrap_or("?");
        match &self.values.get(atom).kind {
            Kind::Size(size, _) => out.write_str(&size.name(self.parameters)),
            Kind::ThreadIndex(at) => write!(out, "threadIdx.{}", axis(at)),
            Kind::BlockIndex(at) => write!(out, "blockIdx.{}", axis(at)),
            Kind::Binary(op, one, two) => self.pair(out, *op, one, two, depth),
            Kind::UpTo(_, most) => {
                out.write_str("(0 to ")?;
                self.sum(out, most, depth)?;
                out.write_str(")")
            }
            Kind::Join(number) => {
                let register = self.values.joins.get(*number).map(|join| join.register);
                let name = register.and_then(|register| self.registers.get(index(register)));
                out.write_str(name.map_or("a variable", |name| name))
            }
            Kind::Opaque(_, Reason::Loaded) => out.write_str("a value from memory"),
            Kind::Opaque(..) => out.write_str("an unknown value"),
        }
    }

    fn pair(&self, out: &mut String, op: Op, one: &Poly, two: &Poly, depth: usize) -> fmt::Result {
        let (name, between) = match op {
            Op::Quotient => ("", " / "),
            Op::Remainder => ("", " % "),
            Op::Least => ("min", ", "),
            Op::Greatest => ("max", ", "),
            Op::Or => ("", " | "),
            Op::Xor => ("", " ^ "),
            Op::And => ("", " & "),
        };
        write!(out, "{name}(")?;
        let is_one = |poly: &Poly| poly.as_atom().is_some() || poly.as_constant().is_some();
        let is_short = |poly: &Poly| name.is_empty() && !is_one(poly);
        for (poly, after) in [(one, between), (two, ")")] {
            let (open, close) = if is_short(poly) { ("(", ")") } else { ("", "") };
            out.write_str(open)?;
            self.sum(out, poly, depth)?;
            write!(out, "{close}{after}")?;
        }
        Ok(())
    }
}

impl Size {
    /// The size's name in CUDA C++. `parameters` are the names of the entry's parameters.
    pub fn name(&self, parameters: &[String]) -> String {
        let axis = |axis: &usize| ["x", "y", "z"].get(*axis).copied().unwrap_or("?");
        match self {
            Self::Grid(at) => format!("gridDim.{}", axis(at)),
            Self::Block(at) => format!("blockDim.{}", axis(at)),
            Self::Parameter { index, offset } => {
                let name = parameters.get(*index).map_or("?", |name| name);
                if *offset == 0 { name.to_owned() } else { format!("{name}+{offset}") }
            }
        }
    }
}

const MOST_DEPTH: usize = 8;
const MOST_BYTES: usize = 600;
