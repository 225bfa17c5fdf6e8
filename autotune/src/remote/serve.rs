//! The measuring process: serves the requests of the tuner that started it.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use serde::Serialize;

use super::group::end_this_group;
use super::protocol::{MAX_LINE_BYTES, Numbered, PROTOCOL, Request, read_lines};
use crate::error::{Error, ErrorKind};
use crate::failure::{FailureKind, MeasureFailure, Measured};
use crate::lines::write_line;
use crate::measure::Measurer;

/// Serves the tuner that started this process with [`crate::Remote`], until the tuner closes the connection.
/// `open` makes the measurer of the problem that the tuner names.
///
/// The connection arrives as standard input. This function moves it to another descriptor, so candidates
/// and libraries may print, and find standard input empty.
///
/// If the tuner ends during a measurement, this process and its group are killed after two seconds.
///
/// # Errors
///
/// [`ErrorKind::Connection`] if there is no connection, or the tuner violates the protocol.
pub fn serve(open: impl FnMut(&str) -> Measured<Box<dyn Measurer>>) -> Result<(), Error> {
    let connect = || -> io::Result<_> {
        let connection = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
        connection.peer_addr()?;
        rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
        Ok((connection.try_clone()?, connection))
    };
    let (input, output) = connect()
        .map_err(Error::with(ErrorKind::Connection, "this process was not started by a tuner"))?;
    serve_on(input, output, open)
}

/// As [`serve`], on any connection.
///
/// # Errors
///
/// As [`serve`].
pub fn serve_on<I, O>(
    input: I,
    mut output: O,
    mut open: impl FnMut(&str) -> Measured<Box<dyn Measurer>>,
) -> Result<(), Error>
where
    I: Read + Send + 'static,
    O: Write,
{
    // While it exists, a measurement may be running.
    let (_running, ended) = mpsc::channel::<()>();
    let after = move || {
        if ended.recv_timeout(GRACE) == Err(RecvTimeoutError::Timeout) {
            end_this_group();
        }
    };
    let requests = read_lines(input, after)
        .map_err(Error::with(ErrorKind::Connection, "cannot start a thread"))?;
    respond(&mut output, 0, Ok(PROTOCOL))?;
    let mut opened: Option<Box<dyn Measurer>> = None;
    while let Ok(line) = requests.recv() {
        let line = line.map_err(Error::with(ErrorKind::Connection, "cannot read a request"))?;
        let Numbered { id, message } = serde_json::from_str(&line)
            .map_err(Error::with(ErrorKind::Connection, "malformed request"))?;
        match (message, &mut opened) {
            (Request::Close, _) => break,
            (Request::Open { problem }, opened) => {
                // The next problem may need its memory.
                *opened = None;
                let configurations =
                    open(&problem).and_then(|new| opened.insert(new).configurations());
                if configurations.is_err() {
                    *opened = None;
                }
                respond(&mut output, id, configurations)?;
            }
            (_, None) => {
                let failure = MeasureFailure::new(FailureKind::Launch, "no problem is open");
                respond(&mut output, id, Err::<(), _>(failure))?;
            }
            (Request::Check { candidate }, Some(problem)) => {
                respond(&mut output, id, problem.check(&candidate))?;
            }
            (Request::Sample { candidate, portion }, Some(problem)) => {
                respond(&mut output, id, problem.sample(&candidate, portion))?;
            }
        }
    }
    Ok(())
}

fn respond(
    output: &mut impl Write,
    id: u64,
    message: Measured<impl Serialize>,
) -> Result<(), Error> {
    write_line(output, &Numbered { id, message }, MAX_LINE_BYTES)
        .map_err(Error::with(ErrorKind::Connection, "cannot write a response"))
}

/// How long a measurement may continue after the input has ended.
const GRACE: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::candidate::Candidate;
    use crate::measure::{Portion, Sample};

    struct Empty;

    impl Measurer for Empty {
        fn check(&mut self, _: &Candidate) -> Result<(), MeasureFailure> {
            Ok(())
        }

        fn sample(&mut self, _: &Candidate, _: Portion) -> Result<Sample, MeasureFailure> {
            Ok(Sample { time_ns: 1.5, clock_mhz: None, disturbed: false })
        }
    }

    const CANDIDATE: &str = r#"{"parameters":[],"choice":"automatic","strategy":"whole","launches":1,"largest_chunk":1,"block_threads":32}"#;

    fn served(requests: &str) -> (Result<(), Error>, Vec<String>) {
        let mut output = Vec::new();
        let input = io::Cursor::new(requests.to_owned().into_bytes());
        let ended = serve_on(input, &mut output, |problem| match problem {
            "empty" => Ok(Box::new(Empty)),
            other => Err(MeasureFailure::new(FailureKind::Launch, format!("no problem {other}"))),
        });
        let output = String::from_utf8(output).expect("text");
        (ended, output.lines().map(str::to_owned).collect())
    }

    #[test]
    fn requests_are_served_in_order_until_the_end_of_input() {
        let check = format!(r#"{{"check":{{"candidate":{CANDIDATE}}}}}"#);
        let sample = format!(r#"{{"sample":{{"candidate":{CANDIDATE},"portion":"sequence"}}}}"#);
        let (other, empty) = (r#"{"open":{"problem":"other"}}"#, r#"{"open":{"problem":"empty"}}"#);
        let requests: String = [(1, &*check), (2, other), (3, empty), (9, &check), (4, &sample)]
            .map(|(id, request)| format!("{{\"id\":{id},\"message\":{request}}}\n"))
            .concat();
        let (ended, responses) = served(&requests);
        ended.expect("ends well");
        let expected = [
            r#"{"id":0,"message":{"Ok":4}}"#,
            r#"{"id":1,"message":{"Err":{"kind":"launch","message":"no problem is open"}}}"#,
            r#"{"id":2,"message":{"Err":{"kind":"launch","message":"no problem other"}}}"#,
            r#"{"id":3,"message":{"Ok":[]}}"#,
            r#"{"id":9,"message":{"Ok":null}}"#,
            r#"{"id":4,"message":{"Ok":{"time_ns":1.5,"clock_mhz":null}}}"#,
        ];
        assert_eq!(responses, expected);
    }

    #[test]
    fn nothing_is_served_after_close() {
        let (ended, responses) = served(concat!(
            r#"{"id":1,"message":"close"}"#,
            "\n",
            r#"{"id":2,"message":{"open":{"problem":"empty"}}}"#,
            "\n"
        ));
        ended.expect("ends well");
        assert_eq!(responses.len(), 1);
    }

    #[test]
    fn an_invalid_request_ends_the_process() {
        let (ended, _) = served("frobnicate\n");
        let error = ended.expect_err("malformed").to_string();
        assert!(error.starts_with("malformed request: "), "{error}");
        let (ended, _) = served("\"clo");
        let error = ended.expect_err("incomplete").to_string();
        assert!(error.starts_with("cannot read a request: "), "{error}");
    }
}
