//! Reads entries as [`super::writer`] writes them, many times faster than RON's own parser.
//!
//! It takes fields in their order, plain strings and decimal numbers, and no comments. Whatever
//! else an entry holds it does not judge: RON's parser then reads the entry, or says what is wrong.

use core::num::NonZeroU64;

use super::entry::{Entry, Named, Provenance, StopReason, StoredChoice, Summary};
use super::key::{Key, L2, Objective, Policy, Submission};

/// The entry at the beginning of `text` and the bytes that it takes.
pub(super) fn entry(text: &str) -> Option<(Entry, usize)> {
    let mut reader = Reader { text, at: 0 };
    reader.symbol(b'(')?;
    let key = reader.key()?;
    let entry = Entry {
        key,
        shape: reader.next("shape")?.named()?,
        choice: reader.next("choice")?.choice()?,
        parameters: reader.next("parameters")?.named()?,
        launches: reader.next("launches")?.number()?,
        chosen: reader.next("chosen")?.summary()?,
        default: reader.next("default")?.summary()?,
        found: reader.next("found")?.provenance()?,
    };
    reader.symbol(b')')?;
    Some((entry, reader.at))
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl Reader<'_> {
    fn key(&mut self) -> Option<Key> {
        Some(Key {
            kernel: self.first("kernel")?.string()?,
            source: self.next("source")?.string()?,
            variant: self.next("variant")?.string()?,
            dtypes: self.next("dtypes")?.string()?,
            policy: self.next("policy")?.policy()?,
            objective: self.next("objective")?.objective()?,
        })
    }

    fn policy(&mut self) -> Option<Policy> {
        self.symbol(b'(')?;
        let l2 = match self.first("l2")?.word()? {
            "cold" => L2::Cold,
            "hot" => L2::Hot,
            _ => return None,
        };
        let submission = match self.next("submission")?.word()? {
            "eager" => Submission::Eager,
            "graph" => Submission::Graph,
            _ => return None,
        };
        self.symbol(b')')?;
        Some(Policy { l2, submission })
    }

    fn objective(&mut self) -> Option<Objective> {
        let objective = match self.word()? {
            "throughput" => return Some(Objective::Throughput),
            "latency" => {
                self.symbol(b'(')?;
                Objective::Latency { max_launch_us: self.first("max_launch_us")?.number()? }
            }
            "memory" => {
                self.symbol(b'(')?;
                let bytes_per_item = self.first("bytes_per_item")?.number()?;
                Objective::Memory { bytes_per_item, bytes: self.next("bytes")?.number()? }
            }
            _ => return None,
        };
        self.symbol(b')')?;
        Some(objective)
    }

    fn choice(&mut self) -> Option<StoredChoice> {
        match self.word()? {
            "automatic" => Some(StoredChoice::Automatic),
            "whole" => Some(StoredChoice::Whole),
            "folded" => Some(StoredChoice::Folded),
            "chunked" => {
                self.symbol(b'(')?;
                let max_items = NonZeroU64::new(self.first("max_items")?.number()?)?;
                self.symbol(b')')?;
                Some(StoredChoice::Chunked { max_items })
            }
            _ => None,
        }
    }

    fn summary(&mut self) -> Option<Summary> {
        self.symbol(b'(')?;
        let summary = Summary {
            median_ns: self.first("median_ns")?.number()?,
            low_ns: self.next("low_ns")?.number()?,
            high_ns: self.next("high_ns")?.number()?,
            samples: self.next("samples")?.number()?,
        };
        self.symbol(b')')?;
        Some(summary)
    }

    fn provenance(&mut self) -> Option<Provenance> {
        self.symbol(b'(')?;
        let found = Provenance {
            date: self.first("date")?.string()?,
            driver: self.next("driver")?.string()?,
            compiler: self.next("compiler")?.string()?,
            tuner: self.next("tuner")?.string()?,
            candidates: self.next("candidates")?.number()?,
            failed: self.next("failed")?.number()?,
            samples: self.next("samples")?.number()?,
            stopped: match self.next("stopped")?.word()? {
                "precise" => StopReason::Precise,
                "noise" => StopReason::Noise,
                "ceiling" => StopReason::Ceiling,
                "timeout" => StopReason::Timeout,
                _ => return None,
            },
        };
        self.symbol(b')')?;
        Some(found)
    }

    fn named(&mut self) -> Option<Named> {
        self.symbol(b'[')?;
        let mut named = Vec::new();
        while self.symbol(b'(').is_some() {
            let name = self.string()?;
            self.symbol(b',')?;
            named.push((name, self.number()?));
            self.symbol(b')')?;
            if self.symbol(b',').is_none() {
                break;
            }
        }
        self.symbol(b']')?;
        Some(named)
    }

    /// A comma and the name of the field that follows.
    fn next(&mut self, name: &str) -> Option<&mut Self> {
        self.symbol(b',')?;
        self.first(name)
    }

    /// The name of a field and its colon.
    fn first(&mut self, name: &str) -> Option<&mut Self> {
        self.skip_blanks();
        let end = self.at + name.len();
        if self.text.as_bytes().get(self.at..end) != Some(name.as_bytes()) {
            return None;
        }
        self.at = end;
        self.symbol(b':')?;
        Some(self)
    }

    fn symbol(&mut self, symbol: u8) -> Option<()> {
        self.skip_blanks();
        if self.peek() != Some(symbol) {
            return None;
        }
        self.at += 1;
        Some(())
    }

    fn word(&mut self) -> Option<&str> {
        self.skip_blanks();
        let start = self.at;
        while self.peek().is_some_and(|byte| byte.is_ascii_lowercase()) {
            self.at += 1;
        }
        self.text.get(start..self.at)
    }

    fn string(&mut self) -> Option<String> {
        self.symbol(b'"')?;
        let start = self.at;
        loop {
            match self.peek()? {
                b'"' => break,
                b'\\' | 0..0x20 => return None,
                _ => self.at += 1,
            }
        }
        let string = self.text.get(start..self.at)?.to_owned();
        self.at += 1;
        Some(string)
    }

    fn number(&mut self) -> Option<u64> {
        self.skip_blanks();
        let start = self.at;
        let mut number = 0_u64;
        while let Some(digit) = self.peek().filter(u8::is_ascii_digit) {
            number = number.checked_mul(10)?.checked_add(u64::from(digit - b'0'))?;
            self.at += 1;
        }
        // `0x10`, `1_000` and `5.0` end in what no field expects next.
        (self.at > start).then_some(number)
    }

    fn skip_blanks(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\n' | b'\r' | b'\t')) {
            self.at += 1;
        }
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }
}
