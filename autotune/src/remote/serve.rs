//! The measuring process: serves requests from standard input.

use std::io::{self, BufReader, Read, Write};
use std::process;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use super::protocol::{PROTOCOL, Request, Response, forward_lines, write_line};
use crate::failure::{FailureKind, MeasureFailure};
use crate::measure::ProblemMeasurer;

/// Why a measuring process ends before it is asked to.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// A request cannot be read.
    #[error("cannot read a request: {0}")]
    Read(#[source] io::Error),
    /// A request is malformed.
    #[error("malformed request: {0}")]
    Malformed(#[source] serde_json::Error),
    /// A response cannot be written.
    #[error("cannot write a response: {0}")]
    Write(#[source] io::Error),
}

/// Measures what is requested on `input` until it ends or closes: standard input and output of a
/// process that [`crate::Remote`] started. `open` makes the measurer of a problem from the text
/// that the tuner gave. Nothing else may write to `output` meanwhile.
///
/// If `input` ends during a measurement that does not finish, the whole process is aborted after
/// two seconds, because its tuner cannot end it any more.
///
/// # Errors
///
/// [`ServeError`] if the other side violates the protocol; the process should then end.
pub fn serve<I, O>(
    input: I,
    mut output: O,
    mut open: impl FnMut(&str) -> Result<Box<dyn ProblemMeasurer>, MeasureFailure>,
) -> Result<(), ServeError>
where
    I: Read + Send + 'static,
    O: Write,
{
    let (requests, _running) = read_requests(input);
    // Ends the line of whatever wrote to the output before.
    output.write_all(b"\n").map_err(ServeError::Write)?;
    let mut respond =
        |response: &Response| write_line(&mut output, response).map_err(ServeError::Write);
    respond(&Response::Serving { protocol: PROTOCOL })?;
    let mut opened: Option<Box<dyn ProblemMeasurer>> = None;
    while let Ok(line) = requests.recv() {
        let line = line.map_err(ServeError::Read)?;
        let request = serde_json::from_str(&line).map_err(ServeError::Malformed)?;
        let response = match (request, &mut opened) {
            (Request::Close, _) => break,
            (Request::Open { problem }, opened) => {
                // Frees its memory first, which the next problem may need.
                *opened = None;
                open(&problem).and_then(|mut new| {
                    let configurations = new.configurations()?;
                    *opened = Some(new);
                    Ok(Response::Opened { configurations })
                })
            }
            (_, None) => Err(MeasureFailure::new(FailureKind::Launch, "no problem is open")),
            (Request::Check { candidate }, Some(problem)) => {
                problem.check(&candidate).map(|()| Response::Checked)
            }
            (Request::Sample { candidate, portion }, Some(problem)) => {
                problem.sample(&candidate, portion).map(|sample| Response::Sampled { sample })
            }
        };
        respond(&response.unwrap_or_else(|failure| Response::Failed { failure }))?;
    }
    Ok(())
}

/// The lines of `input`, read by a thread of their own, and a sender to keep while requests are
/// served: its drop tells the thread that no measurement is running.
fn read_requests(input: impl Read + Send + 'static) -> (Receiver<io::Result<String>>, Sender<()>) {
    let (send_line, lines) = mpsc::channel();
    let (running, ended) = mpsc::channel();
    thread::spawn(move || {
        forward_lines(&mut BufReader::new(input), &send_line);
        drop(send_line);
        if ended.recv_timeout(GRACE) == Err(RecvTimeoutError::Timeout) {
            process::abort();
        }
    });
    (lines, running)
}

/// How long a measurement may continue after the input has ended.
const GRACE: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::candidate::{Candidate, LaunchConfig};
    use crate::measure::{Measurer, Portion, Sample};

    struct Empty;

    impl Measurer for Empty {
        fn check(&mut self, _: &Candidate) -> Result<(), MeasureFailure> {
            Ok(())
        }

        fn sample(&mut self, _: &Candidate, _: Portion) -> Result<Sample, MeasureFailure> {
            Ok(Sample { time_ns: 1.5, clock_mhz: None })
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
        let input = io::Cursor::new(requests.to_owned().into_bytes());
        let ended = serve(input, &mut output, |problem| match problem {
            "empty" => Ok(Box::new(Empty)),
            other => Err(MeasureFailure::new(FailureKind::Launch, format!("no problem {other}"))),
        });
        let output = String::from_utf8(output).expect("text");
        (ended, output.lines().map(str::to_owned).collect())
    }

    #[test]
    fn requests_are_served_in_order_until_the_end_of_input() {
        let requests = format!(
            "{{\"check\":{{\"candidate\":{CANDIDATE}}}}}\n{{\"open\":{{\"problem\":\"other\"}}}}\n\
             {{\"open\":{{\"problem\":\"empty\"}}}}\n{{\"check\":{{\"candidate\":{CANDIDATE}}}}}\n\
             {{\"sample\":{{\"candidate\":{CANDIDATE},\"portion\":\"sequence\"}}}}\n"
        );
        let (ended, responses) = served(&requests);
        ended.expect("ends well");
        let expected = [
            "",
            r#"{"serving":{"protocol":2}}"#,
            r#"{"failed":{"failure":{"kind":"launch","message":"no problem is open"}}}"#,
            r#"{"failed":{"failure":{"kind":"launch","message":"no problem other"}}}"#,
            r#"{"opened":{"configurations":[]}}"#,
            r#""checked""#,
            r#"{"sampled":{"sample":{"time_ns":1.5,"clock_mhz":null}}}"#,
        ];
        assert_eq!(responses, expected);
    }

    #[test]
    fn nothing_is_served_after_close() {
        let (ended, responses) = served("\"close\"\n{\"open\":{\"problem\":\"empty\"}}\n");
        ended.expect("ends well");
        assert_eq!(responses.len(), 2);
    }

    #[test]
    fn an_invalid_request_ends_it() {
        let (ended, _) = served("frobnicate\n");
        assert!(matches!(ended, Err(ServeError::Malformed(_))), "{ended:?}");
        let (ended, _) = served("\"clo");
        assert!(matches!(ended, Err(ServeError::Read(_))), "{ended:?}");
    }
}
