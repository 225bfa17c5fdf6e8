//! Relations over captures and facts: `need > limit`, `product(shape) > 2147483647`, `cc >= 12.0`, `known(gpu)`.

use core::cmp::Ordering;

use crate::value::{Value, number_of, numbers};

/// A relation that is ready to be asked.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Relation {
    left: Term,
    /// The operator and what it compares with; none asks whether a name is known.
    right: Option<(Operator, Term)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    Less,
    LessOrEqual,
    More,
    MoreOrEqual,
    Equal,
    NotEqual,
}

#[derive(Clone, Debug, PartialEq)]
enum Term {
    Literal(String),
    Name(String),
    Axis(String, usize),
    Call(String, Box<Self>),
    Chain(Box<Self>, char, Box<Self>),
}

const OPERATORS: [(&str, Operator); 6] = [
    (">=", Operator::MoreOrEqual),
    ("<=", Operator::LessOrEqual),
    ("==", Operator::Equal),
    ("!=", Operator::NotEqual),
    (">", Operator::More),
    ("<", Operator::Less),
];
const CALLS: [&str; 6] = ["product", "max", "min", "known", "unknown", "count"];

impl Relation {
    /// # Errors
    ///
    /// What is wrong with the text.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut tokens = tokens(text)?;
        tokens.reverse();
        let mut parser = Parser { tokens };
        let left = parser.sum()?;
        let operator = parser.tokens.pop();
        let right = match operator {
            None => None,
            Some(found) => {
                let operator = OPERATORS.iter().find(|(name, _)| *name == found);
                let (_, operator) = operator.ok_or_else(|| format!("no operator: {found}"))?;
                Some((*operator, parser.sum()?))
            }
        };
        if right.is_none() && !matches!(&left, Term::Call(name, _) if name.ends_with("known")) {
            return Err(format!("no relation: {text}"));
        }
        match parser.tokens.pop() {
            Some(rest) => Err(format!("more than a relation: {rest}")),
            None => Ok(Self { left, right }),
        }
    }

    /// Whether it holds. What is unknown does not hold.
    pub(crate) fn holds(&self, known: &dyn Fn(&str) -> Option<Value>) -> bool {
        let Some((operator, right)) = &self.right else {
            return match &self.left {
                Term::Call(call, name) => match &**name {
                    Term::Name(name) => known(name).is_some() == (call == "known"),
                    _ => false,
                },
                _ => false,
            };
        };
        let (Some(left), Some(right)) = (self.left.value(known), right.value(known)) else {
            return false;
        };
        compare(&left, &right).is_some_and(|order| match operator {
            Operator::Less => order.is_lt(),
            Operator::LessOrEqual => order.is_le(),
            Operator::More => order.is_gt(),
            Operator::MoreOrEqual => order.is_ge(),
            Operator::Equal => order.is_eq(),
            Operator::NotEqual => order.is_ne(),
        })
    }
}

/// The value of an expression as a text: `registers * threads`.
pub(crate) fn evaluate(text: &str, known: &dyn Fn(&str) -> Option<Value>) -> Option<f64> {
    let mut tokens = tokens(text).ok()?;
    tokens.reverse();
    let mut parser = Parser { tokens };
    let term = parser.sum().ok()?;
    parser.tokens.is_empty().then(|| term.value(known)).flatten().and_then(|it| as_number(&it))
}

impl Term {
    fn value(&self, known: &dyn Fn(&str) -> Option<Value>) -> Option<Value> {
        Some(match self {
            Self::Literal(text) => literal(text),
            Self::Name(name) => known(name)?,
            Self::Axis(name, axis) => match known(name)? {
                // An axis that is not given is 1.
                Value::Dims(dims) => Value::Number(dims.get(*axis).copied().unwrap_or(1.0)),
                Value::Number(number) if *axis == 0 => Value::Number(number),
                Value::Number(_) => Value::Number(1.0),
                _ => return None,
            },
            Self::Call(call, term) => {
                let dims = match term.value(known)? {
                    Value::Dims(dims) => dims,
                    Value::Number(number) => vec![number],
                    _ => return None,
                };
                Value::Number(match call.as_str() {
                    "product" => dims.iter().product(),
                    "max" => dims.into_iter().reduce(f64::max)?,
                    "min" => dims.into_iter().reduce(f64::min)?,
                    "count" => number_of(&dims.len().to_string())?,
                    _ => return None,
                })
            }
            Self::Chain(left, operator, right) => {
                let (left, right) =
                    (as_number(&left.value(known)?)?, as_number(&right.value(known)?)?);
                Value::Number(match operator {
                    '+' => left + right,
                    '-' => left - right,
                    '*' => left * right,
                    '%' => left % right,
                    _ => left / right,
                })
            }
        })
    }
}

