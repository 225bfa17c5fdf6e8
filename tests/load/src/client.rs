//! A client of HTTP/1.1 with one connection, which it keeps.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

pub(crate) struct Client {
    server: SocketAddr,
    kept: Option<BufReader<TcpStream>>,
}

impl Client {
    pub(crate) const fn new(server: SocketAddr) -> Self {
        Self { server, kept: None }
    }

    /// The status and the body of the reply. A server may close a kept connection before it reads the next request,
    /// which is then sent again.
    pub(crate) fn post(&mut self, path: &str, body: &[u8]) -> io::Result<(u16, Vec<u8>)> {
        if let Some(kept) = self.kept.take()
            && let Ok(reply) = self.exchange(kept, path, body)
        {
            return Ok(reply);
        }
        let stream = TcpStream::connect(self.server)?;
        stream.set_read_timeout(Some(Duration::from_secs(600)))?;
        self.exchange(BufReader::new(stream), path, body)
    }

    fn exchange(
        &mut self,
        mut stream: BufReader<TcpStream>,
        path: &str,
        body: &[u8],
    ) -> io::Result<(u16, Vec<u8>)> {
        let of_body = format!("Content-Length: {}\r\n\r\n", body.len());
        let head = format!("POST {path} HTTP/1.1\r\nHost: server\r\n{of_body}");
        let sent = stream.get_mut().write_all(&[head.as_bytes(), body].concat());
        // A server that refuses a body replies before it has read all of it.
        let (mut head, mut line) = (Vec::new(), String::new());
        while stream.read_line(&mut line)? > 2 {
            head.push(line.trim_end().to_lowercase());
            line.clear();
        }
        let status = head.first().and_then(|line| line.split(' ').nth(1)?.parse().ok());
        let status = status.ok_or(ErrorKind::UnexpectedEof)?;
        let length =
            head.iter().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
        let mut reply = vec![0; length.ok_or(ErrorKind::InvalidData)?];
        stream.read_exact(&mut reply)?;
        let is_kept = sent.is_ok() && !head.iter().any(|line| line == "connection: close");
        self.kept = is_kept.then_some(stream);
        Ok((status, reply))
    }
}
