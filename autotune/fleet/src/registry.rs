//! The OCI distribution protocol: manifests, blobs, tags and tokens.

use core::fmt::Display;
use std::sync::{Mutex, PoisonError};

use http::header::{
    ACCEPT, AUTHORIZATION, CONTENT_TYPE, ETAG, IF_NONE_MATCH, LINK, LOCATION, WWW_AUTHENTICATE,
};
use http::{HeaderValue, Method, Request, StatusCode};
use http_auth::basic::encode_credentials;
use http_auth::parse_challenges;
use object_store::client::{HttpClient, HttpResponse};
use serde::Deserialize;
use url::Url;

use crate::credentials::credentials;
use crate::digest::Digest;
use crate::error::FleetError;
use crate::manifest::MANIFEST_TYPE;
use crate::wire::{LEAVES_TLS, MAX_REDIRECTS, Network, collect, leaves_tls, refused, unreachable};

/// A repository of a registry.
#[derive(Debug)]
pub(crate) struct Registry {
    client: HttpClient,
    /// `https://REGISTRY/v2/`
    root: Url,
    /// The registry's name for credentials.
    host: String,
    repository: String,
    authorization: Mutex<Option<HeaderValue>>,
}

/// A tag's manifest.
#[derive(Debug)]
pub(crate) enum Tagged {
    /// The ETag still matches.
    NotModified,
    /// The bytes, and their ETag.
    Bytes(Vec<u8>, Option<String>),
}

impl Registry {
    pub(crate) fn new(network: Network, base: &Url, is_plain: bool) -> Result<Self, FleetError> {
        let host = base.authority().to_owned();
        let scheme = if is_plain { "http" } else { "https" };
        let root =
            format!("{scheme}://{host}/v2/").parse().map_err(|error| unreachable(base, &error))?;
        let repository = base.path().trim_matches('/').to_owned();
        Ok(Self { client: network.0, root, host, repository, authorization: Mutex::new(None) })
    }

    pub(crate) async fn tagged(
        &self,
        tag: &str,
        etag: Option<&str>,
        limit: u64,
    ) -> Result<Tagged, FleetError> {
        let what = format!("manifest {tag}");
        let headers =
            etag.and_then(|etag| Some((IF_NONE_MATCH, HeaderValue::from_str(etag).ok()?)));
        let accept = (ACCEPT, HeaderValue::from_static(MANIFEST_TYPE));
        let headers: Vec<_> = [accept].into_iter().chain(headers).collect();
        let url = self.url(&format!("manifests/{tag}"))?;
        let response = self.send(&what, Method::GET, &url, &headers, &[], "pull").await?;
        if response.status() == StatusCode::NOT_MODIFIED {
            return Ok(Tagged::NotModified);
        }
        let response = expect(&what, response, StatusCode::OK)?;
        let etag =
            response.headers().get(ETAG).and_then(|etag| Some(etag.to_str().ok()?.to_owned()));
        let body = collect(&what, response.into_body().bytes_stream(), limit).await?;
        Ok(Tagged::Bytes(body, etag))
    }

    pub(crate) async fn blob(&self, digest: Digest, limit: u64) -> Result<Vec<u8>, FleetError> {
        let url = self.url(&format!("blobs/{digest}"))?;
        let response = self.send(digest, Method::GET, &url, &[], &[], "pull").await?;
        let response = expect(digest, response, StatusCode::OK)?;
        collect(digest, response.into_body().bytes_stream(), limit).await
    }