fn literal(text: &str) -> Value {
    match text.strip_prefix('\'') {
        Some(text) => Value::Text(text.to_owned()),
        None if text.contains('.') => Value::Version(numbers(text)),
        None => number_of(text).map_or_else(|| Value::Text(text.to_owned()), Value::Number),
    }
}

fn as_number(value: &Value) -> Option<f64> {
    match value {
        Value::Number(number) => Some(*number),
        Value::Dims(dims) if dims.len() == 1 => dims.first().copied(),
        Value::Version(parts) => {
            let text: Vec<String> = parts.iter().map(u64::to_string).collect();
            text.join(".").parse().ok()
        }
        _ => None,
    }
}

fn compare(left: &Value, right: &Value) -> Option<Ordering> {
    let parts = |value: &Value| match value {
        Value::Version(parts) => Some(parts.clone()),
        Value::Number(number) => Some(numbers(&number.to_string())),
        Value::Text(text) if text.starts_with(|c: char| c.is_ascii_digit()) => Some(numbers(text)),
        _ => None,
    };
    match (left, right) {
        (Value::Number(left), Value::Number(right)) => left.partial_cmp(right),
        (Value::Dims(left), Value::Dims(right)) => left.partial_cmp(right),
        (Value::Version(_), _) | (_, Value::Version(_)) => {
            let (mut left, mut right) = (parts(left)?, parts(right)?);
            // 12 is 12.0.
            let length = left.len().max(right.len());
            left.resize(length, 0);
            right.resize(length, 0);
            Some(left.cmp(&right))
        }
        (Value::Text(left), Value::Text(right)) => {
            Some(left.to_ascii_lowercase().cmp(&right.to_ascii_lowercase()))
        }
        _ => as_number(left)?.partial_cmp(&as_number(right)?),
    }
}

struct Parser {
    /// The last one is next.
    tokens: Vec<String>,
}

impl Parser {
    fn sum(&mut self) -> Result<Term, String> {
        let first = self.product()?;
        self.chain(first, "+-", Self::product)
    }

    fn product(&mut self) -> Result<Term, String> {
        let first = self.operand()?;
        self.chain(first, "*/%", Self::operand)
    }

    fn chain(
        &mut self,
        first: Term,
        signs: &str,
        next: fn(&mut Self) -> Result<Term, String>,
    ) -> Result<Term, String> {
        let mut left = first;
        while let Some(sign) = self
            .tokens
            .last()
            .and_then(|it| signs.chars().find(|sign| it.as_str() == sign.to_string()))
        {
            self.tokens.pop();
            left = Term::Chain(Box::new(left), sign, Box::new(next(self)?));
        }
        Ok(left)
    }

    fn operand(&mut self) -> Result<Term, String> {
        let token = self.tokens.pop().ok_or("an operand is missing")?;
        let closes = |parser: &mut Self| match parser.tokens.pop().as_deref() {
            Some(")") => Ok(()),
            _ => Err("a bracket is not closed".to_owned()),
        };
        if token == "(" {
            let term = self.sum()?;
            closes(self)?;
            return Ok(term);
        }
        if token.starts_with(|c: char| c.is_ascii_digit() || c == '\'') {
            return Ok(Term::Literal(token));
        }
        if !token.starts_with(|c: char| c.is_ascii_lowercase()) {
            return Err(format!("no operand: {token}"));
        }
        if self.tokens.last().is_some_and(|it| it == "(") {
            if !CALLS.contains(&token.as_str()) {
                return Err(format!("no function: {token}"));
            }
            self.tokens.pop();
            let term = self.sum()?;
            closes(self)?;
            return Ok(Term::Call(token, Box::new(term)));
        }
        let (name, axis) = match token.split_once('.') {
            Some((name, axis)) => {
                let axis = ["x", "y", "z"].iter().position(|it| *it == axis);
                (name.to_owned(), Some(axis.ok_or_else(|| format!("no axis: {token}"))?))
            }
            None => (token, None),
        };
        Ok(axis.map_or_else(|| Term::Name(name.clone()), |axis| Term::Axis(name.clone(), axis)))
    }
}

fn tokens(text: &str) -> Result<Vec<String>, String> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let length = if first == '\'' {
            1 + rest[1..].find('\'').ok_or("a text is not closed")?
        } else if first.is_ascii_alphanumeric() {
            rest.find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '.')))
                .unwrap_or(rest.len())
        } else {
            let operator = OPERATORS.iter().find(|(name, _)| rest.starts_with(name));
            operator.map_or(first.len_utf8(), |(name, _)| name.len())
        };
        tokens.push(rest[..length].to_owned());
        rest = rest[length..].trim_start_matches('\'').trim_start();
    }
    Ok(tokens)
}
