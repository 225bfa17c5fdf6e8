//! Finds the sentences of a file: Markdown outside code, comments, doc strings, and messages in Rust strings.

/// A sentence and its first line. Code in it is `X`.
pub(crate) struct Sentence {
    pub(crate) line: usize,
    pub(crate) text: String,
}

/// The sentences of a file.
pub(crate) fn sentences_of(path: &str, text: &str) -> Vec<Sentence> {
    let mut sentences = Sentences::default();
    let kind = path.rsplit('.').next().unwrap_or_default();
    // Within a fence of Markdown, or a doc string of Python.
    let mut is_inside = false;
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        match kind {
            "md" if line.starts_with("```") => is_inside = !is_inside,
            "md" if is_inside || line.starts_with('|') => sentences.end(),
            "md" => sentences.add(number, line),
            "py" => match line.split_once("\"\"\"") {
                Some((_, rest)) if rest.contains("\"\"\"") => {
                    sentences.whole(number, rest.split("\"\"\"").next().unwrap_or_default());
                }
                Some((before, rest)) => {
                    sentences.add(number, if is_inside { before } else { rest });
                    is_inside = !is_inside;
                }
                None if is_inside => sentences.add(number, line),
                None => sentences.comment(number, line.strip_prefix("# ")),
            },
            _ => {
                let comment = ["///", "//!", "//", "/*", "*"]
                    .iter()
                    .find_map(|start| line.strip_prefix(start));
                sentences.comment(number, comment);
                if kind == "rs" && comment.is_none() {
                    for message in messages(line) {
                        sentences.whole(number, message);
                    }
                }
            }
        }
    }
    sentences.end();
    sentences.found
}

/// The string literals of a line of Rust that have several words.
fn messages(line: &str) -> Vec<&str> {
    let mut quotes = Vec::new();
    let mut is_escaped = false;
    for (place, letter) in line.char_indices() {
        if letter == '"' && !is_escaped {
            quotes.push(place);
        }
        is_escaped = letter == '\\' && !is_escaped;
    }
    let literals = quotes.chunks_exact(2).map(|pair| &line[pair[0] + 1..pair[1]]);
    literals.filter(|text| text.len() >= 20 && text.matches(' ').count() > 2).collect()
}

/// Sentences that go over several lines.
#[derive(Default)]
struct Sentences {
    found: Vec<Sentence>,
    begun: Option<Sentence>,
}

impl Sentences {
    fn comment(&mut self, number: usize, comment: Option<&str>) {
        match comment {
            Some(text) => self.add(number, text.trim()),
            None => self.end(),
        }
    }

    fn whole(&mut self, number: usize, text: &str) {
        self.end();
        self.add(number, text);
        self.end();
    }

    /// Adds a line. A blank one, a heading and an item of a list end the sentence before.
    fn add(&mut self, number: usize, line: &str) {
        if line.is_empty()
            || ["- ", "* ", "# ", "## ", "### "].iter().any(|start| line.starts_with(start))
        {
            self.end();
        }
        for word in without_code(line).split_whitespace() {
            let sentence =
                self.begun.get_or_insert_with(|| Sentence { line: number, text: String::new() });
            if !sentence.text.is_empty() {
                sentence.text.push(' ');
            }
            sentence.text.push_str(word);
            if word.ends_with(['.', '!', '?']) {
                self.end();
            }
        }
    }

    fn end(&mut self) {
        self.found.extend(self.begun.take());
    }
}

/// The line with `X` for code, for the targets of links and for values in messages.
fn without_code(line: &str) -> String {
    let mut text = String::with_capacity(line.len());
    let mut until = None;
    let mut before = ' ';
    for letter in line.chars() {
        match until {
            Some(end) if letter == end => until = None,
            Some(_) => {}
            None => {
                until = match letter {
                    '`' => Some('`'),
                    '{' => Some('}'),
                    '(' if before == ']' => Some(')'),
                    _ => None,
                };
                match until {
                    Some('`') => text.push_str(" X "),
                    Some('}') => text.push('X'),
                    Some(_) => {}
                    None if "[]".contains(letter) => {}
                    None => text.push(letter),
                }
            }
        }
        before = letter;
    }
    text
}

#[test]
fn sentences_go_over_lines_and_end_at_full_stops_and_items() {
    let found = |path, text| -> Vec<(usize, String)> {
        sentences_of(path, text).into_iter().map(|found| (found.line, found.text)).collect()
    };
    let one = |line, text: &str| (line, text.to_owned());
    let markdown = "# A title\n\nOne `code a.b`\nsentence. Two\n- three\n```\ncode\n```\n|table|";
    let expected =
        [one(1, "# A title"), one(3, "One X sentence."), one(4, "Two"), one(5, "- three")];
    assert_eq!(found("a.md", markdown), expected);
    let rust = "/// A comment\n/// of two lines.\nlet a = f(\"a message of {five} words\", \"b c\");\n// Another";
    let expected =
        [one(1, "A comment of two lines."), one(3, "a message of X words"), one(4, "Another")];
    assert_eq!(found("a.rs", rust), expected);
    let python = "\"\"\"A doc string.\nSecond\n\"\"\"\nx = 1  # no\n# A comment\ndef f():\n    \"\"\"One line\"\"\"";
    let expected =
        [one(1, "A doc string."), one(2, "Second"), one(5, "A comment"), one(7, "One line")];
    assert_eq!(found("a.py", python), expected);
}
