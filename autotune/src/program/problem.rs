//! The problem that an external program measures, and its candidates.

use gridguard::profile::Named;

use super::template::Template;
use crate::candidate::Candidate;
use crate::error::Error;
use crate::ranges::{CHUNK, Ranges, did_you_mean};

/// A problem that an external program measures, and what may vary.
///
/// ```
/// use gridguard_autotune::ProgramProblem;
///
/// let sizes = vec![("items".to_owned(), 1000)];
/// let parameters = vec![("block".to_owned(), vec![128, 64])];
/// let command = "./bench {items} {chunk} {block}";
/// let problem = ProgramProblem::new(command, sizes, parameters, vec![1000, 300])?;
/// let candidates: Vec<String> = problem.candidates().iter().map(ToString::to_string).collect();
/// assert_eq!(candidates, [
///     "whole, 1 launch of 1000 items, block 128",
///     "chunked, 4 launches of 300 items, block 128",
///     "whole, 1 launch of 1000 items, block 64",
///     "chunked, 4 launches of 300 items, block 64",
/// ]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramProblem {
    command: Template,
    ranges: Ranges,
}

impl ProgramProblem {
    /// A problem of these sizes, with the number of items first.
    ///
    /// The words of `command` are split and unquoted as in a POSIX shell, but no shell runs: `|`, `$` and
    /// `*` are ordinary characters. Values replace the placeholders afterwards and never split a word.
    /// `{{` and `}}` stand for braces.
    ///
    /// Every combination of `parameters` and `chunks` is a candidate. The first value of each is the
    /// default. A chunk larger than the number of items counts as all items. If the command has `{chunk}`
    /// and `chunks` is empty, the chunks are all items, half of them, a quarter, and so on.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use gridguard_autotune::{Budget, ProgramMeasurer, ProgramProblem, Space, tune};
    ///
    /// // Any program that prints its time. This one takes longer for larger blocks.
    /// let command = r#"sh -c 'echo "{{\"ms\": 0.0{block}}}"'"#;
    /// let (sizes, blocks) = (vec![("items".to_owned(), 1000)], vec![64, 32, 16]);
    /// let problem = ProgramProblem::new(command, sizes, vec![("block".to_owned(), blocks)], vec![])?;
    /// let mut space = Space::listed(problem.candidates());
    /// let mut measurer = ProgramMeasurer::new(problem, Duration::from_secs(60));
    /// let outcome =
    ///     tune(&mut measurer, &mut space, Default::default(), &Budget::default(), &mut ())?;
    /// assert_eq!(outcome.winner.parameters, [("block".to_owned(), 16)]);
    /// # Ok::<(), gridguard_autotune::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Input`](crate::ErrorKind::Input) if the command is malformed, or the values do not fit it.
    pub fn new(
        command: &str,
        sizes: Named,
        parameters: Vec<(String, Vec<u64>)>,
        chunks: Vec<u64>,
    ) -> Result<Self, Error> {
        let command = Template::parse(command)?;
        let placeholders = command.placeholders();
        let is_split = placeholders.contains(CHUNK);
        let is_chunk_given = !chunks.is_empty();
        let chunks = (is_split || is_chunk_given).then_some(chunks);
        let ranges = Ranges::new(sizes, parameters, chunks)?;
        let names = || ranges.sizes.iter().map(|(name, _)| name).chain(ranges.names());
        if let Some(name) = placeholders
            .iter()
            .find(|name| **name != CHUNK && !names().any(|known| known == **name))
        {
            let nearest = did_you_mean(name, names().map(String::as_str).chain([CHUNK]));
            return Err(Error::input(format!(
                "the command has the placeholder {{{name}}} but no value for it: give it as a size or \
                 parameter, or write {{{{ for a brace{nearest}"
            )));
        }
        let chunk = is_chunk_given.then_some(CHUNK);
        let unused = |name: &&str| !placeholders.contains(name);
        if let Some(name) = ranges.names().map(String::as_str).chain(chunk).find(unused) {
            return Err(Error::input(format!(
                "{name} is given, but the command has no {{{name}}}"
            )));
        }
        if ranges.parameters.is_empty() && !is_split {
            return Err(Error::input(
                "nothing varies: write {chunk} or a parameter such as {block} into the command",
            ));
        }
        Ok(Self { command, ranges })
    }

    /// The sizes, with the number of items first.
    #[must_use]
    pub const fn sizes(&self) -> &Named {
        &self.ranges.sizes
    }

    /// All candidates, the default first.
    #[must_use]
    pub fn candidates(&self) -> Vec<Candidate> {
        self.ranges.candidates()
    }

    pub(super) fn command_line(&self, candidate: &Candidate) -> Vec<String> {
        self.command.fill(|name| {
            let mut named = candidate.parameters.iter().chain(&self.ranges.sizes);
            let named = named.find(|(known, _)| known == name).map(|(_, value)| *value);
            // Every other placeholder has a value.
            named.unwrap_or(candidate.largest_chunk)
        })
    }
}

#[cfg(test)]
mod tests {
    use gridguard::profile::StoredChoice;

    use super::*;
    use crate::candidate::MAX_CHUNK_SIZES;

