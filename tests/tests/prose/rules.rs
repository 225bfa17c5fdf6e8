//! The habits, each as phrases, and what to write instead.
//!
//! A phrase is a sequence of words. `a|b` is either word, `*` is any word, and `**` is one to four of them.
//! Punctuation is a word of its own, which `*` does not match. Upper case matters: a capital is the start of a sentence.

use std::collections::HashMap;

/// A habit that makes a sentence hard to read.
pub(crate) struct Rule {
    pub(crate) name: &'static str,
    pub(crate) remedy: &'static str,
    phrases: &'static [&'static str],
}

/// The most words of a sentence.
pub(crate) const LONG: usize = 32;
pub(crate) const REMEDY_OF_LONG: &str = "write two sentences";

static RULES: [Rule; 8] = [
    Rule {
        name: "number without a name",
        remedy: "name the number: `elements_per_item elements`, `N chunks`",
        phrases: &[
            "of|by|to|for|with|has|have|are|is|take|takes|than|in|at|on|each|first|modulo so many",
            "so many * a|an|each|at|of|as",
            "so many a|an|each|at|of|as",
        ],
    },
    Rule {
        name: "noun left out",
        remedy: "repeat the noun: `the launch of the original kernel`",
        phrases: &[
            "is|are|be|as|than|with|by|from|in|to|into|has|have|take|takes|but|and|or|beside|like that|those of",
        ],
    },
    Rule {
        name: "object first",
        remedy: "subject, verb, object: `Use NVRTC for this`, `By default the driver ...`",
        phrases: &[
            "Of *",
            "Whichever|Whatever|Whose|Such|Likewise|Neither *",
            "From|Of|By|To which",
            "With|Without it|this|one",
        ],
    },
    Rule {
        name: "preposition before which",
        remedy: "write two sentences, or `where`",
        phrases: &["of|by|to|from|in|for|with|at|on|after|before|under|behind|beside which|whom"],
    },
    Rule {
        name: "pronoun for a noun",
        remedy: "say the noun: `the original kernel`, `unmodified`",
        phrases: &[
            "the one|ones that|of|which",
            "what is|are|was|were|has|have|it|they|the|a",
            "all that",
            "as it is",
            "as they are",
            "and so is|are|do|does",
            "neither is|are|do|does",
        ],
    },
    Rule {
        name: "have for make",
        remedy: "an active verb: `replaces`, `makes PyTorch run`",
        phrases: &[
            "has|have|having|had the|a|an|its|their|it|them|PyTorch ** run|make|take|fetch|compile|choose|be|read|write|launch|use",
        ],
    },
    Rule {
        name: "everyday word",
        remedy: "the term of the field: fence, barrier, forward, intercept, is stored at",
        phrases: &[
            "publish|publishes|published|meet|meets|lies|lie|blames|proven",
            "takes on",
            "goes through",
            "stand|stands in front",
            "hand|hands|handed on",
            "ask|asks of",
            "answer|answers for",
            "prove|proves|proved a|the launch",
        ],
    },
    Rule {
        name: "idiom",
        remedy: "instead of, because, not contiguous",
        phrases: &[
            "for want|lack of",
            "are apart",
            "in its place",
            "in|the place of",
            "all the same",
            "no matter",
        ],
    },
];

/// All phrases, by each first word: their rules, and the words that follow.
pub(crate) struct Phrases(HashMap<&'static str, Vec<(&'static Rule, Words)>>);

/// For each word of a phrase the words that it may be.
type Words = Vec<Vec<&'static str>>;

impl Phrases {
    pub(crate) fn new() -> Self {
        let mut phrases = HashMap::<_, Vec<_>>::new();
        for rule in &RULES {
            for phrase in rule.phrases {
                let mut words = phrase.split(' ').map(|word| word.split('|').collect());
                let first: Vec<&str> = words.next().unwrap_or_default();
                let rest: Words = words.collect();
                for word in first {
                    phrases.entry(word).or_default().push((rule, rest.clone()));
                }
            }
        }
        Self(phrases)
    }

    /// The rules whose phrases the words have, each as often as it matches.
    pub(crate) fn found_in(&self, words: &[&str]) -> Vec<&'static Rule> {
        let mut found = Vec::new();
        for (place, word) in words.iter().enumerate() {
            for (rule, rest) in self.0.get(word).into_iter().flatten() {
                if begins(&words[place + 1..], rest) {
                    found.push(*rule);
                }
            }
        }
        found
    }
}

/// Whether the words begin with a phrase.
fn begins(words: &[&str], phrase: &[Vec<&'static str>]) -> bool {
    let Some((first, rest)) = phrase.split_first() else { return true };
    let is_word = |word: &&&str| word.starts_with(char::is_alphanumeric);
    let any = || words.iter().take(4).take_while(is_word).count();
    match **first {
        ["*"] => any() > 0 && begins(&words[1..], rest),
        ["**"] => (1..=any()).any(|skipped| begins(&words[skipped..], rest)),
        _ => words.first().is_some_and(|word| first.contains(word)) && begins(&words[1..], rest),
    }
}

/// The words of a sentence, and its punctuation.
pub(crate) fn words(text: &str) -> Vec<&str> {
    let in_word = |letter: char| letter.is_alphanumeric() || "'-_".contains(letter);
    let mut words = Vec::new();
    for part in text.split_whitespace() {
        let mut rest = part;
        while let Some(first) = rest.chars().next() {
            let word = rest.find(|letter| !in_word(letter)).unwrap_or(rest.len());
            let (word, others) =
                rest.split_at(word.max(if in_word(first) { 0 } else { first.len_utf8() }));
            words.push(word);
            rest = others;
        }
    }
    words
}