    pub(crate) async fn put_blob(&self, digest: Digest, bytes: &[u8]) -> Result<(), FleetError> {
        let what = format!("upload of {digest}");
        let begin = self.url("blobs/uploads/")?;
        let response = self.send(&what, Method::POST, &begin, &[], &[], SCOPE).await?;
        let response = expect(&what, response, StatusCode::ACCEPTED)?;
        let location = response.headers().get(LOCATION).and_then(|location| location.to_str().ok());
        let mut url = location
            .and_then(|location| begin.join(location).ok())
            // Credentials and contents stay with this server.
            .filter(|url| url.origin() == self.root.origin())
            .ok_or_else(|| {
                FleetError::Push(format!("{what}: the registry names no place of its own for it"))
            })?;
        url.query_pairs_mut().append_pair("digest", &digest.to_string());
        let kind = [(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"))];
        let response = self.send(&what, Method::PUT, &url, &kind, bytes, SCOPE).await?;
        expect(&what, response, StatusCode::CREATED).map(drop)
    }

    pub(crate) async fn put_tag(&self, tag: &str, manifest: &[u8]) -> Result<(), FleetError> {
        let (what, url) = (format!("push of {tag}"), self.url(&format!("manifests/{tag}"))?);
        let kind = [(CONTENT_TYPE, HeaderValue::from_static(MANIFEST_TYPE))];
        let response = self.send(&what, Method::PUT, &url, &kind, manifest, SCOPE).await?;
        expect(&what, response, StatusCode::CREATED).map(drop)
    }

    pub(crate) async fn tags(&self, limit: u64) -> Result<Vec<String>, FleetError> {
        #[derive(Deserialize)]
        struct Page {
            tags: Option<Vec<String>>,
        }
        let (what, mut all) = ("list of tags", Vec::<String>::new());
        for _ in 0..MAX_PAGES {
            let mut url = self.url("tags/list")?;
            url.query_pairs_mut().append_pair("n", "1000");
            if let Some(last) = all.last() {
                url.query_pairs_mut().append_pair("last", last);
            }
            let response = self.send(what, Method::GET, &url, &[], &[], "pull").await?;
            let response = expect(what, response, StatusCode::OK)?;
            let is_last = !response.headers().contains_key(LINK);
            let body = collect(what, response.into_body().bytes_stream(), limit).await?;
            let page: Page =
                serde_json::from_slice(&body).map_err(|error| unreachable(what, &error))?;
            let tags = page.tags.unwrap_or_default();
            let is_last = is_last || tags.is_empty();
            all.extend(tags);
            if is_last {
                return Ok(all);
            }
        }
        Err(FleetError::TooLarge { what: what.to_owned(), limit: MAX_PAGES * 1000 })
    }

    fn url(&self, path: &str) -> Result<Url, FleetError> {
        let url = self.root.join(&format!("{}/{path}", self.repository));
        url.map_err(|error| unreachable(path, &error))
    }

    /// Sends a request and follows the redirects of a GET. Only the registry's own origin gets credentials, and only
    /// its own challenge is answered.
    async fn send(
        &self,
        what: impl Display,
        method: Method,
        url: &Url,
        headers: &[(http::HeaderName, HeaderValue)],
        body: &[u8],
        actions: &str,
    ) -> Result<HttpResponse, FleetError> {
        let kept = || self.authorization.lock().unwrap_or_else(PoisonError::into_inner);
        let send = async |url: &Url, authorization: Option<HeaderValue>| {
            let mut request = Request::builder().method(method.clone()).uri(url.as_str());
            let authorization = authorization.map(|value| (AUTHORIZATION, value));
            for (name, value) in headers.iter().cloned().chain(authorization) {
                request = request.header(name, value);
            }
            let request =
                request.body(body.to_vec().into()).map_err(|error| unreachable(&what, &error))?;
            self.client.execute(request).await.map_err(|error| unreachable(&what, &error))
        };
        let failed = |reason: &str| FleetError::Unreachable {
            what: what.to_string(),
            reason: reason.to_owned(),
            retry_after: None,
        };
        let mut url = url.clone();
        for _ in 0..=MAX_REDIRECTS {
            let is_own = url.origin() == self.root.origin();
            let authorization = kept().clone().filter(|_| is_own);
            let mut response = send(&url, authorization).await?;
            if is_own
                && response.status() == StatusCode::UNAUTHORIZED
                && let Some(authorization) = self.authorize(&response, actions).await?
            {
                *kept() = Some(authorization.clone());
                response = send(&url, Some(authorization)).await?;
            }
            let target = response.headers().get(LOCATION).and_then(|target| target.to_str().ok());
            let is_redirect = matches!(response.status().as_u16(), 301..=303 | 307 | 308);
            let Some(target) = target.filter(|_| is_redirect && method == Method::GET) else {
                return Ok(response);
            };
            let next = url.join(target).map_err(|error| unreachable(&what, &error))?;
            if leaves_tls(&url, &next) {
                return Err(failed(LEAVES_TLS));
            }
            url = next;
        }
        Err(failed("too many redirects"))
    }

    /// What the registry asks for: a password, or a token from its server of tokens.
    async fn authorize(
        &self,
        response: &HttpResponse,
        actions: &str,
    ) -> Result<Option<HeaderValue>, FleetError> {
        #[derive(Deserialize)]
        struct Token {
            #[serde(alias = "access_token")]
            token: String,
        }
        let header =
            response.headers().get(WWW_AUTHENTICATE).and_then(|header| header.to_str().ok());
        let challenges = parse_challenges(header.unwrap_or_default()).unwrap_or_default();
        let password = credentials(&self.host).await?;
        let password = password.map(|(user, password)| encode_credentials(&user, &password));
        let secret = |text: &str| {
            let mut value = HeaderValue::from_str(text).ok()?;
            value.set_sensitive(true);
            Some(value)
        };
        let Some(challenge) =
            challenges.first().filter(|first| first.scheme.eq_ignore_ascii_case("bearer"))
        else {
            return Ok(password.as_deref().and_then(secret));
        };
        let parameter = |name| {
            let found = challenge.params.iter().find(|(other, _)| other.eq_ignore_ascii_case(name));
            found.map(|(_, value)| value.to_unescaped())
        };
        let what = "token of the registry";
        let realm = parameter("realm").and_then(|realm| realm.parse::<Url>().ok());
        // Without TLS, the password goes to the registry itself or nowhere.
        let is_safe =
            |realm: &Url| realm.scheme() == "https" || realm.origin() == self.root.origin();
        let Some(mut realm) = realm.filter(is_safe) else {
            return Ok(None);
        };
        // This repository, whatever the registry asks for.
        realm
            .query_pairs_mut()
            .append_pair("scope", &format!("repository:{}:{actions}", self.repository));
        if let Some(service) = parameter("service") {
            realm.query_pairs_mut().append_pair("service", &service);
        }
        let mut request = Request::builder().uri(realm.as_str());
        if let Some(password) = password.as_deref().and_then(secret) {
            request = request.header(AUTHORIZATION, password);
        }
        let request = request.body(Vec::new().into()).map_err(|error| unreachable(what, &error))?;
        let response =
            self.client.execute(request).await.map_err(|error| unreachable(what, &error))?;
        let response = expect(what, response, StatusCode::OK)?;
        let body = collect(what, response.into_body().bytes_stream(), MAX_TOKEN_BYTES).await?;
        let Token { token } =
            serde_json::from_slice(&body).map_err(|error| unreachable(what, &error))?;
        Ok(secret(&format!("Bearer {token}")))
    }
}

fn expect(
    what: impl Display,
    response: HttpResponse,
    status: StatusCode,
) -> Result<HttpResponse, FleetError> {
    let kind = response.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let is_page = kind.is_some_and(|kind| kind.starts_with("text/html"));
    match response.status().as_u16() {
        // Servers in front of a registry may refuse in HTML.
        found if is_page && !(401..=404).contains(&found) => Err(FleetError::Unreachable {
            what: what.to_string(),
            reason: format!("status {found} with {PAGE}"),
            retry_after: None,
        }),
        found if found == status.as_u16() => Ok(response),
        _ => Err(refused(what, &response)),
    }
}

const PAGE: &str = "a page of HTML, so no registry has answered: correct the address, or HTTPS_PROXY and NO_PROXY if \\
                    a proxy is between";
const SCOPE: &str = "pull,push";
const MAX_PAGES: u64 = 50;
const MAX_TOKEN_BYTES: u64 = 64 << 10;
