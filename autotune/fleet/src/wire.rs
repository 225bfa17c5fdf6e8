//! HTTP with time limits, a rule for redirects, and bodies of bounded size.

use core::error::Error;
use core::fmt::Display;
use core::time::Duration;
use std::io;

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use http::header::RETRY_AFTER;
use object_store::ClientOptions;
use object_store::client::{HttpClient, HttpConnector};
use reqwest::redirect::Policy;
use url::Url;

use crate::error::FleetError;
use crate::location::Location;

/// The HTTP client of a store. A simulation brings its own, which must not follow a registry's redirects.
#[derive(Clone, Debug)]
pub struct Network(pub HttpClient);

impl Network {
    /// The network of this machine for one address. Without TLS the certificates of the system are not loaded.
    ///
    /// # Errors
    ///
    /// [`FleetError::Unreachable`] if the system has no certificates.
    pub fn system(location: &Location) -> Result<Self, FleetError> {
        // Another library may have installed its own.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder()
            .user_agent(concat!("gridguard/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT_LIMIT)
            .read_timeout(READ_LIMIT)
            .redirect(redirects(location));
        let without_tls = ["oci+http", "http", "file"].contains(&location.base.scheme());
        let client = if without_tls { client.tls_certs_only([]) } else { client };
        let client = client.build().map_err(|error| unreachable("HTTP", &error))?;
        Ok(Self(HttpClient::new(client)))
    }
}

/// Redirects that the client follows. A registry follows its own, because it must know who answered.
fn redirects(location: &Location) -> Policy {
    if location.registry().is_some() {
        return Policy::none();
    }
    // Object stores get secrets in headers that the client would pass on.
    let is_public = ["http", "https"].contains(&location.base.scheme());
    Policy::custom(move |attempt| {
        let (first, last) = (attempt.previous().first(), attempt.previous().last());
        let stays = first.is_some_and(|first| first.origin() == attempt.url().origin());
        if attempt.previous().len() > MAX_REDIRECTS {
            attempt.error("too many redirects")
        } else if !stays && !is_public {
            attempt.error("a redirect to another server")
        } else if last.is_some_and(|last| leaves_tls(last, attempt.url())) {
            attempt.error(LEAVES_TLS)
        } else {
            attempt.follow()
        }
    })
}

/// Whether a redirect leads from https to another scheme.
pub(crate) fn leaves_tls(from: &Url, to: &Url) -> bool {
    from.scheme() == "https" && to.scheme() != "https"
}

impl HttpConnector for Network {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(self.0.clone())
    }
}

/// The error of a request without a response: the innermost cause says most.
pub(crate) fn unreachable(what: impl Display, error: &(dyn Error + 'static)) -> FleetError {
    let mut cause = error;
    while let Some(inner) = inner(cause) {
        cause = inner;
    }
    let reason = match cause.downcast_ref() {
        Some(rustls::Error::InvalidMessage(_)) => WITHOUT_TLS.to_owned(),
        _ => cause.to_string(),
    };
    FleetError::Unreachable { what: what.to_string(), reason, retry_after: None }
}

/// The cause of an error. An `io::Error` hides the error that it holds from `source`.
fn inner<'e>(error: &'e (dyn Error + 'static)) -> Option<&'e (dyn Error + 'static)> {
    match error.downcast_ref::<io::Error>() {
        Some(error) => Some(error.get_ref()?),
        None => error.source(),
    }
}

/// The error of a response by its status.
pub(crate) fn refused<B>(what: impl Display, response: &http::Response<B>) -> FleetError {
    let what = what.to_string();
    match response.status().as_u16() {
        404 => FleetError::Missing { what, tags: Vec::new() },
        status @ (401 | 403) => FleetError::Denied { what, status },
        status => {
            let after = response
                .headers()
                .get(RETRY_AFTER)
                .and_then(|value| value.to_str().ok()?.parse().ok());
            let retry_after = after.map(Duration::from_secs);
            FleetError::Unreachable { what, reason: format!("status {status}"), retry_after }
        }
    }
}

/// All bytes of a body, if they are at most `limit`.
pub(crate) async fn collect<E: Error + 'static>(
    what: impl Display,
    mut body: impl Stream<Item = Result<Bytes, E>> + Unpin,
    limit: u64,
) -> Result<Vec<u8>, FleetError> {
    let mut bytes = Vec::new();
    while let Some(chunk) = body.next().await {
        let chunk = chunk.map_err(|error| unreachable(&what, &error))?;
        let length = bytes.len().saturating_add(chunk.len());
        if u64::try_from(length).is_ok_and(|length| length <= limit) {
            bytes.extend_from_slice(&chunk);
        } else {
            return Err(FleetError::TooLarge { what: what.to_string(), limit });
        }
    }
    Ok(bytes)
}

const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// Between two parts of a response.
const READ_LIMIT: Duration = Duration::from_secs(15);
/// Registries send clients to the storage of blobs.
pub(crate) const MAX_REDIRECTS: usize = 3;
const WITHOUT_TLS: &str = "the server does not speak TLS: for a registry without it, write oci+http:// in place of oci://";
pub(crate) const LEAVES_TLS: &str = "a redirect from https to another scheme";
