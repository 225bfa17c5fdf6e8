//! Parses the command line to skip cases before they allocate memory and compile their kernels.
//!
//! Criterion itself applies its filter only when a case runs. If the filter is a regular expression, all
//! cases are prepared.

/// Criterion's options that take a value.
const VALUED: [&str; 18] = [
    "-c",
    "-s",
    "-b",
    "--color",
    "--save-baseline",
    "--baseline",
    "--baseline-lenient",
    "--load-baseline",
    "--format",
    "--profile-time",
    "--sample-size",
    "--warm-up-time",
    "--measurement-time",
    "--nresamples",
    "--noise-threshold",
    "--confidence-level",
    "--significance-level",
    "--output-format",
];

/// Characters that make a filter a regular expression.
const PATTERN: &[char] = &['\\', '.', '+', '*', '?', '(', ')', '|', '[', ']', '{', '}', '^', '$'];

pub(super) struct Selection {
    filter: Option<String>,
    lists: bool,
    measures: bool,
}

impl Selection {
    pub(super) fn from_args() -> Self {
        let (mut filter, mut lists, mut measures, mut tests) = (None, false, false, false);
        let mut arguments = std::env::args().skip(1);
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--list" => lists = true,
                "--bench" => measures = true,
                "--test" | "--profile-time" => tests = true,
                _ => {}
            }
            if VALUED.contains(&argument.as_str()) {
                arguments.next();
            } else if !argument.starts_with('-') {
                filter.get_or_insert(argument);
            }
        }
        Self { filter, lists, measures: measures && !lists && !tests }
    }

    /// Whether the cases are only listed.
    pub(super) const fn lists(&self) -> bool {
        self.lists
    }

    /// Whether cases are measured, rather than run once.
    pub(super) const fn measures(&self) -> bool {
        self.measures
    }

    pub(super) fn takes(&self, id: &str) -> bool {
        match &self.filter {
            Some(filter) => filter.contains(PATTERN) || id.contains(filter.as_str()),
            None => true,
        }
    }
}
