//! The side of the process that measures.

use std::io::{BufReader, Read, Write};
use std::process;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use super::line::{LineError, read_line};
use super::protocol::{Answer, PROTOCOL, Request};
use crate::candidate::LaunchConfig;
use crate::measurer::{FailureKind, MeasureFailure, Measurer};

/// What a measuring process serves.
pub trait ProblemMeasurer: Measurer {
    /// The launch with each set of parameters that is worth measuring, the default first.
    ///
    /// # Errors
    ///
    /// [`MeasureFailure`] where not even the default can be prepared.
    fn configurations(&mut self) -> Result<Vec<LaunchConfig>, MeasureFailure>;
}

/// Why a measuring process ends before it is told to.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// A request could not be read.
    #[error("a request could not be read: {0}")]
    Line(#[from] LineError),
    /// A request is none.
    #[error("not a request: {0}")]
    Malformed(#[source] serde_json::Error),
    /// An answer could not be written.
    #[error("an answer could not be written: {0}")]
    Write(#[source] std::io::Error),
}

/// Measures what the other side of `input` and `output` asks for, until it closes them: the standard
/// ones of a process that [`crate::Remote`] started. `open` makes the measurer of a problem, in the
/// words of the one who started it. Once it serves, nobody else may write to `output`.
///
/// Where `input` ends within a measurement that does not, the whole process is aborted after two
/// seconds: nobody is left to end it.
///
/// # Errors
///
/// [`ServeError`] where the other side does not keep to the protocol: the process had better end.
pub fn serve<I, O>(
    input: I,
    mut output: O,
    mut open: impl FnMut(&str) -> Result<Box<dyn ProblemMeasurer>, MeasureFailure>,
) -> Result<(), ServeError>
where
    I: Read + Send + 'static,
    O: Write,
{
    let requests = read_requests(input);
    // The line of whoever wrote before is ended first.
    output.write_all(b"\n").map_err(ServeError::Write)?;
    say(&mut output, &Answer::Serving { protocol: PROTOCOL })?;
    let mut served: Option<Box<dyn ProblemMeasurer>> = None;
    while let Ok(line) = requests.lines.recv() {
        let answer = match serde_json::from_str(&line?).map_err(ServeError::Malformed)? {
            Request::Close => break,
            Request::Open { problem } => {
                // Its memory may be what the next one needs.
                drop(served.take());
                open(&problem).and_then(|mut opened| {
                    let configurations = opened.configurations()?;
                    served = Some(opened);
                    Ok(Answer::Opened { configurations })
                })
            }
            request => served
                .as_mut()
                .ok_or_else(not_open)
                .and_then(|served| answer(served.as_mut(), request)),
        };
        say(&mut output, &answer.unwrap_or_else(|failure| Answer::Failed { failure }))?;
    }
    Ok(())
}

/// The answer to a request about a candidate.
fn answer(served: &mut dyn ProblemMeasurer, request: Request) -> Result<Answer, MeasureFailure> {
    match request {
        Request::Check { candidate } => served.check(&candidate).map(|()| Answer::Checked),
        Request::Sample { candidate, portion, count } => {
            let samples = served.sample(&candidate, portion, count)?;
            Ok(Answer::Sampled { samples })
        }
        Request::Open { .. } | Request::Close => Err(not_open()),
    }
}

fn not_open() -> MeasureFailure {
    MeasureFailure::new(FailureKind::Launch, "no problem is open")
}

fn say(output: &mut impl Write, answer: &Answer) -> Result<(), ServeError> {
    let mut line = serde_json::to_vec(answer).map_err(|error| ServeError::Write(error.into()))?;
    line.push(b'\n');
    output.write_all(&line).and_then(|()| output.flush()).map_err(ServeError::Write)
}

/// Requests as they come in, from a thread of their own.
struct Requests {
    lines: Receiver<Result<String, LineError>>,
    /// Tells that thread that nothing runs any more.
    #[allow(dead_code, reason = "tells by being dropped")]
    running: Sender<()>,
}

fn read_requests(input: impl Read + Send + 'static) -> Requests {
    let (send_line, lines) = mpsc::channel();
    let (running, ended) = mpsc::channel();
    thread::spawn(move || {
        let mut input = BufReader::new(input);
        while let Some(line) = read_line(&mut input).transpose() {
            let last = line.is_err();
            if send_line.send(line).is_err() || last {
                break;
            }
        }
        drop(send_line);
        if ended.recv_timeout(GRACE) == Err(RecvTimeoutError::Timeout) {
            process::abort();
        }
    });
    Requests { lines, running }
}

/// How long a measurement may go on when nobody waits for it any more.
const GRACE: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::candidate::Candidate;
    use crate::sample::{Portion, Sample};

    struct Empty;

    impl Measurer for Empty {
        fn check(&mut self, _: &Candidate) -> Result<(), MeasureFailure> {
            Ok(())
        }

        fn sample(
            &mut self,
            _: &Candidate,
            _: Portion,
            _: u32,
        ) -> Result<Vec<Sample>, MeasureFailure> {
            Ok(Vec::new())
        }
    }

    impl ProblemMeasurer for Empty {
        fn configurations(&mut self) -> Result<Vec<LaunchConfig>, MeasureFailure> {
            Ok(Vec::new())
        }
    }

    const CANDIDATE: &str = r#"{"parameters":[],"choice":"automatic","strategy":"whole","launches":1,"largest_chunk":1,"block_threads":32}"#;

    fn served(requests: &str) -> (Result<(), ServeError>, Vec<String>) {
        let mut output = Vec::new();
        let input = std::io::Cursor::new(requests.to_owned().into_bytes());
        let ended = serve(input, &mut output, |problem| match problem {
            "empty" => Ok(Box::new(Empty)),
            other => Err(MeasureFailure::new(FailureKind::Launch, format!("no problem {other}"))),
        });
        let output = String::from_utf8(output).expect("text");
        (ended, output.lines().map(str::to_owned).collect())
    }

    #[test]
    fn requests_are_answered_in_order_until_the_end_of_input() {
        let requests = format!(
            "{{\"check\":{{\"candidate\":{CANDIDATE}}}}}\n{{\"open\":{{\"problem\":\"other\"}}}}\n\
             {{\"open\":{{\"problem\":\"empty\"}}}}\n{{\"check\":{{\"candidate\":{CANDIDATE}}}}}\n"
        );
        let (ended, answers) = served(&requests);
        ended.expect("ends well");
        let expected = [
            "",
            r#"{"serving":{"protocol":1}}"#,
            r#"{"failed":{"failure":{"kind":"launch","message":"no problem is open"}}}"#,
            r#"{"failed":{"failure":{"kind":"launch","message":"no problem other"}}}"#,
            r#"{"opened":{"configurations":[]}}"#,
            r#""checked""#,
        ];
        assert_eq!(answers, expected);
    }

    #[test]
    fn nothing_is_answered_after_close() {
        let (ended, answers) = served("\"close\"\n{\"open\":{\"problem\":\"empty\"}}\n");
        ended.expect("ends well");
        assert_eq!(answers.len(), 2);
    }

    #[test]
    fn what_is_no_request_ends_it() {
        let (ended, _) = served("frobnicate\n");
        assert!(matches!(ended, Err(ServeError::Malformed(_))), "{ended:?}");
        let (ended, _) = served("\"clo");
        assert!(matches!(ended, Err(ServeError::Line(LineError::Cut))), "{ended:?}");
    }
}