    fn named(pairs: &[(&str, u64)]) -> Named {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
    }

    fn problem(
        command: &str,
        sizes: &[(&str, u64)],
        parameters: &[(&str, &[u64])],
        chunks: &[u64],
    ) -> Result<ProgramProblem, Error> {
        let parameters =
            parameters.iter().map(|(name, values)| ((*name).to_owned(), values.to_vec()));
        ProgramProblem::new(command, named(sizes), parameters.collect(), chunks.to_vec())
    }

    #[test]
    fn every_combination_is_a_candidate_and_the_first_values_are_the_default() {
        let parameters: [(&str, &[u64]); 2] = [("block", &[128, 64]), ("stages", &[2, 1, 3])];
        let problem = problem("p {block} {stages}", &[("items", 10)], &parameters, &[]);
        let candidates = problem.expect("a problem").candidates();
        assert_eq!(candidates.len(), 6);
        assert_eq!(candidates[0].parameters, named(&[("block", 128), ("stages", 2)]));
        assert_eq!(candidates[5].parameters, named(&[("block", 64), ("stages", 3)]));
        assert!(candidates.iter().all(|one| one.choice == StoredChoice::Automatic));
        assert!(candidates.iter().all(|one| (one.launches, one.largest_chunk) == (1, 10)));
    }

    #[test]
    fn chunks_are_the_given_ones_or_halvings() {
        let chunks = |given: &[u64]| -> Vec<(u64, u64)> {
            let problem = problem("p {chunk}", &[("items", 100)], &[], given).expect("a problem");
            problem.candidates().iter().map(|one| (one.largest_chunk, one.launches)).collect()
        };
        assert_eq!(chunks(&[30, 100, 7]), [(30, 4), (100, 1), (7, 15)]);
        assert_eq!(chunks(&[30, 200, 100]), [(30, 4), (100, 1)]);
        assert_eq!(
            chunks(&[]),
            [(100, 1), (50, 2), (25, 4), (13, 8), (7, 15), (4, 25), (2, 50), (1, 100)]
        );
        let most = problem("p {chunk}", &[("items", u64::MAX)], &[], &[]).expect("a problem");
        assert_eq!(most.candidates().len(), MAX_CHUNK_SIZES);
        assert_eq!(most.candidates()[0].choice, StoredChoice::Whole);
        assert!(matches!(most.candidates()[1].choice, StoredChoice::Chunked { .. }));
    }

    #[test]
    fn a_command_line_has_sizes_parameters_and_chunk() {
        let problem =
            problem("./p-{block} {items}/{chunk}", &[("items", 9)], &[("block", &[64])], &[4]);
        let problem = problem.expect("a problem");
        let [only] = &problem.candidates()[..] else { panic!("one candidate") };
        assert_eq!(problem.command_line(only), ["./p-64", "9/4"]);
    }

    #[test]
    fn values_that_do_not_fit_the_command_are_errors() {
        let items = [("items", 8)];
        let block: [(&str, &[u64]); 1] = [("block", &[1])];
        let error = |command, sizes, parameters: &[(&str, &[u64])], chunks| {
            problem(command, sizes, parameters, chunks).expect_err(command).to_string()
        };
        let no_items = "there are no items: the first size counts them and must be at least 1";
        assert_eq!(error("p {block}", &[], &block, &[]), no_items);
        assert_eq!(error("p {block}", &[("items", 0)], &block, &[]), no_items);
        assert_eq!(
            error("p {blok}", &items, &block, &[]),
            "the command has the placeholder {blok} but no value for it: give it as a size or \
             parameter, or write {{ for a brace; did you mean block?"
        );
        assert_eq!(
            error("p", &items, &block, &[]),
            "block is given, but the command has no {block}"
        );
        assert_eq!(
            error("p {block}", &items, &block, &[4]),
            "chunk is given, but the command has no {chunk}"
        );
        assert_eq!(
            error("p {items}", &items, &[], &[]),
            "nothing varies: write {chunk} or a parameter such as {block} into the command"
        );
        for values in [&[][..], &[64, 32, 64]] {
            let message = error("p {block}", &items, &[("block", values)], &[]);
            assert!(message.starts_with("the values of block are not "), "{message}");
        }
        for chunks in [&[0][..], &[4, 4]] {
            let message = error("p {chunk}", &items, &[], chunks);
            assert!(message.starts_with("the values of chunk are not "), "{message}");
        }
        for name in ["", "chunk", "a b", "1a", "a-b"] {
            let message = problem("p {chunk}", &[(name, 8)], &[], &[]);
            let message = message.expect_err(name).to_string();
            assert!(message.ends_with("letters, digits and _, and not \"chunk\""), "{message}");
        }
        assert_eq!(
            error("p {items}", &items, &[("items", &[1])], &[]),
            "items is given twice: remove one"
        );
        let many: Vec<u64> = (0..65).collect();
        let both: [(&str, &[u64]); 2] = [("a", &many), ("b", &many)];
        let message = error("p {a} {b}", &items, &both, &[]);
        assert_eq!(message, "there are more than 4096 candidates: give fewer values");
    }
}
